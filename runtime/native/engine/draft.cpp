#include "engine/draft.h"

#include <algorithm>
#include <string>
#include <utility>

namespace hybridge {

namespace {

Status wrong_draft() {
  return Status(
      HYBRIDGE_PROGRAM_FAILED, "the program's drafter answered in another form than it must; export the model again"
  );
}

// Returns the draft tokens of a call, truncated at the first token id outside the vocabulary; a refusal is one.
Result<Drafted> drafted(std::span<const Array> outputs, size_t limit, int64_t vocab_size) {
  if (outputs.size() < 2) return wrong_draft();
  const Array &tokens = outputs[0], &confidences = outputs[1];
  const bool fits = tokens.type == Type::int64 && confidences.type == Type::float32 &&
                    confidences.count() == tokens.count();
  if (!fits) return wrong_draft();
  const std::span given(static_cast<const int64_t*>(tokens.data), std::min(tokens.count(), limit));
  const auto is_known = [vocab_size](int64_t token) { return 0 <= token && token < vocab_size; };
  const auto count = std::find_if_not(given.begin(), given.end(), is_known) - given.begin();
  const auto* estimates = static_cast<const float*>(confidences.data);
  return Drafted{{given.begin(), given.begin() + count}, {estimates, estimates + count}};
}

// `size` pairs: those of rows [n, width] and the tokens after them from `begin` to `end`, and padding.
std::pair<Floats, Numbers> padded_pairs(
    std::span<const float> rows, std::span<const int64_t> following, size_t begin, size_t end, size_t size
) {
  const size_t width = rows.size() / following.size();
  const auto mine = rows.subspan(begin * width, (end - begin) * width);
  const auto tokens = following.subspan(begin, end - begin);
  std::pair<Floats, Numbers> pairs({mine.begin(), mine.end()}, {tokens.begin(), tokens.end()});
  pairs.first.resize(size * width, 0.0f);
  pairs.second.resize(size, 0);
  return pairs;
}

// One number for each draft token that a method gives.
Numbers padded_noise(const std::optional<Draws>& draws, size_t count) {
  Numbers noise;
  if (draws) noise.assign(draws->noise.begin(), draws->noise.end());
  noise.resize(count, 0);
  return noise;
}

}  // namespace

Status read_pairs(
    const ModelInfo& info, const CallMethod& call, std::span<const float> rows, std::span<const int64_t> following
) {
  const auto chunk = static_cast<size_t>(info.prefill_chunk);
  for (size_t begin = 0; begin < following.size(); begin += chunk) {
    const size_t end = std::min(begin + chunk, following.size());
    const auto [floats, ids] = padded_pairs(rows, following, begin, end, chunk);
    const auto size = static_cast<int64_t>(chunk), read = static_cast<int64_t>(end - begin);
    const auto width = static_cast<int64_t>(rows.size() / following.size());
    HYBRIDGE_TRY(call("draft_prefill", {input(floats, {1, size, width}), input(ids, {1, size}), number(read)}));
  }
  return Status();
}

Result<Drafted> draft(
    const ModelInfo& info, const CallMethod& call, std::span<const float> rows, std::span<const int64_t> following,
    size_t limit, const std::optional<Draws>& draws
) {
  const auto last = static_cast<size_t>(info.verify_len());
  const auto width = static_cast<int64_t>(rows.size() / following.size());
  const size_t begin = following.size() - std::min(following.size(), last);
  HYBRIDGE_TRY(read_pairs(info, call, rows.first(begin * static_cast<size_t>(width)), following.first(begin)));
  const auto enough = std::lower_bound(
      info.draft_blocks.begin(), info.draft_blocks.end(), static_cast<int64_t>(limit) + 1
  );
  const int64_t block = enough == info.draft_blocks.end() ? info.draft_blocks.back() : *enough;
  const std::string name = block == info.draft_blocks.back() ? "draft" : "draft_" + std::to_string(block);
  const auto [floats, ids] = padded_pairs(rows, following, begin, following.size(), last);
  const auto size = static_cast<int64_t>(last), count = static_cast<int64_t>(following.size() - begin);
  const Array hidden = input(floats, {1, size, width}), tokens = input(ids, {1, size});
  const Numbers noise = padded_noise(draws, static_cast<size_t>(block) - 1);
  const Floats temperature = {draws ? static_cast<float>(draws->temperature) : 0.0f};
  const auto answer = info.draft_samples ? call(
                                               name, {hidden, tokens, number(count), input(noise, {1, block - 1}),
                                                      input(temperature, {1})}
                                           )
                                         : call(name, {hidden, tokens, number(count)});
  if (!answer.ok()) return answer.status();
  return drafted(*answer, limit, info.vocab_size);
}

}  // namespace hybridge
