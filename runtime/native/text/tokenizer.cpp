#include "tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "decoder.h"
#include "grammar/token_bytes.h"
#include "json.h"
#include "model.h"
#include "normalizer.h"
#include "pre_tokenizer.h"

namespace hybridge::text {
namespace {

constexpr std::string_view REPLACEMENT = "\xEF\xBF\xBD";
constexpr size_t LONGEST_CHARACTER = 4;  // bytes, and so tokens

// Looks for the longest of many texts at each place.
class Matcher {
 public:
  void add(std::string_view text, uint32_t id) {
    uint32_t node = 0;
    if (nodes_ + text.size() > MOST_NODES) throw TextError("the added tokens have too many bytes");
    for (const char byte : text) {
      const auto [entry, added] = edges_.try_emplace(edge(node, byte), nodes_);
      nodes_ += added;
      node = entry->second;
    }
    if (node == 0) return;  // nothing is found everywhere
    ids_[node] = id;
    first_[static_cast<uint8_t>(text[0])] = true;
  }

  struct Match {
    size_t begin, end;
    uint32_t id;
  };

  // The leftmost match at or after `from` that is `allowed`, of several the longest.
  template <typename Allowed>
  std::optional<Match> find(std::string_view text, size_t from, Work& work, Allowed&& allowed) const {
    for (size_t begin = from; begin < text.size(); begin++) {
      if (!first_[static_cast<uint8_t>(text[begin])]) continue;
      std::optional<Match> longest;
      uint32_t node = 0;
      for (size_t end = begin; end < text.size();) {
        work.spend(8);  // as long as eight steps of a regular expression
        const auto next = edges_.find(edge(node, text[end++]));
        if (next == edges_.end()) break;
        node = next->second;
        const auto id = ids_.find(node);
        if (id != ids_.end() && allowed(Match{begin, end, id->second})) longest = Match{begin, end, id->second};
      }
      if (longest) return longest;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t MOST_NODES = 1 << 22;

  static uint64_t edge(uint32_t node, char byte) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
  }

  std::unordered_map<uint64_t, uint32_t> edges_;
  std::unordered_map<uint32_t, uint32_t> ids_;  // by the node at which a text ends
  std::array<bool, 256> first_{};
  uint32_t nodes_ = 1;
};

// Gives the memory of a long text's words, of which there are millions, back to the system: glibc keeps it otherwise.
class GiveBack {
 public:
  explicit GiveBack(size_t bytes) : bytes_(bytes) {}
  ~GiveBack() {
#ifdef __GLIBC__
    if (bytes_ > (1 << 20)) malloc_trim(0);
#endif
  }

 private:
  [[maybe_unused]] size_t bytes_;
};

// The parts of a text that people wrote.
class PlainParts {
 public:
  PlainParts() = default;
  explicit PlainParts(std::span<const TextPart> parts) {
    for (const TextPart& part : parts) {
      if (part.begin < part.end) parts_.push_back(part);
    }
    std::ranges::sort(parts_, {}, &TextPart::begin);
    size_t last = 0;
    for (const TextPart& part : parts_) {  // those that touch are one
      if (last > 0 && part.begin <= parts_[last - 1].end)
        parts_[last - 1].end = std::max(parts_[last - 1].end, part.end);
      else parts_[last++] = part;
    }
    parts_.resize(last);
  }

  bool empty() const { return parts_.empty(); }

  // Whether anything of a stretch is in one of the parts.
  bool touch(size_t begin, size_t end) const {
    const auto next = after(begin);
    return next != parts_.end() && next->begin < end;
  }

  // Whether all of a stretch is in one of the parts.
  bool cover(size_t begin, size_t end) const {
    const auto next = after(begin);
    return next != parts_.end() && next->begin <= begin && end <= next->end;
  }

 private:
  // The first part that ends after a place.
  std::vector<TextPart>::const_iterator after(size_t place) const {
    return std::ranges::upper_bound(parts_, place, {}, &TextPart::end);
  }

