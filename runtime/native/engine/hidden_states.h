// Hidden states that a program puts out beside its logits, for a drafter to read.
#ifndef HYBRIDGE_ENGINE_HIDDEN_STATES_H
#define HYBRIDGE_ENGINE_HIDDEN_STATES_H

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "engine/program.h"

namespace hybridge {

// Rows of `width` floats, of the last tokens of a text.
struct HiddenRows {
  Floats floats = {};
  size_t width = 0;

  // Returns whether the drafter in a program can read them with its next proposal, behind a text of `length` tokens.
  bool fits(const Facts& facts, size_t length) const {
    if (floats.empty()) return true;
    const size_t most = facts.has_drafter() ? std::min(length, static_cast<size_t>(facts.verify_len())) : 0;
    return width > 0 && width % static_cast<size_t>(facts.taps) == 0 && floats.size() % width == 0 &&
           floats.size() / width <= most;
  }
};

// Rows [taps * width] of floats, one for each token: those of the last call, and those of the text's last tokens that
// their reader has not read yet.
class HiddenStates {
 public:
  // Who reads those of committed tokens: the drafter in the program, or a drafter of the caller's.
  enum class Reader { nobody, drafter, caller };

  Reader reader() const { return reader_; }

  bool is_kept() const { return is_kept_; }

  // Keeps them for a reader from now on. With nobody, the drafter in the program can read later what it has not read,
  // as long as no token is committed meanwhile.
  void keep(Reader reader) {
    const bool are_old = reader == Reader::nobody ? reader_ == Reader::caller : reader == Reader::caller && !is_kept_;
    if (are_old) unread_.clear();
    is_kept_ = reader != Reader::nobody;
    if (is_kept_) reader_ = reader;
  }

  // Floats of a row; 0 before the first.
  size_t width() const { return width_; }
  size_t count() const { return width_ == 0 ? 0 : unread_.size() / width_; }
  std::span<const float> last() const { return last_; }
  std::span<const float> unread() const { return unread_; }

  // Takes the first `count` rows of a method's second output, float32 [1, tokens, taps * width], as those of the last
  // call; behind others of it where it went on.
  Status see(std::span<const Array> outputs, size_t count, bool goes_on) {
    if (!goes_on) last_.clear();
    const Array output = outputs.size() < 2 ? Array() : outputs[1];
    const float* first = output.real();
    if (first == nullptr || output.shape.size() != 3 || output.extent(1) < count) {
      return Status(
          HYBRIDGE_PROGRAM_FAILED, "the program gave no hidden states beside its logits, though it is to put them out"
      );
    }
    if (width_ != output.extent(2)) unread_.clear();
    width_ = output.extent(2);
    last_.insert(last_.end(), first, first + count * width_);
    return Status();
  }

  // The last call's first `count` tokens were committed.
  void add(size_t count) {
    const size_t size = std::min(count * width_, last_.size());
    keep_behind(std::span(last_).first(size));
  }

  // The last `count` tokens that were seen were committed.
  void add_last(size_t count) {
    const size_t size = std::min(count * width_, last_.size());
    keep_behind(std::span(last_).last(size));
  }

  // Takes rows of the text's last tokens that the drafter in the program has not read.
  void set_unread(const HiddenRows& rows) {
    unread_.clear();
    if (rows.floats.empty() || (is_kept_ && reader_ == Reader::caller) || (width_ > 0 && width_ != rows.width)) return;
    reader_ = Reader::drafter;
    unread_ = rows.floats;
    width_ = rows.width;
  }

  // Keeps the last row alone: the others were read.
  void keep_last() {
    unread_.erase(unread_.begin(), unread_.end() - static_cast<ptrdiff_t>(std::min(width_, unread_.size())));
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
  // Rows of tokens that nobody keeps leave a gap, behind which earlier ones are of no use.
  void keep_behind(std::span<const float> rows) {
    if (is_kept_) unread_.insert(unread_.end(), rows.begin(), rows.end());
    else unread_.clear();
  }

  Reader reader_ = Reader::nobody;
  bool is_kept_ = false;
  size_t width_ = 0;
  Floats last_, unread_;
};

}  // namespace hybridge

#endif
