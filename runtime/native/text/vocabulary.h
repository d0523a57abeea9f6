// Tokens by text and by id, in one block of memory and a table of ids.
#ifndef HYBRIDGE_NATIVE_TEXT_VOCABULARY_H
#define HYBRIDGE_NATIVE_TEXT_VOCABULARY_H

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "error.h"

namespace hybridge::text {

// Of which no published vocabulary has a hundredth: more is refused before memory is taken for it.
inline constexpr uint64_t LARGEST_ID = (1 << 24) - 1;

// A mix of the bits of a number, which nobody who writes a file can foresee.
inline uint64_t mixed(uint64_t value) {
  static const uint64_t secret = (static_cast<uint64_t>(std::random_device{}()) << 32 | std::random_device{}()) | 1;
  value = (value ^ secret) * 0x9E3779B97F4A7C15u;
  value = (value ^ value >> 32) * 0xD6E8FEB86659FD93u;
  return value ^ value >> 32;
}

inline uint64_t hash_of(std::string_view text) {
  uint64_t hash = text.size();
  size_t place = 0;
  for (; place + 8 <= text.size(); place += 8) {
    uint64_t part;
    __builtin_memcpy(&part, text.data() + place, 8);
    hash = mixed(hash ^ part);
  }
  uint64_t rest = 0;
  for (size_t i = 0; place + i < text.size(); i++)
    rest |= static_cast<uint64_t>(static_cast<uint8_t>(text[place + i])) << 8 * i;
  return mixed(hash ^ rest);
}

class Vocabulary {
 public:
  // Makes room for a number of tokens in a number of bytes.
  void reserve(size_t tokens, size_t bytes) {
    texts_.reserve(bytes);
    size_t size = 16;
    while (size < tokens * 2) size *= 2;
    table_.assign(size, NONE);
  }

  // Gives a text an id, the last of several; as many as there is room for.
  void add(std::string_view text, uint64_t id) {
    if (id > LARGEST_ID) throw TextError("the token id " + std::to_string(id) + " is out of range");
    if (id >= places_.size()) places_.resize(id + 1, Place{0, NONE});
    places_[id] = {static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(text.size())};
    texts_ += text;
    longest_ = std::max(longest_, text.size());
    uint32_t& entry = table_[slot(text)];
    count_ += entry == NONE;
    entry = static_cast<uint32_t>(id);
  }

  std::optional<uint32_t> id(std::string_view text) const {
    if (table_.empty()) return std::nullopt;
    const uint32_t entry = table_[slot(text)];
    return entry == NONE ? std::nullopt : std::optional(entry);
  }

  // The text of an id; none for one that nothing has.
  std::optional<std::string_view> text(uint32_t id) const {
    if (id >= places_.size() || places_[id].length == NONE) return std::nullopt;
    return std::string_view(texts_).substr(places_[id].begin, places_[id].length);
  }

  // Tokens, each text counted once.
  size_t size() const { return count_; }
  size_t end() const { return places_.size(); }  // one more than the largest id
  size_t longest() const { return longest_; }    // bytes of the longest text

 private:
  static constexpr uint32_t NONE = UINT32_MAX;
  struct Place {
    uint32_t begin, length;
  };

  // Where a text is in the table, or would be.
  size_t slot(std::string_view text) const {
    size_t place = hash_of(text) & (table_.size() - 1);
    while (table_[place] != NONE && this->text(table_[place]) != text) place = (place + 1) & (table_.size() - 1);
    return place;
  }

  std::string texts_;
  std::vector<Place> places_;    // by id
  std::vector<uint32_t> table_;  // of ids, by hash
  size_t count_ = 0, longest_ = 0;
};

}  // namespace hybridge::text

#endif
