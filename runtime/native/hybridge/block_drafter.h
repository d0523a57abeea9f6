// The drafter inside an artifact (--drafter, --mtp of hybridge export): it proposes from the model's own hidden states.
//
//   hybridge::BlockDrafter drafter(session);   // where session.facts().has_drafter()
//   auto done = hybridge::generate(session, prompt, {.max_new_tokens = 64}, drafter, [](int64_t token) { return show(token); });
#ifndef HYBRIDGE_NATIVE_BLOCK_DRAFTER_H
#define HYBRIDGE_NATIVE_BLOCK_DRAFTER_H

#include <utility>
#include <vector>

#include <hybridge/session.h>

namespace hybridge {

// While it lives, the session keeps the hidden states that it has yet to read. Its state rolls back with the session's.
class BlockDrafter {
 public:
  explicit BlockDrafter(Session& session) : session_(session) { session_.keep_hidden(true); }
  ~BlockDrafter() { session_.keep_hidden(false); }

  BlockDrafter(const BlockDrafter&) = delete;
  BlockDrafter& operator=(const BlockDrafter&) = delete;

  // Nothing where it fails, too: the text does not need it.
  std::vector<int64_t> propose(Tokens text, size_t limit) {
    auto drafted = session_.draft(text.back(), limit);
    return drafted.ok() ? std::move(*drafted) : std::vector<int64_t>();
  }

 private:
  Session& session_;
};

}  // namespace hybridge

#endif
