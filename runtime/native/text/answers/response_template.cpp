#include "response_template.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "../error.h"
#include "value.h"

namespace hybridge::text {
namespace {

constexpr size_t LONGEST_PATTERN = 4096, LONGEST_MARK = 128, MOST_MARKS = 16, MOST_FIELDS = 16,
                 MOST_TEXT = size_t{1} << 16;
constexpr std::string_view SPACE = " \t\n\r\v\f";
constexpr const char* REASONING[] = {"reasoning_content", "thinking", "reasoning"};

// A piece of a regular expression: TEXT stands for itself, BLANK is white space that may be missing, NAME is a group
// with a name, GAP is anything else that varies, and OR is between two ways to match.
struct Piece {
  enum class Kind : uint8_t { TEXT, BLANK, NAME, GAP, OR };

  Kind kind;
  std::string text = {};  // the text or the name
  size_t depth = 0;       // the number of groups around it
};

using Kind = Piece::Kind;
using Way = std::vector<Piece>;

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> all) {
  return std::find(all.begin(), all.end(), text) != all.end();
}

bool has(const Marks& marks, const std::string& mark) {
  return std::find(marks.begin(), marks.end(), mark) != marks.end();
}

// A name of the checkpoint's in a message.
std::string quoted(std::string_view name) {
  size_t size = std::min<size_t>(name.size(), 40);
  while (size < name.size() && (static_cast<unsigned char>(name[size]) & 0xC0) == 0x80) size--;
  return to_json(name.substr(0, size));
}

void add_new(Marks& marks, const Marks& more) {
  for (const std::string& each : more) {
    if (!has(marks, each)) marks.push_back(each);
  }
}

// Takes an expression apart in one pass; groups become a part of what is around them. has_names: but for those with
// names.
class PatternReader {
 public:
  explicit PatternReader(std::string_view pattern, bool has_names = true) : pattern_(pattern), has_names_(has_names) {
    if (pattern.size() > LONGEST_PATTERN)
      throw TextError("has a pattern of more than " + std::to_string(LONGEST_PATTERN) + " bytes");
  }

  std::vector<Piece> read() {
    while (at_ < pattern_.size()) {
      const char each = pattern_[at_++];
      switch (each) {
        case '\\': escape(); break;
        case '[':
          skip_class();
          add(Kind::GAP);
          break;
        case '(': begin_group(); break;
        case ')': end_group(); break;
        case '|': add(Kind::OR); break;
        case '.': add(Kind::GAP); break;
        case '^':
        case '$': break;
        default:
          at_--;
          if (take_quantifier()) {
            vary();
          } else {
            at_++;
            add(Kind::TEXT, each);
          }
      }
    }
    if (!groups_.empty()) throw TextError("has a pattern with an open group");
    return std::move(pieces_);
  }

 private:
  void add(Kind kind) { pieces_.push_back({kind, {}, groups_.size()}); }

  void add(Kind, char text) {
    if (pieces_.empty() || pieces_.back().kind != Kind::TEXT || pieces_.size() == unjoined_) add(Kind::TEXT);
    pieces_.back().text += text;
  }

