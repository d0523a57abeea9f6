// Runs the methods of the drafter inside a program: pairs in, draft tokens out. docs/artifact.md has the methods.
#ifndef HYBRIDGE_NATIVE_DRAFT_H
#define HYBRIDGE_NATIVE_DRAFT_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hybridge/model.h>

namespace hybridge {

// How draft tokens are drawn: by noise in [0, 1), one number for each of them, from softmax(scores / temperature).
struct Draws {
  std::vector<double> noise;
  double temperature;
};

// Draft tokens, none where the drafter's context is full, and its own estimate that each is right if those before it are.
// scores [n, width], where they were drawn: what each was chosen by; candidates [n, width], or [width] where they are the same for
// all: the tokens that these are of, or none for all of the vocabulary.
struct Drafted {
  std::vector<int64_t> tokens;
  std::vector<float> chances, scores = {};
  std::vector<int64_t> candidates = {};
};

// Adds the tokens that `width` scores are of, the same for each draft token or others.
inline Error add_candidates(Drafted& drafted, const executorch::aten::Tensor& candidates, size_t width, int64_t vocab_size) {
  const auto given = static_cast<size_t>(candidates.numel());
  const size_t wanted = given == width ? width : drafted.tokens.size() * width;
  if (candidates.scalar_type() != executorch::aten::ScalarType::Long || given < wanted) return Error::InvalidProgram;
  const std::span tokens(candidates.const_data_ptr<int64_t>(), wanted);
  drafted.candidates.assign(tokens.begin(), tokens.end());
  const auto is_known = [vocab_size](int64_t token) { return 0 <= token && token < vocab_size; };
  return std::all_of(tokens.begin(), tokens.end(), is_known) ? Error::Ok : Error::InvalidProgram;
}

// Adds the scores of a call that drew its tokens.
inline Error add_scores(Drafted& drafted, const Methods::Method& method, int64_t vocab_size) {
  if (method.outputs_size() < 3) return Error::InvalidProgram;
  const auto &tokens = method.get_output(0).toTensor(), &scores = method.get_output(2).toTensor();
  if (scores.scalar_type() != executorch::aten::ScalarType::Float || scores.numel() < tokens.numel()) return Error::InvalidProgram;
  const size_t count = drafted.tokens.size(), width = count > 0 ? static_cast<size_t>(scores.numel() / tokens.numel()) : 0;
  const float* first = scores.const_data_ptr<float>();
  drafted.scores.assign(first, first + count * width);
  if (method.outputs_size() > 3) return add_candidates(drafted, method.get_output(3).toTensor(), width, vocab_size);
  return count == 0 || width == static_cast<size_t>(vocab_size) ? Error::Ok : Error::InvalidProgram;
}

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

// One number for each draft token that a method gives.
inline std::vector<float> padded_noise(const std::optional<Draws>& draws, size_t count) {
  std::vector<float> noise;
  if (draws) noise.assign(draws->noise.begin(), draws->noise.end());
  noise.resize(count, 0.0f);
  return noise;
}

// Lets the drafter read rows of hidden states [n, width] and the token after each, n ≥ 1, and propose at most `limit` ≥ 1
// tokens behind the last one: its best, or drawn by a drafter that can. call(name, inputs) runs a method.
template <typename Call>
Result<Drafted> draft(
    const Facts& facts, Call call, std::span<const float> rows, std::span<const int64_t> following, size_t limit,
    const std::optional<Draws>& draws = std::nullopt) {
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
  const std::vector<float> noise = padded_noise(draws, static_cast<size_t>(block) - 1);
  const std::vector<float> temperature = {draws ? static_cast<float>(draws->temperature) : 0.0f};
  const auto answer = facts.draft_samples ? call(name, {floats, ids, count, noise, temperature})
                                          : call(name, {floats, ids, count});
  if (!answer.ok()) return answer.error();
  auto found = drafted(**answer, limit, facts.vocab_size);
  if (found.ok() && draws && facts.draft_samples) ET_CHECK_OK_OR_RETURN_ERROR(add_scores(*found, **answer, facts.vocab_size));
  return found;
}

}  // namespace hybridge

#endif
