#include "decoder.h"

#include <algorithm>
#include <array>

#include "normalizer.h"
#include "pre_tokenizer.h"

namespace hybridge::text {
namespace {

using Tokens = std::vector<std::string>;

// Bytes that decoders make of one byte or token at most, and some more for short texts: no published one makes ten.
constexpr size_t MOST_GROWTH = 64, ROOM = 4096, STEPS_FOR_A_BYTE = 32;

// A decoder that is two functions: of all tokens, and of one as `spell` has it.
template <typename Function, typename Spell>
class Simple : public Decoder {
 public:
  Simple(Function function, Spell spell) : function_(std::move(function)), spell_(std::move(spell)) {}
  void apply(Tokens& tokens) const override { function_(tokens); }
  bool spell(std::string& token, bool& bytes) const override { return spell_(token, bytes); }

 private:
  Function function_;
  Spell spell_;
};

template <typename Function, typename Spell>
std::unique_ptr<Decoder> simple(Function function, Spell spell) {
  return std::make_unique<Simple<Function, Spell>>(std::move(function), std::move(spell));
}

// A decoder that changes each token by itself.
template <typename Function>
std::unique_ptr<Decoder> of_each(Function function) {
  const auto all = [=](Tokens& tokens) { std::ranges::for_each(tokens, function); };
  return simple(all, [=](std::string& token, bool&) {
    function(token);
    return true;
  });
}

bool spell_unknown(std::string&, bool&) { throw TextError("its decoder has no bytes for a single token"); }

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  size_t place = 0, found;
  std::string replaced;
  while (!from.empty() && (found = text.find(from, place)) != std::string::npos) {
    replaced.append(text, place, found - place).append(to);
    place = found + from.size();
  }
  if (place > 0) text = replaced.append(text, place);
}

size_t bytes_of(const Tokens& tokens) {
  size_t bytes = 0;
  for (const auto& each : tokens) bytes += each.size();
  return bytes;
}

std::string joined(const Tokens& tokens) {
  std::string text;
  for (const auto& each : tokens) text += each;
  return text;
}

// Replaces the characters of a byte-level vocabulary by the bytes that they stand for; a token with another character
// is its own bytes.
bool spell_byte_level(std::string& token, bool& is_bytes) {
  static const std::array<int, 0x144> bytes = [] {
    std::array<int, 0x144> all;
    all.fill(-1);
    for (int byte = 0; byte < 256; byte++) all[byte_characters()[static_cast<size_t>(byte)]] = byte;
    return all;
  }();
  is_bytes = true;
  std::string text;
  for (size_t place = 0; place < token.size(); place += length_of(token[place])) {
    const char32_t character = character_at(token, place);
    if (character >= bytes.size() || bytes[character] < 0) return false;
    text += static_cast<char>(bytes[character]);
  }
  token = std::move(text);
  return false;
}

void byte_level(Tokens& tokens) {
  std::string text;
  bool is_bytes;
  for (auto& token : tokens) {
    spell_byte_level(token, is_bytes);
    text += token;
  }
  tokens = {valid_utf8(text)};
}

// The byte of a token such as <0x0A>, or -1.
int byte_of(std::string_view token) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  const int high = token[3] == '+' ? 0 : digit(token[3]), low = digit(token[4]);  // Rust reads "+F" as a number, too
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

bool spell_byte_fallback(std::string& token, bool& is_bytes) {
  is_bytes = true;
  const int byte = byte_of(token);
  if (byte >= 0) token = static_cast<char>(byte);
  return byte < 0;
}

// The bytes of tokens such as <0x0A> in a row, if they are characters, else U+FFFD for each.
void byte_fallback(Tokens& tokens) {
  Tokens all;
  std::string bytes;
  const auto flush = [&] {
    if (is_valid_utf8(bytes)) {
      if (!bytes.empty()) all.push_back(bytes);
    } else {
      all.insert(all.end(), bytes.size(), "\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (auto& token : tokens) {
    if (const int byte = byte_of(token); byte >= 0) {
      bytes += static_cast<char>(byte);
    } else {
      flush();
      all.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(all);
}

std::unique_ptr<Decoder> strip(const Json& json) {
  const auto content = std::string(json["content"].string());
  const size_t start = json["start"].integer(1 << 20), stop = json["stop"].integer(1 << 20);
  if (count_characters(content) != 1) json["content"].fail("one character");
  return of_each([=](std::string& token) {
    std::string_view left = token;
    for (size_t i = 0; i < start && left.starts_with(content); i++) left.remove_prefix(content.size());
    for (size_t i = 0; i < stop && left.ends_with(content); i++) left.remove_suffix(content.size());
    token = std::string(left);
  });
}

std::unique_ptr<Decoder> word_piece(const Json& json) {
  static constexpr std::array<std::array<std::string_view, 2>, 11> cleaned = {
      {{" .", "."},
       {" ?", "?"},
       {" !", "!"},
       {" ,", ","},
       {" ' ", "'"},
       {" n't", "n't"},
       {" 'm", "'m"},
       {" do not", " don't"},
       {" 's", "'s"},
       {" 've", "'ve"},
       {" 're", "'re"}}
  };
  const auto prefix = std::string(json["prefix"].string());
  const bool cleanup = json["cleanup"].boolean();
  return simple(
      [=](Tokens& tokens) {
        for (size_t i = 0; i < tokens.size(); i++) {
          if (i > 0 && tokens[i].starts_with(prefix)) tokens[i].erase(0, prefix.size());
          else if (i > 0) tokens[i].insert(0, " ");
          if (!cleanup) continue;
          for (const auto& [from, to] : cleaned) replace_all(tokens[i], from, to);
        }
      },
      spell_unknown
  );
}

std::unique_ptr<Decoder> metaspace(const Json& json) {
  const Metaspace of(json);
  const auto all = [of](Tokens& tokens) {
    for (size_t i = 0; i < tokens.size(); i++) {
      replace_all(tokens[i], of.replacement, i == 0 && of.prepend != Metaspace::Prepend::Never ? "" : " ");
    }
  };
  return simple(all, [of](std::string& token, bool&) {
    replace_all(token, of.replacement, " ");
    return true;
  });
}

std::unique_ptr<Decoder> replace(const Json& json) {
  const auto change = [pattern = read_pattern(json["pattern"]),
                       content = std::string(json["content"].string())](std::string& token, Work& work) {
    std::string text;
    for (const auto& [begin, end, match] : pattern.parts(token, work)) {
      work.spend(STEPS_FOR_A_BYTE * (match ? content.size() : end - begin));
      if (match) text += content;
      else text.append(token, begin, end - begin);
    }
    token = std::move(text);
  };
  const auto all = [=](Tokens& tokens) {
    Work work(bytes_of(tokens));
    for (auto& token : tokens) change(token, work);
  };
  return simple(all, [=](std::string& token, bool&) {
    Work work(token.size());
    change(token, work);
    return true;
  });
}

class Sequence : public Decoder {
 public:
  explicit Sequence(const Json& json) { read_parts(json, "decoders", read_decoder, decoders_); }
  void apply(Tokens& tokens) const override {
    const size_t most = MOST_GROWTH * (bytes_of(tokens) + tokens.size()) + ROOM;
    for (const auto& each : decoders_) {
      each->apply(tokens);
      if (bytes_of(tokens) > most)
        throw TextError("the tokenizer's decoder makes a text of these tokens that is too long");
    }
  }
  bool spell(std::string& token, bool& bytes) const override {
    return std::ranges::all_of(decoders_, [&](const auto& each) { return each->spell(token, bytes); });
  }

 private:
  std::vector<std::unique_ptr<Decoder>> decoders_;
};

}  // namespace

std::unique_ptr<Decoder> read_decoder(const Json& json) {
  if (!json) return nullptr;
  const std::string_view type = json["type"].string();
  if (type == "Sequence") return std::make_unique<Sequence>(json);
  if (type == "ByteLevel") return simple(byte_level, spell_byte_level);
  if (type == "ByteFallback") return simple(byte_fallback, spell_byte_fallback);
  if (type == "Fuse") {  // what is after it changes the text as a whole
    return simple([](Tokens& tokens) { tokens = {joined(tokens)}; }, [](std::string&, bool&) { return false; });
  }
  if (type == "Replace") return replace(json);
  if (type == "Strip") return strip(json);
  if (type == "Metaspace") return metaspace(json);
  if (type == "WordPiece") return word_piece(json);
  if (type == "BPEDecoder") {
    return simple(
        [suffix = std::string(json["suffix"].string())](Tokens& tokens) {
          for (size_t i = 0; i < tokens.size(); i++) replace_all(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
        },
        spell_unknown
    );
  }
  throw TextError("the decoder '" + std::string(type) + "' is not supported");
}

}  // namespace hybridge::text
