// Plays calls of hybridge::DraftLengthController, one a line, and prints what each answers.
//
//   controller LENGTH ... | fixed BLOCK LENGTH ...        a new one
//   choose ROOM [CONFIDENCE]     trim_draft CONFIDENCE ...     tokens_worth_verifying COUNT
//   done LENGTH PROPOSED ACCEPTED SECONDS DRAFTING
//   shadow SECONDS TOKEN ...     compare TOKEN     wants     shadowing     acceptance
//   judge MODEL LENGTH ...                      accept a token with the controller that a drafter keeps with a model
#include <hybridge/draft_length_controller.h>
#include <hybridge/drafter.h>

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
    if (name == "controller") controller_.emplace(rest<int64_t>(in));
    if (name == "fixed") {
      const auto block = next<size_t>(in);
      controller_.emplace(rest<int64_t>(in), block);
    }
    if (name == "choose") {
      const auto room = next<size_t>(in);
      const auto confidence = rest<double>(in);
      say(controller_->choose(room, confidence.empty() ? std::nullopt : std::optional(confidence.front())));
    }
    if (name == "trim_draft") say(controller_->trim_draft(rest<double>(in)));
    if (name == "tokens_worth_verifying") say(controller_->tokens_worth_verifying(next<size_t>(in)));
    if (name == "done") {
      const auto length = next<size_t>(in), proposed = next<size_t>(in), accepted = next<size_t>(in);
      const auto seconds = next<double>(in), drafting = next<double>(in);
      controller_->round_done(length, proposed, accepted, seconds, drafting);
    }
    if (name == "shadow") {
      const auto seconds = next<double>(in);
      controller_->shadow(rest<int64_t>(in), seconds);
    }
    if (name == "compare") controller_->compare(next<int64_t>(in));
    if (name == "wants") say(controller_->wants_shadow());
    if (name == "shadowing") say(controller_->shadow_length());
    if (name == "acceptance") say(controller_->acceptance());
    if (name == "judge") {
      const auto model = next<size_t>(in);
      hybridge::DraftLengthController& kept = drafter_.controller(models_ + model, rest<int64_t>(in));
      kept.round_done(1, 1, 1, 1.0);
      say(kept.acceptance());
    }
  }

 private:
  template <typename T>
  void say(const T& value) {
    std::cout.precision(17);
    std::cout << value << "\n";
  }

  std::optional<hybridge::DraftLengthController> controller_;
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
