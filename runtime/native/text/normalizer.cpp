#include "normalizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace hybridge::text {
namespace {

// A normalizer that is a function.
template <typename Function>
class Simple : public Normalizer {
 public:
  explicit Simple(Function function) : function_(std::move(function)) {}
  void apply(NormalizedText& text) const override { function_(text); }

 private:
  Function function_;
};

template <typename Function>
std::unique_ptr<Normalizer> simple(Function function) {
  return std::make_unique<Simple<Function>>(std::move(function));
}

void unicode(NormalizedText& text, NormalForm form) {
  const bool composed = form == NormalForm::NFC;  // which leaves everything below U+0300 as it is
  const bool plain = std::ranges::all_of(text.text(), [&](char byte) {
    return static_cast<uint8_t>(byte) < (composed ? 0xCC : 0x80);
  });
  if (!plain) text.transform(normalize(text.text(), form));
}

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

std::unique_ptr<Normalizer> bert(const Json& json) {
  const bool clean = json["clean_text"].boolean(), chinese = json["handle_chinese_chars"].boolean();
  const bool lower = json["lowercase"].boolean(), accents = json["strip_accents"].boolean_or(lower);
  return simple([=](NormalizedText& text) {
    const auto is_space = [](char32_t c) { return c == '\t' || c == '\n' || c == '\r'; };
    if (clean) {
      text.filter([&](char32_t c) { return c != 0 && c != 0xFFFD && (is_space(c) || !is_other(c)); });
      text.map([](char32_t c) { return is_whitespace(c) ? U' ' : c; });
    }
    if (chinese) {
      std::vector<Change> changes;
      for (const char32_t c : to_utf32(text.text())) {
        if (is_chinese(c)) changes.insert(changes.end(), {{U' ', 0}, {c, 1}, {U' ', 1}});
        else changes.emplace_back(c, 0);
      }
      text.transform(changes);
    }
    if (accents) {
      unicode(text, NormalForm::NFD);
      text.filter([](char32_t c) { return !is_nonspacing_mark(c); });
    }
    if (lower) text.lower();
  });
}

// SentencePiece's nmt_nfkc without the normal form: control characters go, other white space becomes a blank.
void nmt(NormalizedText& text) {
  text.filter([](char32_t c) {
    return !((c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F);
  });
  text.map([](char32_t c) {
    const bool blank = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                       c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
    return blank ? U' ' : c;
  });
}

std::string from_base64(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    static constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t digit = digits.find(c);
    if (digit == std::string_view::npos) throw TextError("precompiled_charsmap is not base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  return bytes;
}

// SentencePiece's rules, compiled: a double array of what is replaced, and the texts that replace it.
class Precompiled : public Normalizer {
 public:
  explicit Precompiled(std::string_view charsmap) {
    const std::string bytes = from_base64(charsmap);
    uint32_t size = 0;
    if (bytes.size() >= 4) std::memcpy(&size, bytes.data(), 4);
    if (bytes.size() < 4 || size % 4 != 0 || size > bytes.size() - 4)
      throw TextError("precompiled_charsmap is damaged");
    units_.resize(size / 4);
    std::memcpy(units_.data(), bytes.data() + 4, size);
    replacements_ = bytes.substr(4 + size);
    if (!is_valid_utf8(replacements_)) throw TextError("precompiled_charsmap is damaged: its texts are not UTF-8");
    replacements_ += '\0';
  }

  void apply(NormalizedText& text) const override {
    std::vector<Change> changes;
    bool modified = false;
    const std::string& whole = text.text();
    const auto add = [&](std::string_view part) {
      const auto replacement = find(part);
      if (!replacement) return false;
      const std::u32string characters = to_utf32(*replacement);
      text.check_growth(changes.size() + characters.size());
      const auto before = static_cast<int>(count_characters(part)), after = static_cast<int>(characters.size());
      for (int i = 0; i < after; i++) changes.emplace_back(characters[static_cast<size_t>(i)], i >= before ? 1 : 0);
      if (after < before && !changes.empty()) changes.back().second += after - before;
      return modified = true;
    };
    for (size_t place = 0; place < whole.size();) {
      const size_t length = grapheme_length(whole, place);
      const std::string_view cluster = std::string_view(whole).substr(place, length);
      if (length >= 6 || !add(cluster)) {
        for (size_t i = 0; i < length; i += length_of(cluster[i])) {
          if (!add(cluster.substr(i, length_of(cluster[i])))) changes.emplace_back(character_at(cluster, i), 0);
        }
      }
      place += length;
    }
    if (modified) text.transform(changes);
  }

 private:
  // What stands for the shortest beginning of `part` that has a rule.
  std::optional<std::string_view> find(std::string_view part) const {
    const auto unit = [&](size_t place) { return place < units_.size() ? units_[place] : 0; };
    const auto offset = [](uint32_t value) { return (value >> 10) << ((value & (1u << 9)) >> 6); };
    size_t place = offset(unit(0));
    for (const char each : part) {
      const auto byte = static_cast<uint8_t>(each);
      if (byte == 0) return std::nullopt;
      place ^= byte;
      const uint32_t value = unit(place);
      if ((value & ((1u << 31) | 0xFF)) != byte) return std::nullopt;
      place ^= offset(value);
      if ((value >> 8 & 1) == 1) {
        const size_t begin = unit(place) & ~(1u << 31);
        if (begin >= replacements_.size()) return std::nullopt;
        const size_t end = replacements_.find('\0', begin);
        const std::string_view found = std::string_view(replacements_).substr(begin, end - begin);
        return is_valid_utf8(found) ? std::optional(found) : std::nullopt;
      }
    }
    return std::nullopt;
  }

  std::vector<uint32_t> units_;
  std::string replacements_;
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(const Json& json) { read_parts(json, "normalizers", read_normalizer, normalizers_); }
  void apply(NormalizedText& text) const override {
    for (const auto& each : normalizers_) {
      text.work().spend(text.text().size());
      each->apply(text);
    }
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> normalizers_;
};

}  // namespace

const std::u32string& byte_characters() {
  static const std::u32string characters = [] {
    std::u32string all(256, 0);
    char32_t next = 256;
    for (uint32_t byte = 0; byte < 256; byte++) {
      const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      all[byte] = visible ? byte : next++;
    }
    return all;
  }();
  return characters;
}

void to_byte_level(NormalizedText& text) {
  std::vector<Change> changes;
  changes.reserve(text.text().size());
  for (const char each : text.text()) {
    const auto byte = static_cast<uint8_t>(each);
    changes.emplace_back(byte_characters()[byte], (byte & 0xC0) == 0x80);
  }
  text.transform(changes);
}

Pattern read_pattern(const Json& json) {
  if (json.is_string()) return Pattern::literal(json.string());
  if (json["String"]) return Pattern::literal(json["String"].string());
  if (json["Regex"]) return Pattern::regex(json["Regex"].string());
  json.fail("a String or a Regex");
}

std::unique_ptr<Normalizer> read_normalizer(const Json& json) {
  if (!json) return nullptr;
  const std::string_view type = json["type"].string();
  if (type == "Sequence") return std::make_unique<Sequence>(json);
  if (type == "NFC") return simple([](NormalizedText& text) { unicode(text, NormalForm::NFC); });
  if (type == "NFD") return simple([](NormalizedText& text) { unicode(text, NormalForm::NFD); });
  if (type == "NFKC") return simple([](NormalizedText& text) { unicode(text, NormalForm::NFKC); });
  if (type == "NFKD") return simple([](NormalizedText& text) { unicode(text, NormalForm::NFKD); });
  if (type == "Lowercase") return simple([](NormalizedText& text) { text.lower(); });
  if (type == "StripAccents") {
    return simple([](NormalizedText& text) { text.filter([](char32_t c) { return !is_mark(c); }); });
  }
  if (type == "ByteLevel") return simple(to_byte_level);
  if (type == "Nmt") return simple(nmt);
  if (type == "BertNormalizer") return bert(json);
  if (type == "Precompiled") {
    if (!json["precompiled_charsmap"]) return nullptr;
    return std::make_unique<Precompiled>(json["precompiled_charsmap"].string());
  }
  if (type == "Strip") {
    const bool left = json["strip_left"].boolean(), right = json["strip_right"].boolean();
    return simple([=](NormalizedText& text) { text.strip(left, right); });
  }
  if (type == "Prepend") {
    return simple([before = std::string(json["prepend"].string())](NormalizedText& text) { text.prepend(before); });
  }
  if (type == "Replace") {
    return simple([pattern = read_pattern(json["pattern"]),
                   content = std::string(json["content"].string())](NormalizedText& text) {
      text.replace(pattern, content);
    });
  }
  throw TextError("the normalizer '" + std::string(type) + "' is not supported");
}

}  // namespace hybridge::text