  std::vector<TextPart> parts_;  // in order, with something between each two
};

// A text with U+FFFD for what is invalid in it, and its plain parts there: of what replaces something, all or nothing.
std::string repaired_text(std::string_view text, std::vector<TextPart>& plain) {
  std::vector<size_t> places;
  std::string repaired = valid_utf8(text, plain.empty() ? nullptr : &places);
  for (TextPart& part : plain) {
    size_t end = std::min(part.end, text.size());
    while (end > 0 && end < text.size() && places[end] == places[end - 1]) end++;
    part = {places[std::min(part.begin, text.size())], places[end]};
  }
  return repaired;
}

// A token that is cut out of a text before anything else happens to it.
struct AddedToken {
  std::string content;
  uint32_t id;
  bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
  std::string decoded;  // what it is to the decoder: as the normalizer leaves it

  explicit AddedToken(const Json& json)
      : content(json["content"].string()),
        id(static_cast<uint32_t>(json["id"].integer(LARGEST_ID))),
        single_word(json["single_word"].boolean()),
        lstrip(json["lstrip"].boolean()),
        rstrip(json["rstrip"].boolean()),
        normalized(json["normalized"].boolean()),
        special(json["special"].boolean()),
        decoded(content) {}
};

bool is_word(std::string_view character) {
  static const Pattern word = Pattern::regex("[" + std::string(RUST_WORD) + "]");
  return word.matches(character);
}

// What a post-processor does to the tokens of a text.
struct PostProcessor {
  // What is put around the tokens, by id; nothing stands for the tokens themselves.
  std::vector<std::optional<uint32_t>> around;
  bool trim = false;  // whether tokens' parts of the text begin and end without white space
  bool keeps_first_blank = false;
};

constexpr size_t MOST_AROUND = 1000;  // tokens; published templates have five at most

std::vector<std::optional<uint32_t>> read_template(const Json& json) {
  std::vector<std::optional<uint32_t>> around;
  const Json known = json["special_tokens"];
  const auto add = [&](std::optional<uint32_t> id) {
    if (around.size() == MOST_AROUND) throw TextError("the template puts too many tokens around a text");
    around.push_back(id);
  };
  json["single"].each([&](const Json& piece) {
    if (piece["Sequence"]) {
      if (piece["Sequence"]["id"].string() != "A") piece.fail("of the one text that there is");
      if (std::ranges::any_of(around, [](const auto& id) { return !id; })) piece.fail("the one place of the text");
      add(std::nullopt);
    } else {
      const std::string_view name = piece["SpecialToken"]["id"].string();
      const Json token = known[name];
      if (!token) throw TextError("the template names '" + std::string(name) + "', which is no special token of it");
      token["ids"].each([&](const Json& id) { add(static_cast<uint32_t>(id.integer(LARGEST_ID))); });
    }
  });
  return around;
}

uint32_t read_pair_id(const Json& json) {  // of ["[CLS]", 101]
  std::optional<uint32_t> id;
  size_t place = 0;
  json.each([&](const Json& each) {
    if (place++ == 1) id = static_cast<uint32_t>(each.integer(LARGEST_ID));
  });
  if (!id || place != 2) json.fail("a token and its id");
  return *id;
}

void read_post_processors(const Json& json, std::vector<PostProcessor>& into) {
  if (!json) return;
  const std::string_view type = json["type"].string();
  if (type == "Sequence") return json["processors"].each([&](const Json& each) { read_post_processors(each, into); });
  if (into.size() == MOST_PARTS)
    json.fail(("one of " + std::to_string(MOST_PARTS) + " post-processors at most").c_str());
  PostProcessor processor;
  if (type == "TemplateProcessing") {
    processor.around = read_template(json);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    processor.around = {read_pair_id(json["cls"]), std::nullopt, read_pair_id(json["sep"])};
  } else if (type != "ByteLevel") {
    throw TextError("the post-processor '" + std::string(type) + "' is not supported");
  }
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    processor.trim = json["trim_offsets"].boolean();
    processor.keeps_first_blank = json["add_prefix_space"].boolean();
  }
  into.push_back(std::move(processor));
}

// Takes a character off a part of the text for each blank that the token begins or ends with; value: the token as the
// vocabulary has it.
void trim(TextToken& token, std::string_view text, std::string_view value, bool first, bool keeps_first_blank) {
  const auto is_blank = [](std::string_view character) {
    return character == "\xC4\xA0" ||
           is_whitespace(character_at(character, 0));  // Ġ is the blank of byte-level vocabularies
  };
  size_t leading = 0, trailing = 0;
  for (size_t place = 0; place < value.size() && is_blank(value.substr(place, length_of(value[place]))); leading++) {
    place += length_of(value[place]);
  }
  for (std::string_view left = value; !left.empty() && is_blank(left.substr(last_character(left))); trailing++) {
    left = left.substr(0, last_character(left));
  }
  if (leading == 1 && keeps_first_blank && (first || token.begin == 0)) leading = 0;
  for (; leading > 0 && token.begin < token.end; leading--)
    token.begin += static_cast<uint32_t>(length_of(text[token.begin]));
  token.begin = std::min(token.begin, token.end);
  for (; trailing > 0 && token.end > token.begin; trailing--) {
    token.end = static_cast<uint32_t>(last_character(text.substr(0, token.end)));
  }
  token.end = std::max(token.end, token.begin);
}

}  // namespace

struct Tokenizer::Parts {
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<Model> model;
  std::unique_ptr<Decoder> decoder;
  std::vector<PostProcessor> post_processors;

