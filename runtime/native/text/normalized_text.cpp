#include "normalized_text.h"

#include <algorithm>

namespace hybridge::text {

// NFKD makes 11 bytes of one at most, and a byte-level alphabet 2; the rest is room for what is put in front of a word.
constexpr size_t MOST_GROWTH = 32, ROOM = 64;

NormalizedText::NormalizedText(std::string_view original, Work& work, uint32_t start)
    : work_(&work), text_(original), start_(start), most_(original.size() * MOST_GROWTH + 16 * ROOM) {
  spans_.reserve(text_.size());
  for (size_t place = 0; place < text_.size();) {
    const size_t length = length_of(text_[place]);
    const auto begin = static_cast<uint32_t>(start + place);
    spans_.insert(spans_.end(), length, Span{begin, static_cast<uint32_t>(begin + length)});
    place += length;
  }
}

Span NormalizedText::original(size_t begin, size_t end) const {
  end = std::min(end, spans_.size());
  if (begin < end) return {spans_[begin].begin, spans_[end - 1].end};
  const uint32_t place = begin < spans_.size() ? spans_[begin].begin : spans_.empty() ? start_ : spans_.back().end;
  return {place, place};
}

void NormalizedText::check_growth(size_t size) const {
  if (size > most_) throw TextError("the tokenizer makes a text of this one that is too long");
}

NormalizedText NormalizedText::slice(size_t begin, size_t end) const {
  NormalizedText part(work_);
  part.most_ = (end - begin) * std::max<size_t>(most_ / std::max<size_t>(text_.size(), 1), 1) + ROOM;
  part.text_ = text_.substr(begin, end - begin);
  part.spans_.assign(spans_.begin() + static_cast<ptrdiff_t>(begin), spans_.begin() + static_cast<ptrdiff_t>(end));
  part.start_ = original(begin, end).begin;
  return part;
}

void NormalizedText::transform(const std::vector<Change>& changes, size_t skipped) {
  size_t place = 0;  // after what of the old text is dealt with
  const auto skip = [&](size_t count) {
    while (count-- > 0 && place < text_.size()) place += length_of(text_[place]);
  };
  std::string text;
  std::vector<Span> spans;
  text.reserve(text_.size());
  spans.reserve(text_.size());
  skip(skipped);
  for (const auto& [character, change] : changes) {
    const bool added = change > 0 || place >= text_.size();
    const Span span = !added ? spans_[place] : place == 0 ? Span{start_, start_} : spans_[place - 1];
    if (change <= 0) skip(1 + static_cast<size_t>(-change));
    append(text, character);
    spans.resize(text.size(), span);
  }
  check_growth(text.size());
  text_ = std::move(text);
  spans_ = std::move(spans);
}

void NormalizedText::filter(const std::function<bool(char32_t)>& keep) {
  std::vector<Change> changes;
  size_t leading = 0;
  for (size_t place = 0; place < text_.size(); place += length_of(text_[place])) {
    const char32_t character = character_at(text_, place);
    if (keep(character)) changes.emplace_back(character, 0);
    else if (changes.empty()) leading++;
    else changes.back().second--;
  }
  transform(changes, leading);
}

void NormalizedText::map(const std::function<char32_t(char32_t)>& change) {
  std::vector<Change> changes;
  for (const char32_t character : to_utf32(text_)) changes.emplace_back(change(character), 0);
  transform(changes);
}

void NormalizedText::lower() {
  std::vector<Change> changes;
  for (const char32_t character : to_utf32(text_)) {
    int added = 0;
    for (const char32_t each : to_lower(character)) changes.emplace_back(each, added++ > 0);
  }
  transform(changes);
}

void NormalizedText::prepend(std::string_view text) {
  if (text_.empty()) return;
  check_growth(text_.size() + text.size());
  const Span span = spans_.front();
  text_.insert(0, text);
  spans_.insert(spans_.begin(), text.size(), span);
}

void NormalizedText::strip(bool left, bool right) {
  const std::u32string characters = to_utf32(text_);
  size_t begin = 0, end = characters.size();
  while (left && begin < end && is_whitespace(characters[begin])) begin++;
  while (right && end > begin && is_whitespace(characters[end - 1])) end--;
  std::vector<Change> changes;
  for (size_t i = begin; i < end; i++) changes.emplace_back(characters[i], 0);
  transform(changes, begin);
}

void NormalizedText::replace(const Pattern& pattern, std::string_view content) {
  std::string text;
  std::vector<Span> spans;
  for (const auto& [begin, end, match] : parts(pattern)) {
    if (match) {
      check_growth(text.size() + content.size());
      text += content;
      spans.insert(spans.end(), content.size(), end == 0 ? Span{start_, start_} : spans_[end - 1]);
    } else {
      text.append(text_, begin, end - begin);
      spans.insert(
          spans.end(), spans_.begin() + static_cast<ptrdiff_t>(begin), spans_.begin() + static_cast<ptrdiff_t>(end)
      );
    }
  }
  text_ = std::move(text);
  spans_ = std::move(spans);
}

void NormalizedText::split(
    const std::vector<Found>& parts, Delimiter behavior, bool inverted, std::vector<NormalizedText>& into
) const {
  std::vector<Found> kept;
  bool last = false;  // whether the part before was a delimiter
  const auto add = [&](const Found& part, bool merged) {
    if (merged && !kept.empty()) {
      kept.back().begin = std::min(kept.back().begin, part.begin);
      kept.back().end = std::max(kept.back().end, part.end);
    } else {
      kept.push_back(part);
    }
  };
  const auto take = [&](const Found& part) {
    const bool delimiter = part.match != inverted;
    switch (behavior) {
      case Delimiter::Removed:
        if (!delimiter) kept.push_back(part);
        break;
      case Delimiter::Isolated: kept.push_back(part); break;
      case Delimiter::Contiguous: add(part, delimiter == last); break;
      case Delimiter::MergedWithPrevious:
      case Delimiter::MergedWithNext: add(part, delimiter && !last); break;
    }
    last = delimiter;
  };
  if (behavior == Delimiter::MergedWithNext) {
    std::for_each(parts.rbegin(), parts.rend(), take);
    std::ranges::reverse(kept);
  } else {
    std::ranges::for_each(parts, take);
  }
  for (const auto& part : kept) {
    if (part.begin < part.end) into.push_back(slice(part.begin, part.end));
  }
}

std::vector<Found> parts_where(std::string_view text, const std::function<bool(char32_t)>& is) {
  std::vector<Found> all;
  size_t last = 0;
  for (size_t place = 0; place < text.size();) {
    const size_t end = place + length_of(text[place]);
    if (is(character_at(text, place))) {
      if (last < place) all.push_back({last, place, false});
      all.push_back({place, end, true});
      last = end;
    }
    place = end;
  }
  if (last < text.size()) all.push_back({last, text.size(), false});
  return all;
}

}  // namespace hybridge::text
