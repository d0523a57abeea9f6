// Drafting by prompt lookup: propose what followed the last time the text ended like this.
#ifndef HYBRIDGE_ENGINE_PROMPT_LOOKUP_H
#define HYBRIDGE_ENGINE_PROMPT_LOOKUP_H

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/drafter.h"
#include "engine/fnv1a.h"

namespace hybridge {

// Prompt-lookup decoding: the longest earlier match of the text's end, of 3 to 8 tokens, at its latest place. Keeps an
// index that grows with the text, so that a proposal costs about the same for a long text as for a short one. Learns
// how often matches of about one length were right, and gives that confidence with each proposal.
//
// Source: Saxena, "Prompt Lookup Decoding" (2023).
class PromptLookup final : public Drafter {
 public:
  bool is_cheap() const override { return true; }
  void begin() override { is_new_ = true; }

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
  static constexpr size_t MOST_PLACES = 256;      // earlier places that are looked at

  // An earlier place that looks like the end of the text: tokens that came next there, how many before are the same,
  // and where the text ended then.
  struct Match {
    std::vector<int64_t> tokens;
    size_t length, at;
  };

  // The share of draft tokens after matches of about one length that were right; the last twenty or so count.
  struct Trust {
    double right, judged;

    double confidence() const { return right / judged; }
    void judge(bool was_right) { right = 0.95 * right + was_right, judged = 0.95 * judged + 1; }
  };

  // Returns what followed the latest earlier occurrence of the longest known ending of the text.
  std::optional<Match> find(size_t limit) const {
    size_t best = 0, found = 0, looked = 0;
    for (size_t place = latest(); place > 0 && best < LONGEST && looked < MOST_PLACES;
         place = before_[place], ++looked) {
      const size_t length = match_length(place, LONGEST);
      // A shorter match is another n-gram with the same hash; no row of a picture can be proposed.
      if (length >= SHORTEST && length > best && text_[place] >= 0) best = length, found = place;
    }
    if (best == 0) return std::nullopt;
    return Match{
        continued(std::span(text_).subspan(found), limit), match_length(found, LONGEST_COMPARED), text_.size()
    };
  }

  // If the text ends before `limit` tokens, it repeats itself, and so does the proposal. It ends before a row of a
  // picture.
  static std::vector<int64_t> continued(std::span<const int64_t> found, size_t limit) {
    std::vector<int64_t> proposed;
    for (size_t i = 0; i < limit && found[i % found.size()] >= 0; ++i) proposed.push_back(found[i % found.size()]);
    return proposed;
  }

  // Returns how many tokens before `place` are those at the end of the text, as far as `most`.
  size_t match_length(size_t place, size_t most) const {
    size_t length = 0;
    while (length < std::min(place, most) && text_[place - 1 - length] == text_[text_.size() - 1 - length]) ++length;
    return length;
  }

  // Matches of about the same length, by powers of two, are trusted alike.
  Trust& trust_in(size_t length) { return trust_[static_cast<size_t>(std::bit_width(length))]; }

  static std::array<Trust, 8> first_trust() {
    std::array<Trust, 8> trust;
    for (size_t size = 0; size < trust.size(); ++size)
      trust[size] = {2 * (1 - std::pow(0.5, static_cast<double>(size) - 1)), 2};
    return trust;
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

  // Indexes what came since the last call; if a generation begins with another text, all of it.
  void follow(std::span<const int64_t> text) {
    const bool is_checked = !std::exchange(is_new_, false);
    const bool grew = text.size() >= text_.size() &&
                      (is_checked || std::equal(text_.begin(), text_.end(), text.begin()));
    if (!grew) {
      text_.clear();
      before_.clear();
      latest_.assign(latest_.size(), 0);
      proposed_.reset();
    }
    for (const int64_t token : text.subspan(text_.size())) add(token);
  }

  // Adds a token, and the place before it to the places behind the n-gram that ends there.
  void add(int64_t token) {
    const size_t place = text_.size();
    if (place >= latest_.size()) index_again(2 * latest_.size());
    before_.push_back(place < SHORTEST ? 0 : std::exchange(latest_[slot(place)], place));
    text_.push_back(token);
  }

  void index_again(size_t slots) {
    latest_.assign(slots, 0);
    for (size_t place = SHORTEST; place < text_.size(); ++place)
      before_[place] = std::exchange(latest_[slot(place)], place);
  }

  // Returns the latest place behind an n-gram like the text's last one; 0 for none.
  size_t latest() const { return text_.size() < SHORTEST ? 0 : latest_[slot(text_.size())]; }

  // Returns the slot of the n-gram before a place. Two n-grams in one slot are told apart by their tokens.
  size_t slot(size_t place) const {
    return fnv1a(text_.data() + place - SHORTEST, SHORTEST * sizeof(int64_t)) & (latest_.size() - 1);
  }

  bool is_new_ = true;
  std::vector<int64_t> text_;
  std::vector<size_t> before_;                              // by place: the place before it in the same slot, or 0
  std::vector<size_t> latest_ = std::vector<size_t>(1024);  // by slot: its latest place, or 0
  std::array<Trust, 8> trust_ = first_trust();              // by the bits of a match's length
  std::optional<Match> proposed_;
};

}  // namespace hybridge

#endif