  std::unordered_map<uint32_t, AddedToken> added;
  std::unordered_map<std::string, uint32_t> added_ids;
  std::unordered_set<std::string> special;
  Matcher as_written, as_normalized;

  mutable std::mutex mutex;
  mutable std::unique_ptr<const TokenBytes> token_bytes;  // once it was asked for

  explicit Parts(const Json& json) {
    if (!json.is_object()) json.fail("an object");
    if (json["version"].string_or("1.0") != "1.0") throw TextError("its version is not 1.0");
    normalizer = read_normalizer(json["normalizer"]);
    pre_tokenizer = read_pre_tokenizer(json["pre_tokenizer"]);
    model = read_model(json["model"]);
    decoder = read_decoder(json["decoder"]);
    read_post_processors(json["post_processor"], post_processors);
    if (json["added_tokens"]) read_added_tokens(json["added_tokens"]);
  }

  void read_added_tokens(const Json& json) {
    size_t next = model->next_id();  // the library gives ids by the order, and reads over those of the file
    json.each([&](const Json& each) {
      AddedToken token(each);
      if (token.content.empty()) return;
      const auto known = find(token.content);
      const uint32_t id = known.value_or(static_cast<uint32_t>(next));
      if (id != token.id) {
        throw TextError(
            "the added token '" + token.content + "' has the id " + std::to_string(token.id) + " in the file, and " +
            std::to_string(id) + " by its place among the tokens"
        );
      }
      if (const auto other = model->vocabulary().text(id); other && *other != token.content) {
        throw TextError("the added token '" + token.content + "' has the id of '" + std::string(*other) + "'");
      }
      next += !known;
      if (token.normalized && normalizer != nullptr) {
        Work work(token.content.size());
        NormalizedText text(token.content, work);
        normalizer->apply(text);
        token.decoded = text.text();
      }
      added_ids[token.content] = id;
      if (token.special) special.insert(token.content);
      added.insert_or_assign(id, std::move(token));
    });
    std::vector<uint32_t> ids;
    for (const auto& [id, token] : added) ids.push_back(id);
    std::ranges::sort(ids);
    for (const uint32_t id : ids) {  // of several that the normalizer makes alike, the last is found
      const AddedToken& token = added.at(id);
      (token.normalized ? as_normalized : as_written).add(token.decoded, id);
    }
  }

