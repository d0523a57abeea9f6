#include "engine/grammar.h"

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "engine/model_info.h"

namespace hybridge {

void follow(GenerationOptions& options, std::shared_ptr<text::GrammarFollower> follower) {
  options.mask = [follower](Tokens text, std::span<float> logits) { follower->mask(text, logits); };
  options.forced = [follower](Tokens text, size_t limit) { return follower->forced(text, limit); };
  options.fitting = [follower](Tokens text, Tokens proposed) { return follower->fitting(text, proposed); };
  options.why = [follower] { return follower->failure(); };
  options.wait_for = [follower](std::string end) { follower->wait_for(std::move(end)); };
}

}  // namespace hybridge
