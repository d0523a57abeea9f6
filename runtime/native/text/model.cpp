#include "model.h"

#include <algorithm>
#include <array>
#include <limits>
#include <queue>

#include "unicode.h"

namespace hybridge::text {
namespace {

void read_vocabulary(const Json& json, Vocabulary& into) {
  size_t bytes = 0;
  json.each_entry([&](std::string_view text, const Json&) { bytes += text.size(); });
  into.reserve(json.size(), bytes);
  json.each_entry([&](std::string_view text, const Json& number) {
    const auto id = static_cast<uint32_t>(number.integer(LARGEST_ID));
    if (into.id(text)) throw TextError("the vocabulary has the token '" + std::string(text) + "' twice");
    if (into.text(id)) throw TextError("two tokens of the vocabulary have the id " + std::to_string(id));
    into.add(text, id);
  });
}

// The ids of `<0x00>` to `<0xFF>`; none for those that the vocabulary does not have.
std::array<std::optional<uint32_t>, 256> byte_tokens(const Vocabulary& vocabulary) {
  static constexpr char digits[] = "0123456789ABCDEF";
  std::array<std::optional<uint32_t>, 256> all;
  for (size_t byte = 0; byte < 256; byte++) {
    all[byte] = vocabulary.id(std::string("<0x") + digits[byte >> 4] + digits[byte & 15] + ">");
  }
  return all;
}

// Adds a token for each byte of a text; false, and nothing, if one has none.
bool add_bytes(
    const std::array<std::optional<uint32_t>, 256>& tokens, std::string_view text, Token of, std::vector<Token>& into
) {
  const auto token = [&](char byte) { return tokens[static_cast<uint8_t>(byte)]; };
  if (!std::ranges::all_of(text, [&](char byte) { return token(byte).has_value(); })) return false;
  for (const char byte : text) into.push_back({*token(byte), of.begin, of.end});
  return true;
}

// Pairs of tokens that become one, by pair: the earlier in the list, the sooner.
class Merges {
 public:
  struct Merge {
    uint32_t rank, id;
  };

  void reserve(size_t count) {
    size_t size = 16;
    while (size < count * 2) size *= 2;
    entries_.assign(size, {NONE, 0, 0, 0});
  }

  void add(uint32_t left, uint32_t right, Merge merge) {
    entries_[slot(left, right)] = {left, right, merge.rank, merge.id};
  }

  std::optional<Merge> find(uint32_t left, uint32_t right) const {
    const Entry& entry = entries_[slot(left, right)];
    return entry.left == NONE ? std::nullopt : std::optional(Merge{entry.rank, entry.id});
  }

 private:
  static constexpr uint32_t NONE = UINT32_MAX;
  struct Entry {
    uint32_t left, right, rank, id;
  };

  size_t slot(uint32_t left, uint32_t right) const {
    size_t place = mixed(static_cast<uint64_t>(left) << 32 | right) & (entries_.size() - 1);
    while (entries_[place].left != NONE && (entries_[place].left != left || entries_[place].right != right)) {
      place = (place + 1) & (entries_.size() - 1);
    }
    return place;
  }

  std::vector<Entry> entries_;
};

// Byte pair encoding (Sennrich et al. 2016), byte-level or with a fallback to bytes.
class BytePairs : public Model {
 public:
  explicit BytePairs(const Json& json)
      : unknown_text_(json["unk_token"].string_or("")),
        prefix_(json["continuing_subword_prefix"].string_or("")),
        suffix_(json["end_of_word_suffix"].string_or("")),
        fuse_unknown_(json["fuse_unk"].boolean_or(false)),
        ignore_merges_(json["ignore_merges"].boolean_or(false)) {
    if (json["dropout"] && json["dropout"].number() != 0) throw TextError("dropout is for training, and not supported");
    read_vocabulary(json["vocab"], vocabulary_);
    if (json["byte_fallback"].boolean_or(false)) bytes_ = byte_tokens(vocabulary_);
    if (json["merges"].size() > LARGEST_ID) json["merges"].fail("a list of fewer merges than there may be tokens");
    merges_.reserve(json["merges"].size());
    uint32_t rank = 0;
    std::string both;
    json["merges"].each([&](const Json& merge) {
      std::array<std::string_view, 2> parts;
      if (merge.is_string()) {
        const std::string_view line = merge.string();
        if (line.starts_with("#version")) return;
        const size_t blank = line.find(' ');
        if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos)
          merge.fail("two tokens");
        parts = {line.substr(0, blank), line.substr(blank + 1)};
      } else {
        size_t count = 0;
        merge.each([&](const Json& part) {
          if (count == 2) merge.fail("two tokens");
          parts[count++] = part.string();
        });
        if (count != 2) merge.fail("two tokens");
      }
      if (parts[1].size() < prefix_.size()) merge.fail("a pair with the prefix of its vocabulary");
      both.assign(parts[0]).append(parts[1].substr(prefix_.size()));
      const auto left = vocabulary_.id(parts[0]), right = vocabulary_.id(parts[1]), merged = vocabulary_.id(both);
      if (!left || !right || !merged)
        throw TextError("a merge is of tokens that the vocabulary does not have: " + both);
      merges_.add(*left, *right, {rank++, *merged});
    });
    if (!unknown_text_.empty()) unknown_ = vocabulary_.id(unknown_text_);
  }

