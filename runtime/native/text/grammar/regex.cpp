#include "regex.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../error.h"
#include "../pattern.h"
#include "../unicode.h"

namespace hybridge::text {
namespace {

constexpr size_t DEEPEST = 60;       // groups and brackets inside each other
constexpr size_t MOST_CLASSES = 32;  // different ones, each looked up among all characters
constexpr uint32_t MOST_REPETITIONS = 1'000'000;

// A part of an expression: what it matches anywhere, at the beginning of the text alone (after ^), at its end, and as
// a whole.
struct Piece {
  Expression anywhere = Expressions::NONE, first = Expressions::NONE, last = Expressions::NONE,
             whole = Expressions::NONE;
  bool has_anchor() const {
    return first != Expressions::NONE || last != Expressions::NONE || whole != Expressions::NONE;
  }
};

class Reader {
 public:
  Reader(std::string_view pattern, Expressions& in, Writing writing, bool ascii)
      : pattern_(pattern), in_(in), writing_(writing), ascii_(ascii) {
    if (!is_valid_utf8(pattern)) throw TextError("it is not UTF-8");
  }

  Piece read() {
    const Piece all = alternatives(0);
    if (at_ < pattern_.size()) fail("this parenthesis closes no group");
    return all;
  }

 private:
  struct Flags {
    bool ignores_case = false, dot_is_all = false, is_verbose = false;
  };

  [[noreturn]] void fail(const std::string& why) const {
    throw TextError("character " + std::to_string(count_characters(pattern_.substr(0, at_)) + 1) + ": " + why);
  }

  bool has(std::string_view next) const { return pattern_.substr(at_).starts_with(next); }

  bool take(std::string_view next) {
    if (!has(next)) return false;
    at_ += next.size();
    return true;
  }

  char32_t take_character() {
    if (at_ >= pattern_.size()) fail("it ends too early");
    const char32_t character = character_at(pattern_, at_);
    at_ += length_of(pattern_[at_]);
    return character;
  }

  // A | B | ..., up to the end of the group. Flags that are set in it end with it.
  Piece alternatives(size_t depth) {
    if (depth > DEEPEST) fail("groups are nested too deeply");
    const Flags before = flags_;
    std::vector<Expression> choices[4];
    do {
      const Piece piece = sequence(depth);
      choices[0].push_back(piece.anywhere);
      choices[1].push_back(piece.first);
      choices[2].push_back(piece.last);
      choices[3].push_back(piece.whole);
    } while (take("|"));
    flags_ = before;
    return {in_.either(choices[0]), in_.either(choices[1]), in_.either(choices[2]), in_.either(choices[3])};
  }

  Piece sequence(size_t depth) {
    std::vector<Piece> pieces;
    while (skip_blanks(), at_ < pattern_.size() && !has("|") && !has(")")) {
      if (const auto piece = item(depth)) pieces.push_back(repeated(*piece));
    }
    Piece all{.anywhere = Expressions::EMPTY};
    for (; !pieces.empty(); pieces.pop_back()) all = joined(pieces.back(), all);
    return all;
  }

  void skip_blanks() {
    while (flags_.is_verbose && at_ < pattern_.size()) {
      if (take("#")) at_ = std::min(pattern_.size(), pattern_.find('\n', at_));
      else if (is_whitespace(character_at(pattern_, at_))) (void)take_character();
      else return;
    }
  }

  Piece joined(const Piece& one, const Piece& other) {
    if (!one.has_anchor() && !other.has_anchor()) return {.anywhere = in_.concat(one.anywhere, other.anywhere)};
    const bool may_begin = in_.is_nullable(one.anywhere) || in_.is_nullable(one.first);  // nothing is before the other
    const bool may_end = in_.is_nullable(other.anywhere) || in_.is_nullable(other.last);
    const bool is_nothing = (in_.is_nullable(one.last) || in_.is_nullable(one.whole)) &&
                            (in_.is_nullable(other.first) || in_.is_nullable(other.whole));
    const auto either = [&](Expression first, Expression second, bool has_second) {
      return has_second ? in_.either(first, second) : first;
    };
    Piece all;
    all.anywhere = in_.concat(one.anywhere, other.anywhere);
    all.first = either(in_.concat(one.first, other.anywhere), other.first, may_begin);
    all.last = either(in_.concat(one.anywhere, other.last), one.last, may_end);
    all.whole = either(either(in_.concat(one.first, other.last), other.whole, may_begin), one.whole, may_end);
    all.whole = either(all.whole, Expressions::EMPTY, is_nothing);
    return all;
  }

