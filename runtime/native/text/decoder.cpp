#include "decoder.h"

#include <algorithm>
#include <array>

#include "normalizer.h"
#include "pre_tokenizer.h"

namespace hybridge::text {
namespace {

using Tokens = std::vector<std::string>;

// A decoder that is a function.
template <typename Function>
class Simple : public Decoder {
 public:
  explicit Simple(Function function) : function_(std::move(function)) {}
  void apply(Tokens& tokens) const override { function_(tokens); }

 private:
  Function function_;
};

template <typename Function>
std::unique_ptr<Decoder> simple(Function function) {
  return std::make_unique<Simple<Function>>(std::move(function));
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t place = 0; !from.empty() && (place = text.find(from, place)) != std::string::npos; place += to.size()) {
    text.replace(place, from.size(), to);
  }
}

std::string joined(const Tokens& tokens) {
  std::string text;
  for (const auto& each : tokens) text += each;
  return text;
}

// The bytes that characters of a byte-level vocabulary stand for; of a token with another character, its own bytes.
void byte_level(Tokens& tokens) {
  static const std::array<int, 0x144> bytes = [] {
    std::array<int, 0x144> all;
    all.fill(-1);
    for (int byte = 0; byte < 256; byte++) all[byte_characters()[static_cast<size_t>(byte)]] = byte;
    return all;
  }();
  std::string text;
  for (const auto& token : tokens) {
    const size_t before = text.size();
    for (size_t place = 0; place < token.size(); place += length_of(token[place])) {
      const char32_t character = character_at(token, place);
      if (character >= bytes.size() || bytes[character] < 0) {
        text.resize(before);
        text += token;
        break;
      }
      text += static_cast<char>(bytes[character]);
    }
  }
  tokens = {valid_utf8(text)};
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
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  for (auto& token : tokens) {
    const bool shaped = token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
    // Rust reads "+F" as a number, too
    const int high = !shaped ? -1 : token[3] == '+' ? 0 : digit(token[3]), low = shaped ? digit(token[4]) : -1;
    if (high >= 0 && low >= 0) {
      bytes += static_cast<char>(high * 16 + low);
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
  return simple([=](Tokens& tokens) {
    for (auto& token : tokens) {
      std::string_view left = token;
      for (size_t i = 0; i < start && left.starts_with(content); i++) left.remove_prefix(content.size());
      for (size_t i = 0; i < stop && left.ends_with(content); i++) left.remove_suffix(content.size());
      token = std::string(left);
    }
  });
}

std::unique_ptr<Decoder> word_piece(const Json& json) {
  static constexpr std::array<std::array<std::string_view, 2>, 11> cleaned = {{{" .", "."}, {" ?", "?"}, {" !", "!"},
      {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"},
      {" 're", "'re"}}};
  const auto prefix = std::string(json["prefix"].string());
  const bool cleanup = json["cleanup"].boolean();
  return simple([=](Tokens& tokens) {
    for (size_t i = 0; i < tokens.size(); i++) {
      if (i > 0 && tokens[i].starts_with(prefix)) tokens[i].erase(0, prefix.size());
      else if (i > 0) tokens[i].insert(0, " ");
      if (!cleanup) continue;
      for (const auto& [from, to] : cleaned) replace_all(tokens[i], from, to);
    }
  });
}

std::unique_ptr<Decoder> metaspace(const Json& json) {
  return simple([of = Metaspace(json)](Tokens& tokens) {
    for (size_t i = 0; i < tokens.size(); i++) {
      replace_all(tokens[i], of.replacement, i == 0 && of.prepend != Metaspace::Prepend::Never ? "" : " ");
    }
  });
}

std::unique_ptr<Decoder> replace(const Json& json) {
  return simple([pattern = read_pattern(json["pattern"]), content = std::string(json["content"].string())](Tokens& tokens) {
    for (auto& token : tokens) {
      std::string text;
      for (const auto& [begin, end, match] : pattern.parts(token)) text += match ? content : token.substr(begin, end - begin);
      token = std::move(text);
    }
  });
}

class Sequence : public Decoder {
 public:
  explicit Sequence(const Json& json) {
    json["decoders"].each([&](const Json& each) {
      if (auto decoder = read_decoder(each)) decoders_.push_back(std::move(decoder));
    });
  }
  void apply(Tokens& tokens) const override {
    for (const auto& each : decoders_) each->apply(tokens);
  }

 private:
  std::vector<std::unique_ptr<Decoder>> decoders_;
};

}  // namespace

std::unique_ptr<Decoder> read_decoder(const Json& json) {
  if (!json) return nullptr;
  const std::string_view type = json["type"].string();
  if (type == "Sequence") return std::make_unique<Sequence>(json);
  if (type == "ByteLevel") return simple(byte_level);
  if (type == "ByteFallback") return simple(byte_fallback);
  if (type == "Fuse") return simple([](Tokens& tokens) { tokens = {joined(tokens)}; });
  if (type == "Replace") return replace(json);
  if (type == "Strip") return strip(json);
  if (type == "Metaspace") return metaspace(json);
  if (type == "WordPiece") return word_piece(json);
  if (type == "BPEDecoder") {
    return simple([suffix = std::string(json["suffix"].string())](Tokens& tokens) {
      for (size_t i = 0; i < tokens.size(); i++) replace_all(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
    });
  }
  throw TextError("the decoder '" + std::string(type) + "' is not supported");
}

}  // namespace hybridge::text