  void tokenize(std::string_view word, Work&, std::vector<Token>& into) const override {
    if (ignore_merges_) {
      if (const auto id = vocabulary_.id(word)) return into.push_back({*id, 0, word.size()});
    }
    const size_t first = into.size();
    split(word, into);
    merge(into, first, word.size());
  }

 private:
  // Adds the tokens of single characters.
  void split(std::string_view word, std::vector<Token>& into) const {
    std::optional<Token> unknown;  // not added yet: the next one may belong to it
    const auto flush = [&] {
      if (unknown) into.push_back(*unknown);
      unknown.reset();
    };
    std::string affixed;
    for (size_t begin = 0; begin < word.size();) {
      const size_t end = begin + length_of(word[begin]);
      std::string_view text = word.substr(begin, end - begin);
      if ((begin > 0 && !prefix_.empty()) || (end == word.size() && !suffix_.empty())) {
        affixed.assign(begin > 0 ? prefix_ : "").append(text).append(end == word.size() ? suffix_ : "");
        text = affixed;
      }
      if (const auto id = vocabulary_.id(text)) {
        flush();
        into.push_back({*id, begin, end});
      } else if (bytes_ && add_bytes(*bytes_, text, {0, 0, 1}, into)) {
        // an unknown token in front of bytes comes after them, as in the reference
      } else if (!unknown_text_.empty()) {
        if (!unknown_) throw TextError("the vocabulary does not have its unknown token " + unknown_text_);
        if (unknown && fuse_unknown_) {
          unknown->end += end - begin;
        } else {
          flush();
          unknown = Token{*unknown_, begin, end};
        }
      }
      begin = end;
    }
    flush();
  }

  // Merges the tokens from `first` on: of all pairs the one of the least rank, the leftmost of several. They stand one
  // after the other, as in the reference; the bytes of a prefix or a suffix have tokens but no part of the word, which
  // is `size` long.
  void merge(std::vector<Token>& tokens, size_t first, size_t size) const {
    const size_t count = tokens.size() - first;
    struct Symbol {
      uint32_t id;
      uint32_t length;  // in bytes; 0: merged into one in front
      uint32_t last, next;
    };
    struct Candidate {
      uint64_t order;  // rank, then place
      uint32_t id;
    };
    constexpr auto later = [](const Candidate& left, const Candidate& right) { return left.order > right.order; };
    constexpr uint32_t none = UINT32_MAX;
    thread_local std::vector<Symbol> symbols;
    thread_local std::vector<Candidate> queue;
    symbols.clear();
    queue.clear();
    for (uint32_t i = 0; i < count; i++) {
      const Token& token = tokens[first + i];
      symbols.push_back(
          {token.id, static_cast<uint32_t>(token.end - token.begin), i - 1, i + 1 < count ? i + 1 : none}
      );
    }
    const auto consider = [&](uint32_t left, uint32_t right) {
      if (left == none || right == none) return;
      if (const auto found = merges_.find(symbols[left].id, symbols[right].id)) {
        queue.push_back({static_cast<uint64_t>(found->rank) << 32 | left, found->id});
        std::ranges::push_heap(queue, later);
      }
    };
    for (uint32_t i = 0; i + 1 < count; i++) consider(i, i + 1);
    while (!queue.empty()) {
      std::ranges::pop_heap(queue, later);
      const Candidate best = queue.back();
      queue.pop_back();
      const auto place = static_cast<uint32_t>(best.order);
      Symbol& left = symbols[place];
      if (left.length == 0 || left.next == none) continue;
      Symbol& right = symbols[left.next];
      const auto found = merges_.find(left.id, right.id);
      if (!found || found->id != best.id) continue;  // one of the two was merged meanwhile
      left.id = best.id;
      left.length += right.length;
      left.next = right.next;
      right.length = 0;
      if (left.next != none) symbols[left.next].last = place;
      consider(left.last, place);
      consider(place, left.next);
    }
    tokens.resize(first);
    size_t begin = 0;
    for (const Symbol& symbol : symbols) {
      if (symbol.length == 0) continue;
      const size_t end = std::min(begin + symbol.length, size);
      tokens.push_back({symbol.id, begin, end});
      begin = end;
    }
    if (symbols.capacity() > MOST_KEPT) std::vector<Symbol>().swap(symbols);
    if (queue.capacity() > MOST_KEPT) std::vector<Candidate>().swap(queue);
  }