  // One item without what repeats it; none for what changes flags alone.
  std::optional<Piece> item(size_t depth) {
    if (take("(")) return group(depth);
    if (take("[")) return Piece{one_of(in_brackets(depth))};
    if (take("^")) return Piece{.first = Expressions::EMPTY};
    if (take("$")) return Piece{.last = Expressions::EMPTY};
    if (take("\\A")) return Piece{.first = Expressions::EMPTY};
    if (take("\\z")) return Piece{.last = Expressions::EMPTY};
    if (has("*") || has("+") || has("?") || has("{")) fail("there is nothing to repeat");
    if (take(".")) return Piece{one_of(flags_.dot_is_all ? CharacterSet::all() : CharacterSet('\n', '\n').inverted())};
    if (const auto set = class_escape()) return Piece{one_of(*set)};
    const char32_t character = take_literal();
    return Piece{one_of(with_case(CharacterSet(character, character)))};
  }

  std::optional<Piece> group(size_t depth) {
    if (take("?")) {
      if (has("=") || has("!") || has("<=") || has("<!")) fail("look-around is not supported");
      if (take("P<") || take("<")) {
        at_ = pattern_.find('>', at_);
        if (at_ == pattern_.npos || at_++ == pattern_.npos) {
          at_ = pattern_.size();
          fail("the name of a group does not end");
        }
      } else {
        const Flags before = flags_;
        if (!read_flags()) return std::nullopt;
        Piece inner = closed_group(depth);
        flags_ = before;
        return inner;
      }
    }
    return closed_group(depth);
  }

  Piece closed_group(size_t depth) {
    const Piece inner = alternatives(depth + 1);
    if (!take(")")) fail("a group is not closed");
    return inner;
  }

  // Reads flags up to a colon, or to the end of the parenthesis: false, as no group begins.
  bool read_flags() {
    bool value = true;
    for (;;) {
      switch (take_character()) {
        case ':': return true;
        case ')': return false;
        case '-': value = false; break;
        case 'i': flags_.ignores_case = value; break;
        case 's': flags_.dot_is_all = value; break;
        case 'x': flags_.is_verbose = value; break;
        case 'U': break;  // which of several matches is taken makes no difference to a text as a whole
        case 'u':
          if (value) break;
          [[fallthrough]];
        default: fail("only the flags i, s, x, u and U are supported");
      }
    }
  }

  Piece repeated(Piece piece) {
    while (skip_blanks(), has("*") || has("+") || has("?") || has("{")) {
      uint32_t least = 0, most = Expressions::UNLIMITED;
      if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (take("{")) {
        least = most = take_count();
        if (take(",")) most = has("}") ? Expressions::UNLIMITED : take_count();
        if (!take("}")) fail("a repetition is written as {2}, {2,} or {2,5}");
        if (least > most) fail("a repetition is at least as often as it is at most");
      } else {
        take("*");
      }
      take("?");  // which of several matches is taken makes no difference
      if (piece.has_anchor() && most > 1) fail("^ and $ cannot be repeated");
      piece.anywhere = in_.repeat(piece.anywhere, least, most);
      if (piece.has_anchor() && least == 0) piece.anywhere = in_.optional(piece.anywhere);
      if (most == 0) piece = {.anywhere = Expressions::EMPTY};
    }
    return piece;
  }

  uint32_t take_count() {
    uint32_t count = 0;
    const size_t begin = at_;
    for (; at_ < pattern_.size() && '0' <= pattern_[at_] && pattern_[at_] <= '9'; at_++) {
      count = count * 10 + static_cast<uint32_t>(pattern_[at_] - '0');
      if (count > MOST_REPETITIONS) fail("a count is larger than " + std::to_string(MOST_REPETITIONS));
    }
    if (at_ == begin) fail("a repetition is written as {2}, {2,} or {2,5}");
    return count;
  }

  CharacterSet with_case(CharacterSet set) { return flags_.ignores_case ? set.without_case() : set; }

  Expression one_of(const CharacterSet& set) {
    if (set.is_one_of_ascii()) return text::one_of(set, writing_, in_);
    const auto [found, is_new] = made_.try_emplace(set);
    if (is_new) found->second = text::one_of(set, writing_, in_);
    return found->second;
  }

