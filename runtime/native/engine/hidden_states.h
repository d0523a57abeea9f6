// Hidden states that a program puts out beside its logits, for a drafter to read.
#ifndef HYBRIDGE_ENGINE_HIDDEN_STATES_H
#define HYBRIDGE_ENGINE_HIDDEN_STATES_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/model_info.h"
#include "engine/status.h"

namespace hybridge {

// Rows of `width` floats, of the last tokens of a text.
struct HiddenRows {
  Floats floats = {};
  size_t width = 0;

  // Returns whether the drafter in a program can read them with its next proposal, after a text of `length` tokens.
  bool fits(const ModelInfo& info, size_t length) const;
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
  void keep(Reader reader);

  // Floats of a row; 0 before the first.
  size_t width() const { return width_; }
  size_t count() const { return width_ == 0 ? 0 : unread_.size() / width_; }
  std::span<const float> last() const { return last_; }
  std::span<const float> unread() const { return unread_; }

  // Takes the first `count` rows of a method's second output, float32 [1, tokens, taps * width], as those of the last
  // call; after others of it where it went on.
  Status see(std::span<const Array> outputs, size_t count, bool goes_on);

  // The last call's first `count` tokens were committed.
  void add(size_t count);

  // The last `count` tokens that were seen were committed.
  void add_last(size_t count);

  // Takes rows of the text's last tokens that the drafter in the program has not read.
  void set_unread(const HiddenRows& rows);

  // Keeps the last row alone: the others were read.
  void keep_last();

  void shorten(size_t count) { unread_.resize(std::min(unread_.size(), count * width_)); }
  void clear() { unread_.clear(); }

  // Returns the hidden states at `places` of each of these rows, [rows, places * width].
  static Floats at(std::span<const float> rows, size_t row_width, std::span<const int64_t> places, size_t taps);

 private:
  // Rows of tokens that nobody keeps leave a gap, after which earlier ones are of no use.
  void keep_after(std::span<const float> rows);

  Reader reader_ = Reader::nobody;
  bool is_kept_ = false;
  size_t width_ = 0;
  Floats last_, unread_;
};

}  // namespace hybridge

#endif