  static constexpr size_t MOST_KEPT = 1 << 14;  // of a long word; memory of a thread's next one

  std::string unknown_text_, prefix_, suffix_;
  bool fuse_unknown_, ignore_merges_;
  std::optional<uint32_t> unknown_;
  std::optional<std::array<std::optional<uint32_t>, 256>> bytes_;
  Merges merges_;
};

// Hashes of the beginnings of a vocabulary's tokens: after one that is none, no longer token begins. A false hit costs
// a look-up.
class Beginnings {
 public:
  explicit Beginnings(const Vocabulary& vocabulary) {
    std::vector<uint64_t> all;
    for (uint32_t id = 0; id < vocabulary.end(); id++) {
      uint64_t hash = 0;
      for (const char byte : vocabulary.text(id).value_or("")) all.push_back(hash = next(hash, byte));
    }
    std::ranges::sort(all);
    all.erase(std::ranges::unique(all).begin(), all.end());
    size_t size = 16;
    while (size < all.size() * 2) size *= 2;
    tags_.assign(size, 0);
    for (const uint64_t hash : all) {
      size_t place = hash & (size - 1);
      while (tags_[place] != 0) place = (place + 1) & (size - 1);
      tags_[place] = tag(hash);
    }
  }

  // The hash of a text and a byte behind it; that of no text is 0.
  static uint64_t next(uint64_t hash, char byte) { return mixed(hash + static_cast<uint8_t>(byte) + 1); }

  bool has(uint64_t hash) const {
    for (size_t place = hash & (tags_.size() - 1); tags_[place] != 0; place = (place + 1) & (tags_.size() - 1)) {
      if (tags_[place] == tag(hash)) return true;
    }
    return false;
  }

 private:
  static uint32_t tag(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) | 1; }

  std::vector<uint32_t> tags_;
};

// The split of the greatest likelihood under a model of independent tokens (Kudo 2018), as SentencePiece finds it.
class Unigram : public Model {
 public:
  explicit Unigram(const Json& json) {
    size_t bytes = 0;
    json["vocab"].each([&](const Json& entry) {
      entry.each([&](const Json& part) { bytes += part.is_string() ? part.size() : 0; });
    });
    vocabulary_.reserve(json["vocab"].size(), bytes);
    json["vocab"].each([&](const Json& entry) {
      size_t place = 0;
      entry.each([&](const Json& part) {
        if (place == 0) {
          vocabulary_.add(part.string(), scores_.size());
        } else if (place == 1) {
          scores_.push_back(part.number());
          least_ = std::min(least_, scores_.back());
        }
        place++;
      });
      if (place != 2) entry.fail("a token and its score");
    });
    if (json["unk_id"]) {
      unknown_ = static_cast<uint32_t>(json["unk_id"].integer(LARGEST_ID));
      if (*unknown_ >= scores_.size()) throw TextError("unk_id is outside the vocabulary");
    }
    if (json["byte_fallback"].boolean_or(false)) bytes_ = byte_tokens(vocabulary_);
    beginnings_.emplace(vocabulary_);
  }

  size_t next_id() const override { return scores_.size(); }  // a piece that is there twice has two

  void tokenize(std::string_view word, Work& work, std::vector<Token>& into) const override {
    struct Best {
      double score = 0;
      size_t begin = NOWHERE;
      uint32_t id = 0;
    };
    const double unknown_score = least_ - 10.0;
    std::vector<Best> best(word.size() + 1);  // by where a token ends
    const auto offer = [&](size_t begin, size_t end, uint32_t id, double score) {
      const double sum = best[begin].score + score;
      if (best[end].begin == NOWHERE || sum > best[end].score) best[end] = {sum, begin, id};
    };
    for (size_t begin = 0; begin < word.size();) {
      const size_t character = length_of(word[begin]);
      bool single = false;
      const size_t most = std::min(vocabulary_.longest(), word.size() - begin);
      uint64_t hash = 0;
      for (size_t length = 1; length <= most; length++) {
        hash = Beginnings::next(hash, word[begin + length - 1]);
        if (!beginnings_->has(hash)) break;
        work.spend(1 + length / 8);  // bytes that the look-up reads at a time
        if (const auto id = vocabulary_.id(word.substr(begin, length))) {
          offer(begin, begin + length, *id, scores_[*id]);
          single = single || length == character;
        }
      }
      if (!single) offer(begin, begin + character, unknown_.value_or(NO_TOKEN), unknown_score);
      begin += character;
    }
    std::vector<Token> found;
    for (size_t end = word.size(); end > 0;) {
      const Best& node = best[end];
      if (node.id == NO_TOKEN)
        throw UnsupportedError("the vocabulary has neither a character of this text nor an unknown token");
      const bool unknown = unknown_ && node.id == *unknown_;
      if (unknown && !found.empty() && found.back().id == *unknown_ && found.back().begin == end) {
        found.back().begin = node.begin;  // unknown characters in a row are one token
      } else {
        found.push_back({node.id, node.begin, end});
      }
      end = node.begin;
    }
    for (auto token = found.rbegin(); token != found.rend(); ++token) {
      const std::string_view text = word.substr(token->begin, token->end - token->begin);
      if (const auto id = vocabulary_.id(text)) into.push_back({*id, token->begin, token->end});
      else if (!bytes_ || !add_bytes(*bytes_, text, *token, into)) into.push_back(*token);
    }
  }

