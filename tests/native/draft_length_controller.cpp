// Plays calls of hybridge::DraftLengthController and its RoundCosts, one a line, and prints what each answers.
//
//   controller LENGTH ...                       a new one, with costs for verify methods of these lengths
//   text                                        begin another text
//   unread TOKENS                               that the next proposal would read first
//   plan ROOM [CONFIDENCE]     worth SPENT CONFIDENCE ...     certain COUNT
//   done LENGTH PROPOSED ACCEPTED SECONDS DRAFTING
//   shadow SECONDS TOKEN ...     compare TOKEN     wants LONGEST     shadowing     acceptance
//   judge MODEL                                 accept a token with the controller that a drafter keeps with a model
#include "engine/draft_length_controller.h"
#include "engine/drafter.h"

#include <iostream>
#include <sstream>
#include <string>

namespace {

template <typename T>
std::vector<T> rest(std::istream& in) {
  std::vector<T> values;
  for (T value; in >> value;) values.push_back(value);
  return values;
}

template <typename T>
T next(std::istream& in) {
  T value{};
  in >> value;
  return value;
}

class Nothing final : public hybridge::Drafter {
 public:
  hybridge::Proposal propose(std::span<const int64_t>, size_t, hybridge::Sampler&) override { return {}; }
};

class Player {
 public:
  void play(const std::string& name, std::istream& in) {
    if (name == "controller") {
      costs_.emplace(rest<int64_t>(in));
      controller_ = {};
    }
    if (name == "text") controller_.begin(*costs_, false);
    if (name == "unread") controller_.set_unread(next<size_t>(in));
    if (name == "plan") {
      const auto room = next<size_t>(in);
      const auto confidence = rest<double>(in);
      say(
          controller_.plan(*costs_, room, confidence.empty() ? std::nullopt : std::optional(confidence.front())).length
      );
    }
    if (name == "worth") {
      const auto spent = next<double>(in);
      say(costs_->tokens_worth_verifying(rest<double>(in), spent));
    }
    if (name == "certain") say(costs_->certain_tokens_worth_verifying(next<size_t>(in)));
    if (name == "done") {
      const auto length = next<size_t>(in), proposed = next<size_t>(in), accepted = next<size_t>(in);
      const auto seconds = next<double>(in), drafting = next<double>(in);
      costs_->add(length, seconds - drafting, drafting == 0);
      if (proposed > 0) controller_.round_done(*costs_, length, proposed, accepted, seconds, drafting);
      else controller_.round_passed(seconds);
    }
    if (name == "shadow") {
      const auto seconds = next<double>(in);
      controller_.shadow(*costs_, rest<int64_t>(in), seconds);
    }
    if (name == "compare") controller_.compare(next<int64_t>(in));
    if (name == "wants") say(controller_.wants_shadow(*costs_, next<size_t>(in)));
    if (name == "shadowing") say(controller_.shadow_length(*costs_));
    if (name == "acceptance") say(controller_.acceptance());
    if (name == "judge") {
      const auto model = next<size_t>(in);
      hybridge::DraftLengthController& kept = drafter_.controller(models_ + model);
      kept.round_done(hybridge::RoundCosts(std::vector<int64_t>{2}), 2, 1, 1, 1.0);
      say(kept.acceptance());
    }
  }

 private:
  template <typename T>
  void say(const T& value) {
    std::cout.precision(17);
    std::cout << value << "\n";
  }

  std::optional<hybridge::RoundCosts> costs_;
  hybridge::DraftLengthController controller_;
  Nothing drafter_;
  char models_[2] = {};
};

}  // namespace

int main() {
  Player player;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    const auto name = next<std::string>(in);
    player.play(name, in);
    std::cout.flush();
  }
}
