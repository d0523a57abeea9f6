#include "pre_tokenizer.h"

#include <algorithm>
#include <iterator>

#include "normalizer.h"

namespace hybridge::text {
namespace {

// A pre-tokenizer that is a function.
template <typename Function>
class Simple : public PreTokenizer {
 public:
  explicit Simple(Function function) : function_(std::move(function)) {}
  void split(NormalizedText word, Words& into) const override { function_(std::move(word), into); }

 private:
  Function function_;
};

template <typename Function>
std::unique_ptr<PreTokenizer> simple(Function function) {
  return std::make_unique<Simple<Function>>(std::move(function));
}

// Splits at characters of a kind.
std::unique_ptr<PreTokenizer> at(bool (*is)(char32_t), Delimiter behavior) {
  return simple([=](NormalizedText word, Words& into) {
    word.split(parts_where(word.text(), is), behavior, false, into);
  });
}

std::unique_ptr<PreTokenizer> at(Pattern pattern, Delimiter behavior, bool inverted) {
  return simple([=](NormalizedText word, Words& into) { word.split(word.parts(pattern), behavior, inverted, into); });
}

Delimiter read_behavior(const Json& json, std::string_view otherwise = "") {
  const std::string_view name = otherwise.empty() ? json.string() : json.string_or(otherwise);
  if (name == "Removed") return Delimiter::Removed;
  if (name == "Isolated") return Delimiter::Isolated;
  if (name == "MergedWithPrevious") return Delimiter::MergedWithPrevious;
  if (name == "MergedWithNext") return Delimiter::MergedWithNext;
  if (name == "Contiguous") return Delimiter::Contiguous;
  json.fail("a behavior that is known");
}

std::unique_ptr<PreTokenizer> byte_level(const Json& json) {
  static const Pattern gpt2 = Pattern::regex(
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"
  );
  const bool blank = json["add_prefix_space"].boolean(), regex = json["use_regex"].boolean_or(true);
  return simple([=](NormalizedText word, Words& into) {
    if (blank && !word.text().starts_with(' ')) word.prepend(" ");
    const size_t first = into.size();
    if (regex) word.split(word.parts(gpt2), Delimiter::Isolated, false, into);
    else into.push_back(std::move(word));
    for (size_t i = first; i < into.size(); i++) to_byte_level(into[i]);
  });
}

std::unique_ptr<PreTokenizer> metaspace(const Json& json) {
  const Metaspace of(json);
  return simple([of, blank = Pattern::literal(" "),
                 mark = Pattern::literal(of.replacement)](NormalizedText word, Words& into) {
    word.replace(blank, of.replacement);
    const bool wanted = of.prepend == Metaspace::Prepend::Always ||
                        (of.prepend == Metaspace::Prepend::First && word.start() == 0);
    if (wanted && !word.text().starts_with(of.replacement)) word.prepend(of.replacement);
    if (of.split) word.split(word.parts(mark), Delimiter::MergedWithNext, false, into);
    else into.push_back(std::move(word));
  });
}

std::unique_ptr<PreTokenizer> fixed_length(const Json& json) {
  const size_t most = json["length"] ? json["length"].integer(1 << 20) : 5;
  if (most == 0) json["length"].fail("1 or more");
  return simple([=](NormalizedText word, Words& into) {
    const std::string& text = word.text();
    for (size_t begin = 0; begin < text.size();) {
      size_t end = begin;
      for (size_t i = 0; i < most && end < text.size(); i++) end += length_of(text[end]);
      into.push_back(word.slice(begin, end));
      begin = end;
    }
  });
}

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(const Json& json) { read_parts(json, "pretokenizers", read_pre_tokenizer, all_); }

  void split(NormalizedText word, Words& into) const override {
    Words words;
    words.push_back(std::move(word));
    for (const auto& pre_tokenizer : all_) {
      Words next;
      next.reserve(words.size());
      for (auto& each : words) {
        if (each.text().empty()) continue;
        each.work().spend(each.text().size());
        pre_tokenizer->split(std::move(each), next);
      }
      words = std::move(next);
    }
    std::ranges::move(words, std::back_inserter(into));
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> all_;
};

}  // namespace

Metaspace::Metaspace(const Json& json)
    : replacement(json["replacement"].string()), split(json["split"].boolean_or(true)) {
  if (count_characters(replacement) != 1) json["replacement"].fail("one character");
  const std::string_view scheme = json["prepend_scheme"].string_or("always");
  if (scheme == "first") prepend = Prepend::First;
  else if (scheme == "never") prepend = Prepend::Never;
  else if (scheme != "always") json["prepend_scheme"].fail("first, never or always");
  if (!json["add_prefix_space"].boolean_or(true)) {
    if (json["prepend_scheme"] && prepend != Prepend::Never)
      json.fail("of one mind: add_prefix_space and prepend_scheme differ");
    prepend = Prepend::Never;
  }
}

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const Json& json) {
  if (!json) return nullptr;
  const std::string_view type = json["type"].string();
  if (type == "Sequence") return std::make_unique<Sequence>(json);
  if (type == "ByteLevel") return byte_level(json);
  if (type == "Metaspace") return metaspace(json);
  if (type == "Split") {
    return at(read_pattern(json["pattern"]), read_behavior(json["behavior"]), json["invert"].boolean());
  }
  if (type == "Digits") {
    return at(is_numeric, json["individual_digits"].boolean() ? Delimiter::Isolated : Delimiter::Contiguous);
  }
  if (type == "Punctuation") return at(is_punctuation, read_behavior(json["behavior"], "Isolated"));
  if (type == "WhitespaceSplit") return at(is_whitespace, Delimiter::Removed);
  if (type == "Whitespace") {
    const std::string word = RUST_WORD;
    return at(Pattern::regex("[" + word + "]+|[^" + word + "\\s]+"), Delimiter::Removed, true);
  }
  if (type == "CharDelimiterSplit") return at(Pattern::literal(json["delimiter"].string()), Delimiter::Removed, false);
  if (type == "FixedLength") return fixed_length(json);
  if (type == "BertPreTokenizer") {
    return simple([](NormalizedText word, Words& into) {
      Words words;
      word.split(parts_where(word.text(), is_whitespace), Delimiter::Removed, false, words);
      for (const auto& each : words)
        each.split(parts_where(each.text(), is_punctuation), Delimiter::Isolated, false, into);
    });
  }
  throw TextError("the pre-tokenizer '" + std::string(type) + "' is not supported");
}

}  // namespace hybridge::text