  void escape() {
    if (at_ == pattern_.size()) throw TextError("has a pattern that ends with a backslash");
    const char each = pattern_[at_++];
    if (each == 's') return add(Kind::BLANK);
    if (each == 'n') return add(Kind::TEXT, '\n');
    if (each == 't') return add(Kind::TEXT, '\t');
    if (is_one_of({&each, 1}, {"b", "A", "Z"})) return;
    const bool is_class = (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') || (each >= '0' && each <= '9');
    is_class ? add(Kind::GAP) : add(Kind::TEXT, each);
  }

  void begin_group() {
    const std::string_view rest = pattern_.substr(at_);
    unjoined_ = pieces_.size();
    const bool looks_back = rest.starts_with("?<=") || rest.starts_with("?<!");
    if (rest.starts_with("?P<") || (rest.starts_with("?<") && !looks_back)) {
      const size_t begin = rest.find('<') + 1, end = rest.find('>');
      if (end == rest.npos) throw TextError("has a pattern with an open group");
      at_ += end + 1;
      if (!has_names_) return groups_.push_back(pieces_.size());
      pieces_.push_back({Kind::NAME, std::string(rest.substr(begin, end - begin)), groups_.size()});
      return skip_group();
    }
    if (looks_back || rest.starts_with("?=") || rest.starts_with("?!")) return skip_group();
    if (rest.starts_with("?") && !rest.starts_with("?:"))
      throw TextError("has a pattern with a group that is not known");
    at_ += rest.starts_with("?:") ? 2 : 0;
    groups_.push_back(pieces_.size());
  }

  void end_group() {
    if (groups_.empty()) throw TextError("has a pattern with a parenthesis too many");
    const size_t begin = groups_.back();
    groups_.pop_back();
    unjoined_ = pieces_.size();
    if (!take_quantifier()) return;
    pieces_.insert(pieces_.begin() + static_cast<ptrdiff_t>(begin), {Kind::GAP, {}, groups_.size()});
    add(Kind::GAP);
  }

  void skip_group() {
    for (size_t depth = 1; depth > 0;) {
      if (at_ == pattern_.size()) throw TextError("has a pattern with an open group");
      const char each = pattern_[at_++];
      if (each == '\\') at_ += at_ < pattern_.size();
      if (each == '[') skip_class();
      depth += each == '(';
      depth -= each == ')';
    }
    take_quantifier();
  }

  void skip_class() {
    at_ += at_ < pattern_.size() && pattern_[at_] == '^';
    for (size_t begin = at_; at_ < pattern_.size(); ++at_) {
      if (pattern_[at_] == '\\') {
        at_++;
      } else if (pattern_[at_] == ']' && at_ > begin) {
        at_++;
        return;
      }
    }
    throw TextError("has a pattern with an open bracket");
  }

  bool take_quantifier() {
    const std::string_view rest = pattern_.substr(at_);
    size_t size = !rest.empty() && is_one_of(rest.substr(0, 1), {"*", "+", "?"});
    if (rest.starts_with("{")) {
      const size_t end = rest.find_first_not_of("0123456789,", 1);
      if (end != rest.npos && end > 1 && rest[end] == '}') size = end + 1;
    }
    if (size == 0) return false;
    at_ += size;
    if (at_ < pattern_.size() && is_one_of(pattern_.substr(at_, 1), {"?", "+"})) at_++;
    return true;
  }

  // What came last may be missing or come again.
  void vary() {
    if (pieces_.empty() || pieces_.back().kind != Kind::TEXT) return;
    std::string& text = pieces_.back().text;
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) begin--;
    const bool is_blank = SPACE.find(text[begin]) != SPACE.npos;
    text.resize(begin);
    if (text.empty()) pieces_.pop_back();
    add(is_blank ? Kind::BLANK : Kind::GAP);
  }

  std::string_view pattern_;
  bool has_names_;
  size_t at_ = 0, unjoined_ = 0;  // unjoined_: the number of pieces before a group's beginning or end
  std::vector<Piece> pieces_ = {};
  std::vector<size_t> groups_ = {};  // the pieces before each open one
};

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(SPACE);
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(SPACE) - begin + 1);
}

std::vector<Way> split(std::vector<Piece> pieces) {
  std::vector<Way> ways(1);
  size_t depth = 0;
  for (const Piece& each : pieces) depth = each.kind == Kind::OR ? each.depth : depth;
  for (Piece& each : pieces) {
    if (each.kind == Kind::OR) {
      ways.emplace_back();
    } else if (each.depth < depth && each.kind != Kind::BLANK) {
      throw TextError("has a pattern with alternatives in its middle");
    } else {
      ways.back().push_back(std::move(each));
    }
  }
  for (Way& way : ways) {
    const auto is_text = [](const Piece& each) { return each.kind != Kind::BLANK; };
    way.erase(way.begin(), std::find_if(way.begin(), way.end(), is_text));
    way.erase(std::find_if(way.rbegin(), way.rend(), is_text).base(), way.end());
  }
  return ways;
}