  std::optional<uint32_t> find(const std::string& token) const {
    const auto found = added_ids.find(token);
    return found != added_ids.end() ? std::optional(found->second) : model->vocabulary().id(token);
  }

  // The text of an id, as the decoder takes it.
  std::optional<std::string_view> text(uint32_t id) const {
    const auto found = added.find(id);
    return found != added.end() ? std::optional<std::string_view>(found->second.decoded) : model->vocabulary().text(id);
  }

  bool is_special(uint32_t id) const {
    const auto found = added.find(id);
    return found != added.end() && special.contains(found->second.content);
  }

  // Calls `call(begin, end, id)` for the parts of a text; id: the added token that one is, if it is one. original:
  // where a part of this text is in the one that `plain` is of.
  template <typename Original, typename Call>
  void cut(
      const Matcher& matcher, std::string_view text, const PlainParts& plain, Work& work, Original&& original,
      Call&& call
  ) const {
    // A special token that is half people's words and half not is none; the shorter one that it may begin with is.
    const auto allowed = [&](const Matcher::Match& match) {
      if (plain.empty() || !is_special(match.id)) return true;
      const Span span = original(match.begin, match.end);
      return !plain.touch(span.begin, span.end) || plain.cover(span.begin, span.end);
    };
    size_t last = 0;
    for (size_t from = 0; const auto match = matcher.find(text, from, work, allowed);) {
      auto [begin, end, id] = *match;
      from = end;
      const AddedToken& token = added.at(id);
      if (!plain.empty() && is_special(id)) {
        const Span span = original(begin, end);
        if (plain.cover(span.begin, span.end)) continue;
      }
      if (token.single_word) {
        const std::string_view front = text.substr(0, begin);
        const bool behind_word = begin > 0 && is_word(front.substr(last_character(front)));
        const bool before_word = end < text.size() && is_word(text.substr(end, length_of(text[end])));
        if (behind_word || before_word) continue;
      }
      while (token.lstrip && begin > last) {
        const size_t before = last_character(text.substr(0, begin));
        if (!is_whitespace(character_at(text, before))) break;
        begin = before;
      }
      begin = std::max(begin, last);
      while (token.rstrip && end < text.size() && is_whitespace(character_at(text, end))) end += length_of(text[end]);
      if (last < begin) call(last, begin, std::optional<uint32_t>());
      call(begin, end, std::optional(id));
      last = end;
    }
    if (last < text.size()) call(last, text.size(), std::optional<uint32_t>());
  }

