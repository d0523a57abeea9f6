// Hidden states of committed tokens that a drafter has not read yet.
#ifndef HYBRIDGE_NATIVE_HIDDEN_STATES_H
#define HYBRIDGE_NATIVE_HIDDEN_STATES_H

#include <executorch/runtime/executor/method.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace hybridge {

// Rows [taps * width] of floats, one for each token; nothing while they are not kept.
class HiddenStates {
 public:
  bool is_kept() const { return kept_; }

  void keep(bool wanted) {
    kept_ = wanted;
    clear();
  }

  size_t count() const { return size_ == 0 ? 0 : unread_.size() / size_; }

  // Looks at a method's second output, float32 [1, tokens, taps * width]; a view that its next call ends.
  executorch::runtime::Error see(const executorch::runtime::Method& method) {
    if (method.outputs_size() < 2) return executorch::runtime::Error::InvalidProgram;
    const auto& output = method.get_output(1).toTensor();
    const bool fits = output.scalar_type() == executorch::aten::ScalarType::Float && output.dim() == 3 && output.size(2) > 0;
    if (!fits) return executorch::runtime::Error::InvalidProgram;
    size_ = static_cast<size_t>(output.size(2));
    seen_ = {output.const_data_ptr<float>(), static_cast<size_t>(output.numel())};
    return executorch::runtime::Error::Ok;
  }

  // The first `count` rows of what was seen last.
  std::vector<float> rows(size_t count) {
    if (!kept_) return {};
    const auto seen = std::exchange(seen_, {});
    const auto wanted = seen.first(std::min(count * size_, seen.size()));
    return {wanted.begin(), wanted.end()};
  }

  // Adds the first `count` of these rows: their tokens were committed.
  void add(const std::vector<float>& rows, size_t count) {
    const auto committed = std::span(rows).first(std::min(count * size_, rows.size()));
    if (kept_) unread_.insert(unread_.end(), committed.begin(), committed.end());
  }

  void shorten(size_t count) { unread_.resize(std::min(unread_.size(), count * size_)); }
  void clear() { unread_.clear(); }

  // Hands over all rows, of each the hidden states at `places`, [count, places * width].
  std::vector<float> take(std::span<const int64_t> places, size_t taps) {
    const size_t width = size_ / taps;
    std::vector<float> taken;
    taken.reserve(count() * places.size() * width);
    for (size_t row = 0; row < count(); ++row) {
      for (const int64_t place : places) {
        const auto begin = unread_.begin() + static_cast<ptrdiff_t>(row * size_ + static_cast<size_t>(place) * width);
        taken.insert(taken.end(), begin, begin + static_cast<ptrdiff_t>(width));
      }
    }
    clear();
    return taken;
  }

 private:
  bool kept_ = false;
  size_t size_ = 0;
  std::span<const float> seen_;
  std::vector<float> unread_;
};

}  // namespace hybridge

#endif
