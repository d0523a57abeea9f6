// Drafting by prompt lookup: propose what followed the last time the text ended like this.
#ifndef HYBRIDGE_NATIVE_PROMPT_LOOKUP_H
#define HYBRIDGE_NATIVE_PROMPT_LOOKUP_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include <hybridge/drafter.h>
#include <hybridge/fnv1a.h>

namespace hybridge {

// Prompt-lookup decoding: n-grams over prompt and output, longest match and latest place first. Keeps an index that grows with
// the text, so that a proposal costs the same for a long text as for a short one.
//
// Source: Saxena, "Prompt Lookup Decoding" (2023).
class PromptLookup {
 public:
  std::vector<int64_t> propose(std::span<const int64_t> text, size_t limit) {
    follow(text);
    for (size_t size = LONGEST; size >= SHORTEST; --size) {
      if (size >= text.size()) continue;
      const auto place = after_.find(hash(text.last(size)));
      if (place != after_.end()) return continued(text.subspan(place->second), limit);
    }
    return {};
  }

 private:
  static constexpr size_t LONGEST = 8, SHORTEST = 3;

  // Two n-grams with one hash would propose a wrong token, which is allowed.
  static uint64_t hash(std::span<const int64_t> ngram) { return fnv1a(ngram.data(), ngram.size_bytes()); }

  // Where the text ends before `limit` tokens, it repeats itself and so does the proposal.
  static std::vector<int64_t> continued(std::span<const int64_t> found, size_t limit) {
    std::vector<int64_t> proposed;
    while (proposed.size() < limit) proposed.push_back(found[proposed.size() % found.size()]);
    return proposed;
  }

  // Indexes every n-gram that is followed by something; the ending itself is not, yet.
  void follow(std::span<const int64_t> text) {
    const bool grew = text.size() >= text_.size() && std::equal(text_.begin(), text_.end(), text.begin());
    if (!grew) {
      text_.clear();
      after_.clear();
    }
    const size_t known = std::max<size_t>(text_.size(), 1);
    text_.insert(text_.end(), text.begin() + static_cast<ptrdiff_t>(text_.size()), text.end());
    for (size_t end = known; end < text.size(); ++end) {
      for (size_t size = SHORTEST; size <= std::min(LONGEST, end); ++size) after_[hash(text.subspan(end - size, size))] = end;
    }
  }

  std::vector<int64_t> text_;
  std::unordered_map<uint64_t, size_t> after_;  // where each n-gram's latest continuation begins
};

}  // namespace hybridge

#endif