// The ways to open or close a field; none if it says nothing.
std::vector<Way> ways_of(const Json& field, const std::string& key) {
  const Json literal = field[key], pattern = field[key + "_pattern"];
  if (literal && pattern) throw TextError("has '" + key + "' and '" + key + "_pattern'");
  if (pattern) return split(PatternReader(pattern.string()).read());
  std::vector<Way> ways;
  const auto add = [&](const Json& each) { ways.push_back({{Kind::TEXT, std::string(each.string())}}); };
  if (literal.is_array()) {
    literal.each(add);
  } else if (literal) {
    add(literal);
  }
  return ways;
}

std::string mark_of(const Piece& piece) {
  const std::string_view mark = trimmed(piece.text);
  if (mark.empty()) throw TextError("has a mark of white space");
  if (mark.size() > LONGEST_MARK) throw TextError("has a mark of more than " + std::to_string(LONGEST_MARK) + " bytes");
  return std::string(mark);
}

// The texts at the ends of the ways; those before them are added to `others`. A way that matches an empty text has
// none.
Marks marks_of(const std::vector<Way>& ways, Marks& others) {
  if (ways.size() > MOST_MARKS) throw TextError("has more than " + std::to_string(MOST_MARKS) + " marks");
  Marks marks;
  for (const Way& way : ways) {
    if (way.empty()) continue;
    if (way.back().kind != Kind::TEXT) throw TextError("has a pattern that does not end with a text");
    for (const Piece& each : way) {
      if (each.kind == Kind::NAME) throw TextError("has a pattern with a name that is not expected");
      if (each.kind == Kind::TEXT) add_new(&each == &way.back() ? marks : others, {mark_of(each)});
    }
    if (others.size() > MOST_MARKS * MOST_FIELDS) throw TextError("has too many texts");
  }
  return marks;
}

// Adds the texts of the literals and expressions in a part of the description, each on a line.
void add_texts(const Json& part, std::string& texts) {
  if (texts.size() > MOST_TEXT) return;
  if (part.is_array()) part.each([&](const Json& each) { add_texts(each, texts); });
  if (part.is_object()) part.each_entry([&](std::string_view, const Json& each) { add_texts(each, texts); });
  if (!part.is_string() || part.string().size() > LONGEST_PATTERN) return;
  if (part.string().find("(?") == std::string_view::npos) texts += std::string(part.string()) + "\n";
  try {
    for (const Piece& each : PatternReader(part.string(), false).read())
      texts += each.kind == Kind::TEXT ? each.text + "\n" : "";
  } catch (const TextError&) {  // a literal that is no expression
  }
}

std::string texts_in(const Json& part) {
  std::string texts;
  add_texts(part, texts);
  return texts;
}

// The description of calls.
class CallDescription {
 public:
  explicit CallDescription(const Json& field) : field_(field), texts_(texts_in(field)) {
    const std::string_view content = field["content"].string_or("text");
    is_json_ = content == "json";
    if (!is_json_ && content != "xml-inline") throw TextError("has calls that are written as " + quoted(content));
    for (const char* key : {"unquoted_keys", "string_delims"})
      has_dialect_ = has_dialect_ || field["content_args"][key];
    for (const Piece& each : name_pieces()) is_named_ = is_named_ || each.kind == Kind::NAME;
    check_transform();
  }