  // Adds the tokens of a word. A vocabulary may have special tokens among the others: one that people spelled is read
  // in two parts, its first character and the rest.
  void tokenize(const NormalizedText& word, const PlainParts& plain, std::vector<Token>& into) const {
    if (plain.empty()) return model->tokenize(word.text(), word.work(), into);
    const std::string_view text = word.text();
    std::vector<Token> tokens, left;  // left: in reverse, those that are yet to be looked at
    const auto read = [&](size_t begin, size_t end) {
      tokens.clear();
      word.work().spend(end - begin);
      model->tokenize(text.substr(begin, end - begin), word.work(), tokens);
      for (auto token = tokens.rbegin(); token != tokens.rend(); token++) {
        left.push_back({token->id, begin + token->begin, begin + token->end});
      }
    };
    const auto is_spelled = [&](const Token& token) {
      const std::string_view spelled = text.substr(token.begin, token.end - token.begin);
      if (!is_special(token.id) || spelled.empty() || spelled != model->vocabulary().text(token.id)) return false;
      const Span span = word.original(token.begin, token.end);
      return plain.touch(span.begin, span.end) && length_of(spelled[0]) < spelled.size();
    };
    read(0, text.size());
    while (!left.empty()) {
      const Token token = left.back();
      left.pop_back();
      if (is_spelled(token)) {
        const size_t second = token.begin + length_of(text[token.begin]);
        read(second, token.end);
        read(token.begin, second);
      } else {
        into.push_back(token);
      }
    }
  }
};

Tokenizer::Tokenizer(std::string_view json) : parts_(std::make_unique<Parts>(JsonDocument(json).root())) {}

Tokenizer::~Tokenizer() = default;

std::vector<TextToken> Tokenizer::encode(std::string_view given, bool special, std::span<const TextPart> people) const {
  const Parts& parts = *parts_;
  const GiveBack after_all_else(given.size());
  std::string repaired;
  std::vector<TextPart> people_there;
  if (!is_valid_utf8(given)) {
    people_there.assign(people.begin(), people.end());
    given = repaired = repaired_text(given, people_there);
    people = people_there;
  }
  const PlainParts plain(people);
  if (given.size() > UINT32_MAX) throw TextError("the text has more than 4 GB");
  Work work(given.size());
  std::vector<TextToken> all;
  const auto add = [&](TextToken token, std::string_view value) {
    for (const auto& each : parts.post_processors) {
      if (each.trim) trim(token, given, value, all.empty(), each.keeps_first_blank);
    }
    all.push_back(token);
  };
  std::vector<Token> tokens;
  const auto add_word = [&](const NormalizedText& word) {
    if (word.text().empty()) return;
    tokens.clear();
    parts.tokenize(word, plain, tokens);
    for (const Token& token : tokens) {
      const Span span = word.original(token.begin, token.end);
      add({token.id, span.begin, span.end}, *parts.model->vocabulary().text(token.id));
    }
  };
  const auto as_given = [](size_t begin, size_t end) {
    return Span{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
  };
  parts.cut(parts.as_written, given, plain, work, as_given, [&](size_t begin, size_t end, std::optional<uint32_t> id) {
    const std::string_view part = given.substr(begin, end - begin);
    if (id) return add({*id, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}, part);
    NormalizedText text(part, work, static_cast<uint32_t>(begin));
    if (parts.normalizer != nullptr) parts.normalizer->apply(text);
    const auto original = [&](size_t first, size_t last) { return text.original(first, last); };
    parts.cut(
        parts.as_normalized, text.text(), plain, work, original,
        [&](size_t first, size_t last, std::optional<uint32_t> found) {
          const Span span = text.original(first, last);
          if (found)
            return add({*found, span.begin, span.end}, std::string_view(text.text()).substr(first, last - first));
          if (parts.pre_tokenizer == nullptr) return add_word(text.slice(first, last));
          Words words;
          parts.pre_tokenizer->split(text.slice(first, last), words);
          std::ranges::for_each(words, add_word);
        }
    );
  });
  for (const auto& each : parts.post_processors) {
    if (each.around.empty()) continue;
    std::vector<TextToken> whole;
    for (const auto& id : each.around) {
      if (!id) whole.insert(whole.end(), all.begin(), all.end());
      else if (special) whole.push_back({*id, 0, 0});
    }
    all = std::move(whole);
  }
  return all;
}

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const uint32_t id : ids) {
    if (!leaves_out(id, skip_special)) tokens.emplace_back(*parts_->text(id));
  }
  if (parts_->decoder != nullptr) parts_->decoder->apply(tokens);
  std::string whole;
  for (size_t i = 0; i < tokens.size(); i++) {
    if (i > 0 && parts_->decoder == nullptr) whole += ' ';
    whole += tokens[i];
  }
  return whole;
}

std::string Tokenizer::bytes(uint32_t id) const {
  const auto text = parts_->text(id);
  if (!text || leaves_out(id)) return "";
  std::string token(*text);
  bool is_bytes = false;
  if (parts_->decoder != nullptr) parts_->decoder->spell(token, is_bytes);
  if (!is_bytes) throw TextError("it is neither byte-level nor has it tokens for bytes");
  return token;
}

