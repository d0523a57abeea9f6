#include "engine/prompt_lookup.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/fnv1a.h"

namespace hybridge {

namespace {

constexpr size_t LONGEST_COMPARED = 64;  // tokens of a match; longer ones are as good as certain
constexpr size_t MOST_PLACES = 256;      // earlier places that are looked at

// If the text ends before `limit` tokens, it repeats itself, and so does the proposal. It ends before a row of a
// picture.
std::vector<int64_t> continued(std::span<const int64_t> found, size_t limit) {
  std::vector<int64_t> proposed;
  for (size_t i = 0; i < limit && found[i % found.size()] >= 0; ++i) proposed.push_back(found[i % found.size()]);
  return proposed;
}

}  // namespace

Proposal PromptLookup::propose(std::span<const int64_t> text, size_t limit, Sampler&) {
  follow(text);
  auto match = find(limit);
  learn();
  proposed_ = std::move(match);
  if (!proposed_) return {};
  Proposal proposal(proposed_->tokens);
  proposal.confidence = trust_in(proposed_->length).confidence();
  return proposal;
}

std::optional<PromptLookup::Match> PromptLookup::find(size_t limit) const {
  size_t best = 0, found = 0, looked = 0;
  for (size_t place = latest(); place > 0 && best < LONGEST && looked < MOST_PLACES; place = before_[place], ++looked) {
    const size_t length = match_length(place, LONGEST);
    // A shorter match is another n-gram with the same hash; no row of a picture can be proposed.
    if (length >= SHORTEST && length > best && text_[place] >= 0) best = length, found = place;
  }
  if (best == 0) return std::nullopt;
  return Match{continued(std::span(text_).subspan(found), limit), match_length(found, LONGEST_COMPARED), text_.size()};
}

size_t PromptLookup::match_length(size_t place, size_t most) const {
  size_t length = 0;
  while (length < std::min(place, most) && text_[place - 1 - length] == text_[text_.size() - 1 - length]) ++length;
  return length;
}

std::array<PromptLookup::Trust, 8> PromptLookup::first_trust() {
  std::array<Trust, 8> trust;
  for (size_t size = 0; size < trust.size(); ++size)
    trust[size] = {2 * (1 - std::pow(0.5, static_cast<double>(size) - 1)), 2};
  return trust;
}

void PromptLookup::learn() {
  if (!proposed_) return;
  const auto& [tokens, length, at] = *proposed_;
  const size_t count = std::min(tokens.size(), text_.size() - at);
  for (size_t i = 0; i < count; ++i) {
    const bool right = tokens[i] == text_[at + i];
    trust_in(length).judge(right);
    if (!right) break;
  }
}

void PromptLookup::follow(std::span<const int64_t> text) {
  const bool is_checked = !std::exchange(is_new_, false);
  const bool grew = text.size() >= text_.size() && (is_checked || std::equal(text_.begin(), text_.end(), text.begin()));
  if (!grew) {
    text_.clear();
    before_.clear();
    latest_.assign(latest_.size(), 0);
    proposed_.reset();
  }
  for (const int64_t token : text.subspan(text_.size())) add(token);
}

void PromptLookup::add(int64_t token) {
  const size_t place = text_.size();
  if (place >= latest_.size()) index_again(2 * latest_.size());
  before_.push_back(place < SHORTEST ? 0 : std::exchange(latest_[slot(place)], place));
  text_.push_back(token);
}

void PromptLookup::index_again(size_t slots) {
  latest_.assign(slots, 0);
  for (size_t place = SHORTEST; place < text_.size(); ++place)
    before_[place] = std::exchange(latest_[slot(place)], place);
}

size_t PromptLookup::slot(size_t place) const {
  return fnv1a(text_.data() + place - SHORTEST, SHORTEST * sizeof(int64_t)) & (latest_.size() - 1);
}

}  // namespace hybridge