  // Tells whether a form of the table reads such calls, whose texts are in `all`.
  bool is_of(const AnswerForm& form, std::string_view all) const {
    const auto are_in = [&](const Marks& marks) {
      return std::all_of(marks.begin(), marks.end(), [&](const std::string& each) {
        return all.find(each) != all.npos;
      });
    };
    const CallForm& calls = form.calls;
    if (calls.open.empty() || std::none_of(form.markers.begin(), form.markers.end(), are_in)) return false;
    Marks closes = calls.close;
    if (!calls.item_close.empty()) closes.push_back(calls.item_close);
    const auto is_here = [&](const std::string& each) { return texts_.find(each) != texts_.npos; };
    const bool has_messages = form.has_channels && calls.syntax == CallSyntax::JSON;
    if (!has_messages && !closes.empty() && std::none_of(closes.begin(), closes.end(), is_here)) return false;
    switch (calls.syntax) {
      case CallSyntax::JSON: return is_json_ && is_named_ == form.has_channels && !has_dialect_;
      case CallSyntax::NAMED: return is_json_ && is_named_ && !has_dialect_;
      case CallSyntax::GEMMA: return is_json_ && is_named_;
      case CallSyntax::PYTHON: return !is_json_ && is_named_;
      default:
        return !is_json_ && is_named_ && is_here(calls.key_open.substr(0, calls.key_open.find(' '))) &&
               is_here(calls.value_end);
    }
  }

  // Throws TextError if no form can say it.
  CallForm form(Marks& others) const {
    if (has_dialect_) throw TextError("has calls in JSON with its own delimiters");
    if (is_json_ && !is_named_) {
      CallForm form{
          .open = marks_of(ways_of(field_, "open"), others), .close = marks_of(ways_of(field_, "close"), others)
      };
      if (form.open.empty()) throw TextError("has nothing that opens it");
      (field_["transform_each"].boolean_or(false) ? form.listed : form.written) = {call_};
      return form;
    }
    return named_form(others);
  }

 private:
  std::vector<Piece> name_pieces() const {
    const Json pattern = field_["open_pattern"];
    return pattern ? PatternReader(pattern.string()).read() : std::vector<Piece>{};
  }

  // A value of the transform says where the name and the arguments of a call are; they must be where all calls have
  // them.
  void check_transform() {
    const Json transform = field_["transform"];
    if (!transform) return;
    const Json function = transform["function"].is_missing() ? transform : transform["function"];
    if (function.is_string() && function.string() == "{content}" && !is_named_) return;
    const auto place = [](const Json& value) {
      std::string_view text = value.is_string() ? value.string() : "";
      if (!text.starts_with('{') || !text.ends_with('}')) return std::string_view();
      text = text.substr(1, text.size() - 2);
      return text.starts_with("content.") ? text.substr(8) : text;
    };
    const std::string_view name = place(function["name"]), arguments = place(function["arguments"]);
    bool is_right = is_named_ ? arguments == "content" : is_one_of(name, {"name", "tool_name"});
    if (!is_named_) is_right = is_right && is_one_of(arguments, {"arguments", "parameters", "args"});
    if (!is_right) throw TextError("has a 'transform' with other keys than those of calls");
    if (!is_named_)
      call_ = "{\"" + std::string(name) + "\": \"$name\", \"" + std::string(arguments) + "\": $arguments}";
  }

  CallForm named_form(Marks& others) const {
    const std::vector<Way> opens = ways_of(field_, "open");
    if (opens.size() != 1 || !is_named_) throw TextError("has calls whose names are not in their opening");
    Marks before;
    std::string after;
    bool has_gap = false, is_after = false;
    for (const Piece& each : opens.front()) {
      if (each.kind == Kind::NAME) is_after = true;
      if (each.kind == Kind::GAP && !is_after) has_gap = has_gap || !before.empty();
      if (each.kind != Kind::TEXT) continue;
      if (!is_after) before.push_back(mark_of(each));
      if (is_after && after.empty()) after = mark_of(each);
    }
    if (before.empty() || before.size() > 2) throw TextError("has calls that no text opens");
    CallForm form{
        .syntax = CallSyntax::NAMED, .open = {before.front()}, .close = marks_of(ways_of(field_, "close"), others)
    };
    if (!after.empty()) form.name_end = {after};
    if (before.size() == 2) (has_gap ? form.name_after : form.item_open) = before.back();
    form.written = {form.name_after + "$name" + after + "$arguments"};
    if (is_json_) return form;
    if (has_gap || after.empty() || form.close.empty())
      throw TextError("has calls in tags that no text opens and closes");
    read_tags(form);
    return form;
  }