  CharacterSet of_class(const std::string& inside) {
    const auto [found, is_new] = classes_.try_emplace(inside);
    if (is_new) {
      if (classes_.size() > MOST_CLASSES) fail("it has too many different classes of characters");
      found->second = CharacterSet::of_class("[" + inside + "]");
    }
    return found->second;
  }

  // \d, \pL and the like.
  std::optional<CharacterSet> class_escape() {
    if (!has("\\") || at_ + 1 >= pattern_.size()) return std::nullopt;
    const char name = pattern_[at_ + 1];
    const bool is_inverted = 'A' <= name && name <= 'Z';
    CharacterSet set;
    switch (name) {
      case 'd':
      case 'D':
        if (ascii_) set.add('0', '9');
        else set = of_class("\\p{Nd}");
        break;
      case 'w':
      case 'W':
        if (!ascii_) set = of_class(RUST_WORD);
        else add_ascii("word", set);
        break;
      case 's':
      case 'S':
        for (char32_t each = 0; each <= 0x3000; each++) {
          if (is_whitespace(each)) set.add(each, each);
        }
        break;
      case 'p':
      case 'P': {
        at_ += 2;
        set = property();
        return with_case(is_inverted ? set.inverted() : set);
      }
      default: return std::nullopt;
    }
    at_ += 2;
    return is_inverted ? set.inverted() : set;
  }

  CharacterSet property() {
    std::string name;
    if (take("{")) {
      const size_t end = pattern_.find('}', at_);
      if (end == pattern_.npos) fail("a class is not closed");
      name = pattern_.substr(at_, end - at_);
      const bool is_plain = std::ranges::all_of(name, [](char c) {
        return ('a' <= (c | 32) && (c | 32) <= 'z') || c == '_';
      });
      if (name.empty() || !is_plain) fail("the class \\p{" + name + "} is not known");
      at_ = end + 1;
    } else {
      append(name, take_character());
    }
    for (const char* kind : {"sc:", ""}) {  // a script by its letters alone, or another class
      const std::string expression = "\\p{" + (kind + name) + "}";
      try {
        return of_class(expression);
      } catch (const TextError&) {
        classes_.erase(expression);
      }
    }
    fail("the class \\p{" + name + "} is not known");
  }

  // A character, or an escape that stands for one.
  char32_t take_literal() {
    const char32_t character = take_character();
    if (character != '\\') return character;
    const char32_t escaped = take_character();
    switch (escaped) {
      case 'n': return '\n';
      case 't': return '\t';
      case 'r': return '\r';
      case 'f': return '\f';
      case 'v': return '\v';
      case 'a': return '\a';
      case 'x': return take_number(2);
      case 'u': return take_number(4);
      case 'U': return take_number(8);
      case 'b':
      case 'B':
      case '<':
      case '>': fail("look-around such as \\" + to_utf8(escaped) + " is not supported");
      default: break;
    }
    if ('0' <= escaped && escaped <= '9') fail("back-references are not supported");
    if (escaped >= 0x80 || escaped < 0x21 || ('a' <= (escaped | 32) && (escaped | 32) <= 'z')) {
      fail("the escape \\" + to_utf8(escaped) + " is not known");
    }
    return escaped;
  }

  char32_t take_number(size_t digits) {
    const bool has_braces = take("{");
    uint32_t number = 0;
    size_t count = 0;
    for (; at_ < pattern_.size() && (has_braces ? !has("}") : count < digits); count++) {
      const char32_t digit = take_character(), letter = digit | 32;
      const bool is_letter = 'a' <= letter && letter <= 'f';
      if ((!is_letter && (digit < '0' || digit > '9')) || count >= 8)
        fail("a character's number is written in hexadecimal digits");
      number = number * 16 + (is_letter ? letter - 'a' + 10 : digit - '0');
    }
    if ((has_braces && !take("}")) || count == 0 || (!has_braces && count < digits))
      fail("a character's number is not complete");
    if (number > 0x10FFFF || (0xD800 <= number && number <= 0xDFFF)) fail("there is no character of this number");
    return number;
  }

