#include "token_bytes.h"

#include <algorithm>
#include <numeric>
#include <ranges>

#include "../unicode.h"

namespace hybridge::text {
namespace {

// Whether JSON writes all of a text in a string as it is. So that it can be told from the token alone, it has whole
// characters.
bool is_plain(std::string_view text) {
  const auto stays = [](char each) {
    return static_cast<uint8_t>(each) >= 0x20 && each != 0x7F && each != '"' && each != '\\';
  };
  return std::ranges::all_of(text, stays) && is_valid_utf8(text);
}

}  // namespace

SortedTokens::SortedTokens(const std::vector<std::string>& all, std::vector<uint32_t> chosen)
    : ids_(std::move(chosen)), ends_(256) {
  std::ranges::sort(ids_, {}, [&](uint32_t id) { return std::pair(std::string_view(all[id]), id); });
  begins_.push_back(0);
  std::string_view before;
  for (const uint32_t id : ids_) {
    const std::string_view token = all[id];
    const auto same = std::ranges::mismatch(before, token).in2 - token.begin();
    shared_.push_back(static_cast<uint8_t>(std::min<ptrdiff_t>(same, 255)));
    bytes_ += token;
    begins_.push_back(static_cast<uint32_t>(bytes_.size()));
    ends_[static_cast<uint8_t>(token[0])] = shared_.size();
    longest_ = std::max(longest_, token.size());
    before = token;
  }
}

bool SortedTokens::has_longer(std::string_view beginning) const {
  const auto places = std::views::iota(size_t(0), ids_.size());
  const auto found = std::ranges::upper_bound(places, beginning, {}, [&](size_t place) { return bytes(place); });
  return found != places.end() && bytes(*found).starts_with(beginning);
}

struct TokenBytes::Parts {
  std::vector<std::string> bytes;
  std::vector<uint32_t> all, plain, others;
  std::map<std::string, uint32_t, std::less<>> special;

  explicit Parts(const Tokenizer& tokenizer) : bytes(tokenizer.vocab_size()) {
    for (uint32_t id = 0; id < bytes.size(); id++) {
      bytes[id] = tokenizer.bytes(id);
      const std::string text = tokenizer.leaves_out(id) ? tokenizer.token(id) : "";
      if (!text.empty()) {
        bytes[id] = SPECIAL + text;
        special.emplace(text, id);
      } else if (bytes[id].find(SPECIAL) != std::string::npos) {
        bytes[id].clear();  // no text has it
      }
      if (bytes[id].empty()) continue;
      all.push_back(id);
      (is_plain(bytes[id]) ? plain : others).push_back(id);
    }
  }
};

TokenBytes::TokenBytes(const Tokenizer& tokenizer) : TokenBytes(tokenizer, Parts(tokenizer)) {}

TokenBytes::TokenBytes(const Tokenizer& tokenizer, const Parts& parts)
    : tokenizer_(tokenizer),
      all_(parts.bytes, parts.all),
      others_(parts.bytes, parts.others),
      places_(parts.bytes.size(), NONE),
      plain_(parts.plain),
      special_(parts.special) {
  for (uint32_t place = 0; place < all_.ids().size(); place++) places_[all_.ids()[place]] = place;
  for (const uint32_t id : plain_) {
    const size_t characters = count_characters(bytes(id));
    if (characters >= counts_.size()) counts_.resize(characters + 1);
    counts_[characters]++;
  }
  std::partial_sum(counts_.begin(), counts_.end(), counts_.begin());
  std::ranges::sort(plain_, {}, [&](uint32_t id) { return count_characters(bytes(id)); });
}

std::optional<uint32_t> TokenBytes::special_at(std::string_view text) const {
  // Those that a text begins with are no longer than it, and come before it in order.
  for (auto each = special_.upper_bound(text); each != special_.begin();) {
    --each;
    if (text.starts_with(each->first)) return each->second;
    const auto same = std::ranges::mismatch(text, each->first).in1 - text.begin();
    text = text.substr(0, static_cast<size_t>(same));
    each = special_.upper_bound(text);
  }
  return std::nullopt;
}

std::string TokenBytes::marked(std::string_view text) const {
  std::string marked;
  while (!text.empty()) {
    const auto token = special_at(text);
    const size_t size = token ? bytes(*token).size() - 1 : 1;
    if (token) marked += SPECIAL;
    marked += text.substr(0, size);
    text.remove_prefix(size);
  }
  return marked;
}

std::span<const uint32_t> TokenBytes::plain(uint32_t most) const {
  return std::span(plain_).first(counts_.empty() ? 0 : counts_[std::min<size_t>(most, counts_.size() - 1)]);
}

}  // namespace hybridge::text