  void read_tags(CallForm& form) const {
    const Json parser = field_["content_args"]["value_parser"]["name"];
    if (parser && !is_one_of(parser.string(), {"json", "text"}))
      throw TextError("has arguments that are written in another way");
    const std::vector<Way> ways = split(PatternReader(field_["content_args"]["tag_pattern"].string()).read());
    Marks marks;              // before the key, between it and the value, and after the value
    std::string order;        // k: the key, v: the value, t: a text
    bool is_divided = false;  // white space may be between two texts before the value
    for (const Piece& each : ways.front()) {
      if (each.kind == Kind::NAME) order += each.text == "key" ? 'k' : each.text == "value" ? 'v' : '?';
      if (each.kind == Kind::BLANK) (order == "tkt" ? is_divided : form.has_own_lines) = true;
      if (each.kind != Kind::TEXT) continue;
      order += 't';
      marks.push_back(mark_of(each));
    }
    const bool is_long = order == "tkttvt", is_pair = is_long && is_divided;
    if (ways.size() != 1 || (!is_long && order != "tktvt"))
      throw TextError("has a 'tag_pattern' that is not a key and a value between texts");
    form.syntax = is_pair ? CallSyntax::PAIRS : CallSyntax::TAGS;
    form.key_open = marks[0];
    form.key_end = marks[1];
    (is_pair ? form.value_open : form.tag_end) = marks[is_long ? 2 : 1];
    form.value_end = marks.back();
    form.has_own_lines = form.has_own_lines || (is_divided && !is_pair);
    if (is_pair) form.name_end.insert(form.name_end.end(), {"\n", form.key_open});
  }

  const Json field_;
  std::string texts_, call_ = JSON_CALL;  // how a call in JSON is written
  bool is_json_ = false, is_named_ = false, has_dialect_ = false;
};

