// Drafting by prompt lookup: propose what followed the last time the text ended like this.
#ifndef HYBRIDGE_ENGINE_PROMPT_LOOKUP_H
#define HYBRIDGE_ENGINE_PROMPT_LOOKUP_H

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/drafter.h"
#include "engine/sampling.h"

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

  Proposal propose(std::span<const int64_t> text, size_t limit, Sampler&) override;

 private:
  static constexpr size_t LONGEST = 8, SHORTEST = 3;

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
  std::optional<Match> find(size_t limit) const;

  // Returns how many tokens before `place` are those at the end of the text, as far as `most`.
  size_t match_length(size_t place, size_t most) const;

  // Matches of about the same length, by powers of two, are trusted alike.
  Trust& trust_in(size_t length) { return trust_[static_cast<size_t>(std::bit_width(length))]; }

  static std::array<Trust, 8> first_trust();

  // Compares the last proposal with what came.
  void learn();

  // Indexes what came since the last call; if a generation begins with another text, all of it.
  void follow(std::span<const int64_t> text);

  // Adds a token, and the place before it to the places after the n-gram that ends there.
  void add(int64_t token);

  void index_again(size_t slots);

  // Returns the latest place after an n-gram like the text's last one; 0 for none.
  size_t latest() const { return text_.size() < SHORTEST ? 0 : latest_[slot(text_.size())]; }

  // Returns the slot of the n-gram before a place. Two n-grams in one slot are told apart by their tokens.
  size_t slot(size_t place) const;

  bool is_new_ = true;
  std::vector<int64_t> text_;
  std::vector<size_t> before_;                              // by place: the place before it in the same slot, or 0
  std::vector<size_t> latest_ = std::vector<size_t>(1024);  // by slot: its latest place, or 0
  std::array<Trust, 8> trust_ = first_trust();              // by the bits of a match's length
  std::optional<Match> proposed_;
};

}  // namespace hybridge

#endif
