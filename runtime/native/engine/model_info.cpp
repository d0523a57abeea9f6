#include "engine/model_info.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace hybridge {

size_t size_of(Type type) {
  switch (type) {
    case Type::int64: return 8;
    case Type::float32: return 4;
    case Type::float16: return 2;
    default: return 1;
  }
}

size_t Array::count() const {
  return std::accumulate(shape.begin(), shape.end(), size_t(1), [](size_t all, int64_t n) {
    return all * static_cast<size_t>(n);
  });
}

Array input(const Numbers& values, Shape shape) {
  return {Type::int64, std::move(shape), const_cast<int64_t*>(values.data())};
}

Array input(const Floats& values, Shape shape) {
  return {Type::float32, std::move(shape), const_cast<float*>(values.data())};
}

std::optional<Encoder> Encoder::read(const std::vector<int64_t>& numbers, const std::vector<int64_t>& form) {
  if (numbers.size() < 5 || (!form.empty() && form.size() != 3 && form.size() != 5 && form.size() != 6))
    return std::nullopt;
  Encoder encoder{numbers[0], numbers[1], numbers[2], numbers[3], {numbers.begin() + 4, numbers.end()}};
  if (!form.empty())
    std::tie(encoder.axes, encoder.has_corners, encoder.has_rope) = std::tuple(form[0], form[1] != 0, form[2] != 0);
  if (form.size() > 3) std::tie(encoder.has_table, encoder.is_bidirectional) = std::tuple(form[3] != 0, form[4] != 0);
  encoder.is_square = form.size() > 5 && form[5] != 0;
  return encoder;
}

bool Encoder::is_sane(int64_t vocab_size) const {
  const auto within = [](int64_t value, int64_t highest) { return 1 <= value && value <= highest; };
  return (axes == 1 || axes == 3) && within(patch, 64) && within(merge, 8) &&
         within(side, has_table ? 4096 * 8 : 256) && 0 <= placeholder && placeholder < vocab_size && !budgets.empty() &&
         std::is_sorted(budgets.begin(), budgets.end()) && within(budgets.front(), 4096) &&
         within(budgets.back(), 4096) &&
         (!has_table ||
          (has_rope && (is_square ? budgets.back() * merge * merge <= side * side : budgets.back() * merge <= side)));
}

int64_t ModelInfo::longest_block() const {
  return std::max({prefill_chunk, verify_len(), encoder ? encoder->rows(prefill_chunk) : 0});
}

bool ModelInfo::are_sane() const {
  const auto within = [](int64_t value, int64_t lowest, int64_t highest) {
    return lowest <= value && value <= highest;
  };
  const auto is_tapped = [&](int64_t place) { return 0 <= place && place < taps; };
  const auto ascends = [](const auto& numbers) { return std::is_sorted(numbers.begin(), numbers.end()); };
  const bool has_sizes = within(max_seq_len, 1, 1 << 20) && within(vocab_size, 1, int64_t(1) << 31) &&
                         within(prefill_chunk, 1, 4096) && within(snapshot_slots, 0, 1024) && !verify_lens.empty() &&
                         within(verify_lens.front(), 1, 512) && within(verify_lens.back(), 1, 512) &&
                         ascends(verify_lens);
  const bool drafts = draft_blocks.empty() || (2 <= draft_blocks.front() && draft_blocks.back() <= 512);
  return has_sizes && drafts && (!encoder || encoder->is_sane(vocab_size)) && ascends(draft_blocks) &&
         draft_blocks.empty() == draft_taps.empty() && within(taps, 0, 512) && draft_taps.size() <= 512 &&
         std::all_of(draft_taps.begin(), draft_taps.end(), is_tapped);
}

std::string longer_context(const ModelInfo& info, int64_t max_seq_len) {
  if (max_seq_len >= info.max_seq_len) return "export with a larger --max-seq-len";
  return "open the model with a larger context, up to " + std::to_string(info.max_seq_len);
}

}  // namespace hybridge