// The fields of a response template, which are named in what is thrown.
class TemplateReader {
 public:
  explicit TemplateReader(const Json& spec) : spec_(spec), fields_(spec["fields"]) {
    if (!spec.is_object()) throw TextError("it is no object");
    if (const Json version = spec["version"]; version && version.integer(UINT32_MAX) != 1)
      throw TextError("its version is not 1");
    check_keys(spec, "it ", {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"});
    if (!fields_.is_object() || fields_.size() == 0) throw TextError("it has no fields");
    if (fields_.size() > MOST_FIELDS) throw TextError("it has more than " + std::to_string(MOST_FIELDS) + " fields");
    fields_.each_entry([&](std::string_view name, const Json& field) { in_field(name, [&] { check(field); }); });
  }

  AnswerForm read() {
    const bool is_known = read_calls();
    if (form_.has_channels && is_known) return form_;
    const std::string_view reasoning = reasoning_name();
    if (reasoning.empty()) form_.reasoning_open = form_.reasoning_close = {};
    fields_.each_entry([&](std::string_view name, const Json& field) {
      if (name == "tool_calls") return;
      in_field(name, [&] {
        name == reasoning ? read_reasoning(field, is_known) : read_content(field, name == "content");
      });
    });
    const Marks anchors = anchors_of_turns();
    if (!anchors.empty()) form_.turn_open = anchors;
    if (!is_known) {
      add_new(form_.dropped, others_);
      add_new(form_.dropped, anchors);
    }
    return form_;
  }

 private:
  static void check_keys(const Json& object, const char* subject, std::initializer_list<std::string_view> known) {
    object.each_entry([&](std::string_view key, const Json&) {
      if (!is_one_of(key, known)) throw TextError(std::string(subject) + "has an unknown key, " + quoted(key));
    });
  }

  template <typename Call>
  static void in_field(std::string_view name, Call&& call) {
    try {
      call();
    } catch (const TextError& error) {
      throw TextError("its field " + quoted(name) + " " + error.what());
    }
  }

  static void check(const Json& field) {
    if (!field.is_object()) throw TextError("is no object");
    check_keys(
        field, "",
        {"open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional",
         "transform", "transform_each"}
    );
  }

  std::string_view reasoning_name() const {
    for (const char* name : REASONING) {
      if (fields_[name]) return name;
    }
    return "";
  }

  // Returns whether the calls are those of a form of the table.
  bool read_calls() {
    form_.name = "own";
    const Json field = fields_["tool_calls"];
    if (!field) return false;
    bool is_known = false;
    in_field("tool_calls", [&] {
      const CallDescription calls(field);
      const std::string all = texts_in(fields_);
      for (const AnswerForm& each : answer_forms()) {
        if (is_known || !calls.is_of(each, all)) continue;
        form_ = each;
        is_known = true;
      }
      if (is_known) return;
      form_.calls = calls.form(others_);
    });
    return is_known;
  }

  // What begins an answer in a prompt: of an expression that is no text, its first text.
  Marks anchors_of_turns() const {
    Marks anchors, before;
    try {
      anchors = marks_of(ways_of(spec_, "start_anchor"), before);
    } catch (const TextError& error) {
      const Json pattern = spec_["start_anchor_pattern"];
      if (!pattern.is_string()) throw TextError(std::string("its 'start_anchor' ") + error.what());
      for (const Piece& each : PatternReader(pattern.string()).read()) {
        if (each.kind == Kind::TEXT && anchors.empty()) anchors = {mark_of(each)};
      }
    }
    for (std::string& anchor : anchors) {  // which may end in the reasoning
      for (const std::string& mark : form_.reasoning_open) anchor.resize(std::min(anchor.find(mark), anchor.size()));
    }
    std::erase(anchors, "");
    return anchors;
  }

  void read_reasoning(const Json& field, bool is_known) {
    const std::vector<Way> ways = ways_of(field, "open");
    const Marks open = marks_of(ways, others_), close = marks_of(ways_of(field, "close"), others_);
    check_text(field);
    const auto is_empty = [](const Way& way) { return way.empty(); };
    form_.begins_reasoning = !open.empty() && std::any_of(ways.begin(), ways.end(), is_empty);
    const auto are_in = [](const Marks& some, const Marks& all) {
      return std::all_of(some.begin(), some.end(), [&](const std::string& each) { return has(all, each); });
    };
    if (close.empty()) throw TextError("has nothing that closes it");
    if (is_known && are_in(open, form_.reasoning_open) && are_in(close, form_.reasoning_close)) return;
    if (open.empty()) throw TextError("has no text that opens it");
    form_.reasoning_open = open;
    form_.reasoning_close = close;
  }

  void read_content(const Json& field, bool is_content) {
    check_text(field);
    const Marks open = marks_of(ways_of(field, "open"), others_), close = marks_of(ways_of(field, "close"), others_);
    if (is_content && !open.empty() && form_.content_lead.empty()) form_.content_lead = open.front();
    add_new(form_.dropped, open);
    add_new(form_.dropped, close);
  }

  static void check_text(const Json& field) {
    if (field["content"].string_or("text") != "text" || field["transform"]) throw TextError("is no text");
  }

  const Json spec_, fields_;
  AnswerForm form_ = {};
  Marks others_ = {};  // texts in the openings and closings that are no marks
};

// The form of the table whose marks are in the expressions of a response schema.
std::optional<AnswerForm> form_in(const Json& schema) {
  const std::string all = texts_in(schema);
  AnswerForm found = find_answer_form(all, [](const std::string&) { return false; });
  return found.name.empty() ? std::nullopt : std::optional(std::move(found));
}

}  // namespace

OwnForm read_own_form(const Json& tokenizer_config) {
  if (const Json own = tokenizer_config["response_template"]) {
    try {
      return {TemplateReader(own).read(), ""};
    } catch (const TextError& error) {
      return {
          {},
          std::string("the tokenizer's response_template cannot be followed: ") + error.what() +
              "; answers are read by the form of the chat template"
      };
    }
  }
  if (const Json older = tokenizer_config["response_schema"]) {
    if (auto form = form_in(older)) return {std::move(form), ""};
    return {
        {},
        "the tokenizer's response_schema has no marks that are known; answers are read by the form of the chat template"
    };
  }
  return {};
}

}  // namespace hybridge::text
