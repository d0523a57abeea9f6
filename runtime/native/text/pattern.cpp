#include "pattern.h"

#include <algorithm>
#include <array>

#define PCRE2_CODE_UNIT_WIDTH 8
#define PCRE2_STATIC 1
#define PCRE2_EXPORT
#include "../third_party/pcre2/pcre2.h"
#include "error.h"
#include "unicode.h"

namespace hybridge::text {
namespace {

// Classes in Oniguruma's sense, inside brackets. PCRE2's \s has U+180E besides, its \w other marks.
constexpr std::string_view WHITESPACE = "\\x{9}-\\x{d}\\x{85}\\p{Z}";
constexpr std::string_view NO_WHITESPACE =  // all categories but Z, and of Cc what is no white space
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{7f}-\\x{84}\\x{86}-\\x{9f}\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Cs}\\p{Co}\\p{Cn}";
constexpr std::string_view WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// Steps that a match is tried with first, and how many times more each time that they were not enough. PCRE2 does not
// say how many it took: all that it was given are spent.
constexpr uint32_t FIRST_STEPS = 128, MORE_STEPS = 8;

[[noreturn]] void refuse(std::string_view expression, const std::string& why) {
  throw TextError("the regular expression '" + std::string(expression) + "' " + why);
}

// Whether PCRE2 knows a script by this name.
bool is_script(std::string_view name) {
  const std::string expression = "\\p{sc:" + std::string(name) + "}";
  int error;
  PCRE2_SIZE place;
  const auto* words = reinterpret_cast<PCRE2_SPTR>(expression.data());
  pcre2_code* code = pcre2_compile(words, expression.size(), PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

// A property such as {L} or {^Han}, with its braces. A script is the characters of that script to Oniguruma; PCRE2
// takes those that are used with it for it, too, unless it is told.
std::string property(std::string_view braces) {
  const size_t begin = braces.starts_with("{^") ? 2 : 1;
  const std::string_view name = braces.substr(begin, braces.size() - begin - 1);
  return std::string(braces.substr(0, begin)) + (is_script(name) ? "sc:" : "") + std::string(name) + "}";
}

// The expression in PCRE2's syntax. What the two read in different ways, and no published tokenizer uses, is refused.
std::string translate(std::string_view from) {
  std::string to;
  bool in_class = false;
  for (size_t i = 0; i < from.size(); i++) {
    const char c = from[i];
    const char next = i + 1 < from.size() ? from[i + 1] : '\0';
    if (c == '\\') {
      i++;
      switch (next) {
        case '\0': refuse(from, "ends in a backslash");
        case 's': to += in_class ? std::string(WHITESPACE) : "[" + std::string(WHITESPACE) + "]"; break;
        case 'w': to += in_class ? std::string(WORD) : "[" + std::string(WORD) + "]"; break;
        case 'S': to += in_class ? std::string(NO_WHITESPACE) : "[^" + std::string(WHITESPACE) + "]"; break;
        case 'W':
          if (in_class) refuse(from, "has \\W inside brackets, which is not supported");
          to += "[^" + std::string(WORD) + "]";
          break;
        case 'h':
        case 'H':
        case 'R':
        case 'X':
        case 'N':
        case 'O':
        case 'K':
        case 'Q':
        case 'E':
        case 'y':
        case 'Y':
        case 'M':
        case 'C':
        case 'g':
        case 'k':
        case 'u':
        case 'b':
        case 'B': refuse(from, std::string("has \\") + next + ", which is not supported");
        default: {
          // \p{L} and \x{20} are copied whole: their braces repeat nothing
          const size_t end = (next == 'p' || next == 'P' || next == 'x') && from.substr(i + 1).starts_with('{')
                                 ? from.find('}', i)
                                 : i;
          if (end == std::string_view::npos) refuse(from, "has a brace that never ends");
          to += '\\';
          to += from[i];
          if (end > i)
            to += next == 'x' ? std::string(from.substr(i + 1, end - i)) : property(from.substr(i + 1, end - i));
          i = end;
        }
      }
    } else if (in_class) {
      if (c == '[' && next == ':') {  // [:alpha:] and the like are one word to both
        const size_t end = from.find(":]", i);
        if (end == std::string_view::npos) refuse(from, "has a class that never ends");
        to += from.substr(i, end + 2 - i);
        i = end + 1;
      } else if (c == '[' || (c == '&' && next == '&')) {
        refuse(from, "has sets inside brackets, which are not supported");
      } else {
        in_class = c != ']';
        to += c;
      }
    } else if (c == '[') {
      in_class = true;
      to += c;
      if (next == '^') to += from[++i];
      if (i + 1 < from.size() && from[i + 1] == ']') to += "\\]", i++;
    } else if (c == '(' && next == '?') {
      const std::string_view rest = from.substr(i + 2);
      static constexpr std::string_view known[] = {":", "=", "!", "<=", "<!", ">", "i:", "i)", "-i:", "-i)"};
      bool same = false;
      for (const auto each : known) same = same || rest.starts_with(each);
      if (!same) refuse(from, "has a group '(?" + std::string(rest.substr(0, 4)) + "', which is not supported");
      to += c;
    } else if (c == '}' && next == '+') {
      refuse(from, "has a '+' after braces, which repeats in one syntax and is possessive in the other");
    } else {
      to += c;
    }
  }
  return to;
}

struct Scratch {  // of a thread: matching needs memory of its own
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

// The next match at or after `from`; false if there is none.
bool search(const void* code, std::string_view text, size_t from, Work& work, size_t& begin, size_t& end) {
  thread_local Scratch scratch;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto* pattern = static_cast<const pcre2_code*>(code);
  int answer = PCRE2_ERROR_MATCHLIMIT;
  for (uint64_t steps = FIRST_STEPS; answer == PCRE2_ERROR_MATCHLIMIT; steps *= MORE_STEPS) {
    work.spend(steps);
    pcre2_set_match_limit(scratch.context, static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
    answer = pcre2_match(pattern, subject, text.size(), from, PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
  }
  if (answer == PCRE2_ERROR_NOMATCH) return false;
  if (answer < 0) throw TextError("a regular expression needs too much memory for this text");
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(scratch.data);
  begin = found[0];
  end = found[1];
  return true;
}

}  // namespace

Pattern::Pattern(const std::string& translated, std::string_view original) {
  int error;
  PCRE2_SIZE place;
  // A repetition that gives nothing back is no step, however long it is: without it, steps tell the work.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_POSSESS;
  const auto* words = reinterpret_cast<PCRE2_SPTR>(translated.data());
  pcre2_code* code = pcre2_compile(words, translated.size(), options, &error, &place, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 120> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    refuse(original, "is damaged: " + std::string(reinterpret_cast<const char*>(message.data())));
  }
  code_.reset(code, [](void* each) { pcre2_code_free(static_cast<pcre2_code*>(each)); });
}

Pattern Pattern::regex(std::string_view expression) { return Pattern(translate(expression), expression); }

Pattern Pattern::literal(std::string_view text) {
  if (text.empty()) return regex("");  // which is found in front of each character
  Pattern pattern;
  pattern.literal_ = text;
  return pattern;
}

std::vector<Found> Pattern::parts(std::string_view text, Work& work) const {
  std::vector<Found> all;
  size_t last = 0, from = 0, begin, end;
  bool matched = false;  // at `last`
  while (from <= text.size()) {
    if (code_ != nullptr) {
      if (!search(code_.get(), text, from, work, begin, end)) break;
    } else {
      if ((begin = text.find(literal_, from)) == std::string_view::npos) break;
      end = begin + literal_.size();
    }
    if (begin == end && matched && end == last) {  // no empty match right after a match
      from += from < text.size() ? length_of(text[from]) : 1;
      continue;
    }
    if (last != begin) all.push_back({last, begin, false});
    all.push_back({begin, end, true});
    last = from = end;
    matched = true;
  }
  if (last != text.size()) all.push_back({last, text.size(), false});
  return all;
}

bool Pattern::matches(std::string_view text) const {
  size_t begin, end;
  Work work(text.size());
  return search(code_.get(), text, 0, work, begin, end) && begin == 0 && end == text.size();
}

}  // namespace hybridge::text
