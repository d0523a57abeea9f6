// How much a template may do: steps, memory, text and depth, whatever its author wrote.
#ifndef HYBRIDGE_NATIVE_TEXT_JINJA_BUDGET_H
#define HYBRIDGE_NATIVE_TEXT_JINJA_BUDGET_H

#include <cstddef>
#include <cstdint>
#include <functional>

#include "../error.h"

namespace hybridge::text::jinja {

// Limits for one rendering. given_bytes: of the template and its variables. Published templates take some 300 steps for
// a message.
struct Limits {
  explicit Limits(size_t given_bytes)
      : steps(2'000'000 + 64 * static_cast<uint64_t>(given_bytes)),
        memory((size_t(64) << 20) + 64 * given_bytes),
        output((size_t(16) << 20) + 4 * given_bytes) {}

  uint64_t steps;
  size_t memory, output;
};

// Levels of expressions, blocks, macros and values inside each other: a thread of 256 kB has room for them.
inline constexpr size_t MOST_LEVELS = 200;

class Budget {
 public:
  // interrupted: asked every few thousand steps; the rendering ends if it returns true.
  Budget(const Limits& limits, std::function<bool()> interrupted)
      : steps_(limits.steps), memory_(limits.memory), interrupted_(std::move(interrupted)) {}

  // Throws TextError if fewer steps are left, or the caller interrupts.
  void spend(uint64_t steps) {
    if (steps > steps_) [[unlikely]]
      throw TextError("the chat template takes too long: it was stopped after millions of steps");
    steps_ -= steps;
    since_asked_ += steps;
    if (since_asked_ >= 4096) [[unlikely]]
      ask();
  }

  // Pays for looking for bytes in a text, which may compare them at each of its places.
  void spend_search(size_t text, size_t wanted) { spend(1 + text / 16 + text / 64 * (wanted / 64)); }

  // Pays for bytes that are about to be kept, and for the work of writing them.
  void take(size_t bytes) {
    if (bytes > memory_) throw TextError("the chat template takes too much memory");
    spend(1 + bytes / 32);
    memory_ -= bytes;
  }

  void give_back(size_t bytes) noexcept { memory_ += bytes; }

  // A level of nesting, as long as it lives.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      if (budget.levels_ == MOST_LEVELS) throw TextError("the chat template is nested too deeply");
      ++budget.levels_;
    }
    ~Level() { --budget_.levels_; }
    Level(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  void ask() {
    since_asked_ = 0;
    if (interrupted_ && interrupted_()) throw TextError("interrupted");
  }

  uint64_t steps_, since_asked_ = 0;
  size_t memory_, levels_ = 0;
  std::function<bool()> interrupted_;
};

}  // namespace hybridge::text::jinja

#endif