const TokenBytes& Tokenizer::token_bytes() const {
  const std::lock_guard lock(parts_->mutex);
  if (parts_->token_bytes == nullptr) parts_->token_bytes = std::make_unique<const TokenBytes>(*this);
  return *parts_->token_bytes;
}

bool Tokenizer::leaves_out(uint32_t id, bool skip_special) const {
  const auto text = parts_->text(id);
  return !text || (skip_special && parts_->special.contains(std::string(*text)));
}

int64_t Tokenizer::id(std::string_view token) const {
  const auto found = parts_->find(std::string(token));
  return found ? static_cast<int64_t>(*found) : -1;
}

std::string Tokenizer::token(uint32_t id) const { return std::string(parts_->text(id).value_or("")); }

std::vector<uint32_t> Tokenizer::added(bool special) const {
  std::vector<uint32_t> ids;
  for (const auto& [id, token] : parts_->added) {
    if (token.special || !special) ids.push_back(id);
  }
  std::ranges::sort(ids);
  return ids;
}

size_t Tokenizer::longest() const {
  size_t longest = parts_->model->vocabulary().longest();
  for (const auto& [id, token] : parts_->added) longest = std::max(longest, token.content.size());
  return longest;
}

size_t Tokenizer::vocab_size() const {
  size_t size = parts_->model->vocabulary().end();
  for (const auto& [id, token] : parts_->added) size = std::max(size, static_cast<size_t>(id) + 1);
  return size;
}

// Whether a token is a byte after the first one of a character, as vocabularies that fall back to bytes have it:
// <0x80> to <0xBF>.
static bool is_further_byte(std::string_view token) {
  static constexpr std::string_view first = "89ABab";
  return token.size() == 6 && token.starts_with("<0x") && first.find(token[3]) != std::string_view::npos &&
         token[5] == '>';
}

std::string TextStream::push(uint32_t id) {
  if (tokenizer_.leaves_out(id, skip_special_)) return "";  // it would count as a byte of a character
  ids_.push_back(id);
  auto [text, given] = window();
  if (ids_.size() - settled_ > MOST_HELD) return settle(ids_.size(), text.size() > given ? text.substr(given) : "");
  if (text.size() <= given) return "";
  if (!text.ends_with(REPLACEMENT)) return settle(ids_.size(), text.substr(given));
  if (ids_.size() - settled_ <= LONGEST_CHARACTER) return "";
  // Bytes that are no character are given if the last token begins a new character after them: no further byte of one
  // does.
  size_t further = 0;
  while (further < ids_.size() - settled_ && is_further_byte(tokenizer_.token(ids_[ids_.size() - 1 - further])))
    further++;
  if (further > 0 && further < LONGEST_CHARACTER) return "";
  const size_t count = ids_.size() - 1;
  std::string before = decoded(0, count);
  const bool is_given = before.size() >= given &&
                        std::string_view(before).substr(0, given) == std::string_view(text).substr(0, given);
  if (!is_given || before + decoded(count, count + 1) != text) return "";
  return settle(count, before.substr(given));
}

std::string TextStream::finish() {
  const auto [text, given] = window();
  ids_.clear();
  given_.clear();
  settled_ = 0;
  return text.size() > given ? text.substr(given) : "";
}

std::string TextStream::decoded(size_t begin, size_t end) const {
  return tokenizer_.decode(std::span(ids_).subspan(begin, end - begin), skip_special_);
}

std::pair<std::string, size_t> TextStream::window() const {
  std::string text = decoded(0, ids_.size());
  if (text.starts_with(given_)) return {std::move(text), given_.size()};
  return {
      decoded(settled_, ids_.size()), 0
  };  // single bytes that no longer make a character: what was given stays as it is
}

std::string TextStream::settle(size_t count, std::string piece) {
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(settled_));
  settled_ = count - settled_;
  given_ = decoded(0, settled_);
  return piece;
}

}  // namespace hybridge::text