 private:
  static constexpr size_t NOWHERE = SIZE_MAX;
  static constexpr uint32_t NO_TOKEN = UINT32_MAX;

  std::vector<double> scores_;
  double least_ = std::numeric_limits<double>::infinity();
  std::optional<uint32_t> unknown_;
  std::optional<std::array<std::optional<uint32_t>, 256>> bytes_;
  std::optional<Beginnings> beginnings_;
};

// Throws TextError if a vocabulary does not have its unknown token.
uint32_t unknown(std::optional<uint32_t> id, const std::string& text) {
  if (!id) throw TextError("the vocabulary does not have its unknown token " + text);
  return *id;
}

// The longest token, then the longest of what is left (BERT, RWKV).
class WordPiece : public Model {
 public:
  explicit WordPiece(const Json& json)
      : unknown_text_(json["unk_token"].string()),
        prefix_(json["continuing_subword_prefix"].string()),
        most_(json["max_input_chars_per_word"].integer(1 << 30)) {
    read_vocabulary(json["vocab"], vocabulary_);
    unknown_ = vocabulary_.id(unknown_text_);
    beginnings_.emplace(vocabulary_);
    for (const char byte : prefix_) prefix_hash_ = Beginnings::next(prefix_hash_, byte);
  }

  void tokenize(std::string_view word, Work& work, std::vector<Token>& into) const override {
    const size_t first = into.size();
    bool is_known = count_characters(word) <= most_;
    std::string piece;
    for (size_t begin = 0; is_known && begin < word.size();) {
      uint64_t hash = begin > 0 ? prefix_hash_ : 0;
      piece = begin > 0 ? prefix_ : "";
      std::optional<Token> longest;
      for (size_t end = begin; end < word.size();) {
        hash = Beginnings::next(hash, word[end]);
        if (!beginnings_->has(hash)) break;
        work.spend(1 + piece.size() / 8);  // bytes that the look-up reads at a time
        piece += word[end++];
        if (const auto id = vocabulary_.id(piece)) longest = {*id, begin, end};
      }
      is_known = longest.has_value();
      if (is_known) into.push_back(*longest), begin = longest->end;
    }
    if (is_known) return;
    into.resize(first);
    into.push_back({unknown(unknown_, unknown_text_), 0, word.size()});
  }

 private:
  std::string unknown_text_, prefix_;
  uint64_t prefix_hash_ = 0;
  size_t most_;
  std::optional<uint32_t> unknown_;
  std::optional<Beginnings> beginnings_;
};

// A token for each word.
class WordLevel : public Model {
 public:
  explicit WordLevel(const Json& json) : unknown_text_(json["unk_token"].string()) {
    read_vocabulary(json["vocab"], vocabulary_);
    unknown_ = vocabulary_.id(unknown_text_);
  }

  void tokenize(std::string_view word, Work& work, std::vector<Token>& into) const override {
    work.spend(1 + word.size() / 8);
    const auto id = vocabulary_.id(word);
    into.push_back({id ? *id : unknown(unknown_, unknown_text_), 0, word.size()});
  }

 private:
  std::string unknown_text_;
  std::optional<uint32_t> unknown_;
};

// Its name, or what it must be: files of before 2020 do not say.
std::string_view type_of(const Json& json) {
  if (json["type"]) return json["type"].string();
  if (json["merges"]) return "BPE";
  if (json["vocab"].is_array()) return "Unigram";
  return json["continuing_subword_prefix"] ? "WordPiece" : "WordLevel";
}

}  // namespace

std::unique_ptr<Model> read_model(const Json& json) {
  if (!json.is_object()) json.fail("an object");
  const std::string_view type = type_of(json);
  if (type == "BPE") return std::make_unique<BytePairs>(json);
  if (type == "Unigram") return std::make_unique<Unigram>(json);
  if (type == "WordPiece") return std::make_unique<WordPiece>(json);
  if (type == "WordLevel") return std::make_unique<WordLevel>(json);
  throw TextError("the model '" + std::string(type) + "' is not supported");
}

}  // namespace hybridge::text
