// Drafting by prompt lookup: propose what followed the last time the text ended like this.
#ifndef HYBRIDGE_NATIVE_PROMPT_LOOKUP_H
#define HYBRIDGE_NATIVE_PROMPT_LOOKUP_H

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include <hybridge/drafter.h>
#include <hybridge/fnv1a.h>

namespace hybridge {

// Prompt-lookup decoding: n-grams over prompt and output, longest match and latest place first. Keeps an index that grows with
// the text, so that a proposal costs the same for a long text as for a short one. Learns how often matches of about one length
// were right, and gives that confidence with each proposal.
//
// Source: Saxena, "Prompt Lookup Decoding" (2023).
class PromptLookup final : public Drafter {
 public:
  bool is_cheap() const override { return true; }

  Proposal propose(std::span<const int64_t> text, size_t limit, Sampler&) override {
    follow(text);
    auto match = find(limit);
    learn();
    proposed_ = std::move(match);
    if (!proposed_) return {};
    Proposal proposal(proposed_->tokens);
    proposal.confidence = trust_in(proposed_->length).confidence();
    return proposal;
  }

 private:
  static constexpr size_t LONGEST = 8, SHORTEST = 3;
  static constexpr size_t LONGEST_COMPARED = 64;  // tokens of a match; longer ones are as good as certain

  // An earlier place that looks like the end of the text: tokens that came next there, how many before are the same, and where
  // the text ended then.
  struct Match {
    std::vector<int64_t> tokens;
    size_t length, at;
  };

  // The share of draft tokens after matches of about one length that were right; the last twenty or so count.
  struct Trust {
    double right, judged;

    explicit Trust(double at_first) : right(2 * at_first), judged(2) {}
    double confidence() const { return right / judged; }
    void judge(bool was_right) { right = 0.95 * right + was_right, judged = 0.95 * judged + 1; }
  };

  // Two n-grams with one hash would propose a wrong token, which is allowed.
  static uint64_t hash(std::span<const int64_t> ngram) { return fnv1a(ngram.data(), ngram.size_bytes()); }

  // Returns what followed the latest earlier occurrence of the longest known ending of the text.
  std::optional<Match> find(size_t limit) const {
    const std::span text(text_);
    for (size_t size = LONGEST; size >= SHORTEST; --size) {
      if (size >= text.size()) continue;
      const auto place = after_.find(hash(text.last(size)));
      if (place == after_.end()) continue;
      auto tokens = continued(text.subspan(place->second), limit);
      if (tokens.empty()) continue;
      return Match{std::move(tokens), match_length(place->second, size), text.size()};
    }
    return std::nullopt;
  }

  // If the text ends before `limit` tokens, it repeats itself, and so does the proposal. It ends before a row of a picture.
  static std::vector<int64_t> continued(std::span<const int64_t> found, size_t limit) {
    std::vector<int64_t> proposed;
    while (proposed.size() < limit && found[proposed.size() % found.size()] >= 0) proposed.push_back(found[proposed.size() % found.size()]);
    return proposed;
  }

  size_t match_length(size_t place, size_t known) const {
    size_t length = known;
    while (length < std::min(place, LONGEST_COMPARED) && text_[place - 1 - length] == text_[text_.size() - 1 - length]) ++length;
    return length;
  }

  // Matches of about the same length, by powers of two, are trusted alike.
  Trust& trust_in(size_t length) {
    const auto size = static_cast<int>(std::bit_width(length));
    return trust_.try_emplace(size, 1 - std::pow(0.5, size - 1)).first->second;
  }

  // Compares the last proposal with what came.
  void learn() {
    if (!proposed_) return;
    const auto& [tokens, length, at] = *proposed_;
    const size_t count = std::min(tokens.size(), text_.size() - at);
    for (size_t i = 0; i < count; ++i) {
      const bool right = tokens[i] == text_[at + i];
      trust_in(length).judge(right);
      if (!right) break;
    }
  }

  // Indexes every n-gram that is followed by something; the ending itself is not, yet.
  void follow(std::span<const int64_t> text) {
    const bool grew = text.size() >= text_.size() && std::equal(text_.begin(), text_.end(), text.begin());
    if (!grew) {
      text_.clear();
      after_.clear();
      proposed_.reset();
    }
    const size_t known = std::max<size_t>(text_.size(), 1);
    text_.insert(text_.end(), text.begin() + static_cast<ptrdiff_t>(text_.size()), text.end());
    for (size_t end = known; end < text.size(); ++end) {
      for (size_t size = SHORTEST; size <= std::min(LONGEST, end); ++size) after_[hash(text.subspan(end - size, size))] = end;
    }
  }

  std::vector<int64_t> text_;
  std::unordered_map<uint64_t, size_t> after_;  // where each n-gram's latest continuation begins
  std::map<int, Trust> trust_;
  std::optional<Match> proposed_;
};

}  // namespace hybridge

#endif
