// The tokens of a vocabulary by their bytes, in order, so that all that may follow are found in one walk. A special
// token has its text after a byte that no text has: so only an expression that asks for it lets it through, and not for
// its spelled text.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_TOKEN_BYTES_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_TOKEN_BYTES_H

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../tokenizer.h"

namespace hybridge::text {

// Tokens in the order of their bytes.
class SortedTokens {
 public:
  // all: the bytes of each token by its id; chosen: the ids that are meant.
  SortedTokens(const std::vector<std::string>& all, std::vector<uint32_t> chosen);

  // Calls `allow(id)` for each token whose bytes `step(state, byte)` takes from `start` on to a state that is not 0.
  template <typename State, typename Step, typename Allow>
  void walk(State start, Step&& step, Allow&& allow) const {
    std::vector<State> states(longest_ + 1, start);  // by the number of bytes that led there
    size_t failed = SIZE_MAX;                        // the place of the byte that the last token failed at
    for (size_t i = 0; i < ids_.size(); i++) {
      if (shared_[i] > failed) continue;
      const std::string_view token = bytes(i);
      size_t place = shared_[i];
      failed = SIZE_MAX;
      for (; place < token.size(); place++) {
        states[place + 1] = step(states[place], static_cast<uint8_t>(token[place]));
        if (states[place + 1] != 0) continue;
        failed = place;
        break;
      }
      if (failed == SIZE_MAX) allow(ids_[i]);
      else if (failed == 0) i = ends_[static_cast<uint8_t>(token[0])] - 1;
    }
  }

  // Whether a token begins with these bytes and has more.
  bool has_longer(std::string_view beginning) const;

  const std::vector<uint32_t>& ids() const { return ids_; }
  std::string_view bytes(size_t place) const {
    return std::string_view(bytes_).substr(begins_[place], begins_[place + 1] - begins_[place]);
  }

 private:
  std::string bytes_;
  std::vector<uint32_t> begins_, ids_;
  std::vector<uint8_t> shared_;  // bytes in common with the token before, at most 255
  std::vector<size_t> ends_;     // after the last token that begins with a byte
  size_t longest_ = 0;
};

// Belongs to a tokenizer, which makes it when it is first asked for.
class TokenBytes {
 public:
  // Throws TextError for a tokenizer that is neither byte-level nor has tokens for bytes.
  explicit TokenBytes(const Tokenizer& tokenizer);

  const Tokenizer& tokenizer() const { return tokenizer_; }

  static constexpr char SPECIAL = '\xFF';

  // Empty for ids that nothing has.
  std::string_view bytes(int64_t token) const {
    const bool is_known = 0 <= token && static_cast<size_t>(token) < places_.size() &&
                          places_[static_cast<size_t>(token)] != NONE;
    return is_known ? all_.bytes(places_[static_cast<size_t>(token)]) : std::string_view();
  }
  size_t size() const { return places_.size(); }

  // The bytes of a text whose special tokens are those of the vocabulary.
  std::string marked(std::string_view text) const;

  // The longest special token that a text begins with.
  std::optional<uint32_t> special_at(std::string_view text) const;

  // The tokens that have bytes; those of them that are not `plain`.
  const SortedTokens& all() const { return all_; }
  const SortedTokens& others() const { return others_; }

  // The tokens of whole characters that JSON writes in a string as they are, of at most so many characters.
  std::span<const uint32_t> plain(uint32_t most) const;

 private:
  static constexpr uint32_t NONE = UINT32_MAX;
  struct Parts;
  TokenBytes(const Tokenizer& tokenizer, const Parts& parts);

  const Tokenizer& tokenizer_;
  SortedTokens all_, others_;
  std::vector<uint32_t> places_;                          // by id, in all_
  std::vector<uint32_t> plain_;                           // the shortest first
  std::vector<size_t> counts_;                            // of plain ones with at most so many characters
  std::map<std::string, uint32_t, std::less<>> special_;  // by text
};

}  // namespace hybridge::text

#endif
