// Runs the methods of the drafter inside a program: pairs in, draft tokens out. docs/artifact.md has the methods.
#ifndef HYBRIDGE_NATIVE_DRAFT_H
#define HYBRIDGE_NATIVE_DRAFT_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hybridge/model.h>

namespace hybridge {

// Draft tokens, none where the drafter's context is full, and its own estimate that each is right if those before it are.
struct Drafted {
  std::vector<int64_t> tokens;
  std::vector<float> chances;
};

// What one call answers, up to the first token that the model does not know; a refusal is one.
inline Result<Drafted> drafted(const Methods::Method& method, size_t limit, int64_t vocab_size) {
  if (method.outputs_size() < 2) return Error::InvalidProgram;
  const auto &tokens = method.get_output(0).toTensor(), &chances = method.get_output(1).toTensor();
  const bool fits = tokens.scalar_type() == executorch::aten::ScalarType::Long &&
                    chances.scalar_type() == executorch::aten::ScalarType::Float && chances.numel() == tokens.numel();
  if (!fits) return Error::InvalidProgram;
  const std::span given(tokens.const_data_ptr<int64_t>(), std::min(static_cast<size_t>(tokens.numel()), limit));
  const auto is_known = [vocab_size](int64_t token) { return 0 <= token && token < vocab_size; };
  const auto count = std::find_if_not(given.begin(), given.end(), is_known) - given.begin();
  const float* estimates = chances.const_data_ptr<float>();
  return Drafted{{given.begin(), given.begin() + count}, {estimates, estimates + count}};
}

// `size` pairs: those of rows [n, width] and the tokens after them from `begin` to `end`, and padding.
inline std::pair<std::vector<float>, Methods::Numbers> padded_pairs(
    std::span<const float> rows, std::span<const int64_t> following, size_t begin, size_t end, size_t size) {
  const size_t width = rows.size() / following.size();
  const auto mine = rows.subspan(begin * width, (end - begin) * width);
  const auto tokens = following.subspan(begin, end - begin);
  std::pair<std::vector<float>, Methods::Numbers> pairs({mine.begin(), mine.end()}, {tokens.begin(), tokens.end()});
  pairs.first.resize(size * width, 0.0f);
  pairs.second.resize(size, 0);
  return pairs;
}

// Lets the drafter read rows of hidden states [n, width] and the token after each, n ≥ 1, and propose at most `limit` ≥ 1
// tokens behind the last one, its best. call(name, inputs) runs a method.
template <typename Call>
Result<Drafted> draft(
    const Facts& facts, Call call, std::span<const float> rows, std::span<const int64_t> following, size_t limit) {
  const auto last = static_cast<size_t>(facts.verify_len()), chunk = static_cast<size_t>(facts.prefill_chunk);
  size_t begin = 0;
  while (following.size() - begin > last) {
    const size_t end = std::min(begin + chunk, following.size() - last);
    const auto [floats, ids] = padded_pairs(rows, following, begin, end, chunk);
    ET_UNWRAP(call("draft_prefill", {floats, ids, Methods::Numbers{static_cast<int64_t>(end - begin)}}));
    begin = end;
  }
  const auto enough = std::lower_bound(facts.draft_blocks.begin(), facts.draft_blocks.end(), static_cast<int64_t>(limit) + 1);
  const int64_t block = enough == facts.draft_blocks.end() ? facts.draft_blocks.back() : *enough;
  const std::string name = block == facts.draft_blocks.back() ? "draft" : "draft_" + std::to_string(block);
  const auto [floats, ids] = padded_pairs(rows, following, begin, following.size(), last);
  const Methods::Numbers count = {static_cast<int64_t>(following.size() - begin)};
  const std::vector<float> noise(static_cast<size_t>(block) - 1), temperature = {0.0f};
  const auto answer = facts.draft_samples ? call(name, {floats, ids, count, noise, temperature})
                                          : call(name, {floats, ids, count});
  if (!answer.ok()) return answer.error();
  return drafted(**answer, limit, facts.vocab_size);
}

}  // namespace hybridge

#endif
