// Hidden states that a program puts out beside its logits, for a drafter to read.
#ifndef HYBRIDGE_NATIVE_HIDDEN_STATES_H
#define HYBRIDGE_NATIVE_HIDDEN_STATES_H

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <hybridge/program.h>

namespace hybridge {

// Rows [taps * width] of floats, one for each token: those of the last call, and those of committed tokens that nobody has read
// yet, as long as they are kept.
class HiddenStates {
 public:
  bool is_kept() const { return kept_; }

  void keep(bool wanted) {
    kept_ = wanted;
    if (!wanted) clear();
  }

  // Floats of a row; 0 before the first.
  size_t width() const { return width_; }
  size_t count() const { return width_ == 0 ? 0 : unread_.size() / width_; }
  std::span<const float> last() const { return last_; }
  std::span<const float> unread() const { return unread_; }

  // Takes the first `count` rows of a method's second output, float32 [1, tokens, taps * width], as those of the last call; behind
  // others of it where it went on.
  Error see(std::span<const Array> outputs, size_t count, bool goes_on) {
    if (!goes_on) last_.clear();
    if (outputs.size() < 2) return Error::InvalidProgram;
    const Array& output = outputs[1];
    const float* first = output.real();
    if (first == nullptr || output.shape.size() != 3 || output.extent(1) < count) return Error::InvalidProgram;
    width_ = output.extent(2);
    last_.insert(last_.end(), first, first + count * width_);
    return Error::Ok;
  }

  // The last call's first `count` tokens were committed.
  void add(size_t count) {
    if (kept_) unread_.insert(unread_.end(), last_.begin(), last_.begin() + static_cast<ptrdiff_t>(std::min(count * width_, last_.size())));
  }

  // The last `count` tokens that were seen were committed.
  void add_last(size_t count) {
    if (kept_) unread_.insert(unread_.end(), last_.end() - static_cast<ptrdiff_t>(std::min(count * width_, last_.size())), last_.end());
  }

  void shorten(size_t count) { unread_.resize(std::min(unread_.size(), count * width_)); }
  void clear() { unread_.clear(); }

  // Returns the hidden states at `places` of each of these rows, [rows, places * width].
  static Floats at(std::span<const float> rows, size_t row_width, std::span<const int64_t> places, size_t taps) {
    const size_t width = row_width / taps;
    Floats taken;
    taken.reserve(rows.size() / taps * places.size());
    for (size_t row = 0; row + row_width <= rows.size(); row += row_width) {
      for (const int64_t place : places) {
        const auto tapped = rows.subspan(row + static_cast<size_t>(place) * width, width);
        taken.insert(taken.end(), tapped.begin(), tapped.end());
      }
    }
    return taken;
  }

 private:
  bool kept_ = false;
  size_t width_ = 0;
  Floats last_, unread_;
};

}  // namespace hybridge

#endif