  // What is after [, up to its ].
  CharacterSet in_brackets(size_t depth) {
    if (depth > DEEPEST) fail("brackets are nested too deeply");
    const bool is_inverted = take("^");
    CharacterSet set;
    bool is_first = true;
    for (;; is_first = false) {
      skip_blanks();
      if (at_ >= pattern_.size()) fail("a class is not closed");
      if (!is_first && take("]")) break;
      if (take("&&")) {
        set = set.intersection(operand(depth));
      } else if (take("--")) {
        set = set.intersection(operand(depth).inverted());
      } else if (take("~~")) {
        const CharacterSet other = operand(depth), common = set.intersection(other);
        set.add(other);
        set = set.intersection(common.inverted());
      } else if (take("[:")) {
        add_named(set);
      } else if (take("[")) {
        set.add(in_brackets(depth + 1));
      } else if (const auto inner = class_escape()) {
        set.add(*inner);
      } else {
        add_range(set);
      }
    }
    set = with_case(set);
    return is_inverted ? set.inverted() : set;
  }

  // What is after &&, -- or ~~: all up to the next of them, or to the end.
  CharacterSet operand(size_t depth) {
    CharacterSet set;
    for (;;) {
      skip_blanks();
      if (at_ >= pattern_.size()) fail("a class is not closed");
      if (has("]") || has("&&") || has("--") || has("~~")) return set;
      if (take("[:")) add_named(set);
      else if (take("[")) set.add(in_brackets(depth + 1));
      else if (const auto inner = class_escape()) set.add(*inner);
      else add_range(set);
    }
  }

  void add_range(CharacterSet& set) {
    const char32_t first = take_literal();
    if (!has("-") || has("-]") || has("--")) return set.add(first, first);
    take("-");
    if (has("[") || class_escape()) fail("a range ends with a character");
    const char32_t last = take_literal();
    if (last < first) fail("a range is upside down");
    CharacterSet range(first, last);
    set.add(range.intersection(CharacterSet::all()));
  }

  void add_named(CharacterSet& set) {
    const size_t end = pattern_.find(":]", at_);
    std::string name(pattern_.substr(at_, end == pattern_.npos ? 0 : end - at_));
    const bool is_inverted = name.starts_with('^');
    CharacterSet named;
    if (!add_ascii(std::string_view(name).substr(is_inverted), named)) fail("the class [:" + name + ":] is not known");
    at_ = end + 2;
    set.add(is_inverted ? named.inverted() : named);
  }

  // Adds a class of ASCII by its name in POSIX; false for an unknown one.
  static bool add_ascii(std::string_view name, CharacterSet& set) {
    static constexpr std::pair<std::string_view, std::string_view> classes[] = {
        {"alnum", "09AZaz"},
        {"alpha", "AZaz"},
        {"ascii", std::string_view("\0\x7F", 2)},
        {"blank", "\t\t  "},
        {"cntrl", std::string_view("\0\x1F\x7F\x7F", 4)},
        {"digit", "09"},
        {"graph", "!~"},
        {"lower", "az"},
        {"print", " ~"},
        {"punct", "!/:@[`{~"},
        {"space", "\t\r  "},
        {"upper", "AZ"},
        {"word", "09AZ__az"},
        {"xdigit", "09AFaf"}
    };
    const auto found = std::ranges::find(classes, name, &std::pair<std::string_view, std::string_view>::first);
    if (found == std::end(classes)) return false;
    for (size_t i = 0; i < found->second.size(); i += 2) {
      set.add(static_cast<char32_t>(found->second[i]), static_cast<char32_t>(found->second[i + 1]));
    }
    return true;
  }

  std::string_view pattern_;
  Expressions& in_;
  const Writing writing_;
  const bool ascii_;
  size_t at_ = 0;
  Flags flags_;
  std::map<std::string, CharacterSet> classes_;
  std::map<CharacterSet, Expression> made_;
};

}  // namespace

Expression read_regex(std::string_view pattern, Expressions& in, Writing writing) {
  const Piece found = Reader(pattern, in, writing, false).read();
  return in.either({found.anywhere, found.first, found.last, found.whole});
}

Expression read_pattern_of_schema(std::string_view pattern, Expressions& in) {
  const Piece found = Reader(pattern, in, Writing::JSON, true).read();
  const Expression any = in.repeat(one_of(CharacterSet::all(), Writing::JSON, in), 0, Expressions::UNLIMITED);
  const Expression first = in.either(found.first, in.concat(any, found.anywhere));
  const Expression last = in.either(found.whole, in.concat(any, found.last));
  return in.either(in.concat(first, any), last);
}

}  // namespace hybridge::text
