#include "schema_expression.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "../json.h"
#include "characters.h"
#include "regex.h"

namespace hybridge::text {
namespace {

using Type = Choice::Type;

constexpr size_t MOST_KINDS_OF_NAMES = 256, MOST_CONTAINED = 3, MOST_STATES = 1 << 14;

std::string quoted(std::string_view text) { return "\"" + escaped(text) + "\""; }

uint32_t minus(uint32_t count, uint32_t less) {
  return count == Expressions::UNLIMITED ? count : count - std::min(count, less);
}

[[noreturn]] void refuse() {
  throw TextError("it is too complex; write less of it, with smaller counts and fewer choices");
}

}  // namespace

SchemaExpressions::SchemaExpressions(Expressions& in, SchemaMerger& merger, Resolve resolve)
    : in_(in),
      merger_(merger),
      resolve_(std::move(resolve)),
      character_(one_of(CharacterSet::all(), Writing::JSON, in)),
      characters_(in.repeat(character_, 0, Expressions::UNLIMITED)),
      comma_(in.literal(", ")),
      colon_(in.literal(": ")),
      json_{
          .open = in.literal("{"),
          .close = in.literal("}"),
          .comma = comma_,
          .key =
              [this](const std::string& name) {
                return is_left_out(name)
                           ? Expressions::NONE
                           : in_.concat(in_.either(literal_string(name), bare(in_.literal(name))), colon_);
              },
          .other_key =
              [this](Expression names) { return in_.concat(in_.either(between_quotes(names), bare(names)), colon_); },
          .value = [this](const std::string*, const SharedSchema& schema) { return of(schema); }
      } {}

void SchemaExpressions::write_in(Notation notation, std::string_view quote) {
  notation_ = notation;
  quote_ = quote;
  plain_ = read_regex(notation == Notation::PYTHON ? R"([^"'\\\x00-\x1f\x7f])" : R"([^"\\\x00-\x1f\x7f])", in_);
  if (notation != Notation::GEMMA) return;
  bare_ = read_regex(R"([^\x00-\x20\x7f"\\,:<>\[\]{}]+)", in_);
  comma_ = json_.comma = in_.literal(",");
  colon_ = in_.literal(":");
}

// The strings whose text JSON writes like this between quotation marks.
Expression SchemaExpressions::between_quotes(Expression inner) {
  if (notation_ == Notation::JSON) return between("\"", inner);
  const Expression without_escapes = in_.both({inner, in_.repeat(plain_, 0, Expressions::UNLIMITED)});
  const Expression raw = in_.is_alive(without_escapes) ? without_escapes : Expressions::NONE;
  if (notation_ == Notation::GEMMA) return between(quote_, raw);
  return in_.either(between("\"", inner), between("'", raw));
}

Expression SchemaExpressions::literal_string(const std::string& text) {
  if (notation_ == Notation::GEMMA) return between(quote_, in_.literal(text));
  const Expression json = in_.literal(quoted(text));
  const bool is_plain = escaped(text) == text && text.find('\'') == text.npos;
  return notation_ == Notation::PYTHON && is_plain ? in_.either(json, in_.literal("'" + text + "'")) : json;
}

// Names without quotation marks, which Gemma's notation has.
Expression SchemaExpressions::bare(Expression names) {
  const Expression found = in_.both({names, bare_});
  return in_.is_alive(found) ? found : Expressions::NONE;
}

// null, true or false.
Expression SchemaExpressions::constant(const std::string& json) {
  const Expression written = in_.literal(json);
  if (notation_ != Notation::PYTHON) return written;
  return in_.either(written, in_.literal(json == "null" ? "None" : json == "true" ? "True" : "False"));
}

void SchemaExpressions::keep_numbers_finite() { finite_ = read_regex("[^eE]*([eE][+-]?[0-9]{1,2})?", in_); }

void SchemaExpressions::leave_out(std::string text) {
  const Expression anything = in_.repeat(in_.byte(0, 255), 0, Expressions::UNLIMITED);
  allowed_ = in_.complement(in_.concat(anything, in_.concat(in_.literal(text), anything)));
  left_out_ = std::move(text);
}

std::vector<std::string> SchemaExpressions::finish(Expression start, Expression body) {
  in_.define(start, body);
  std::vector<std::string> dead;
  while (!pending_.empty()) {
    const std::string key = pending_.back();
    pending_.pop_back();
    const Expression rule = of(resolve_(key));
    if (rule == Expressions::NONE) dead.push_back(key);
    in_.define(rules_.at(key), rule);
  }
  if (!dead.empty() || body == Expressions::NONE) return dead;
  const Expression endless = in_.find_endless();
  for (const auto& [key, rule] : rules_) {
    if (rule == endless)
      throw TextError("what fits the schema at " + key + " would have no end, as it refers to itself");
  }
  if (endless != Expressions::NONE) throw TextError("nothing fits it");
  return {};
}

Expression SchemaExpressions::of(const Schema& schema) {
  std::vector<Expression> choices;
  for (const Choice& each : schema) choices.push_back(of(each));
  return in_.either(std::move(choices));
}

Expression SchemaExpressions::of(const SharedSchema& schema) {
  if (schema == nullptr) return any();
  const auto found = known_.find(schema.get());
  if (found != known_.end()) return found->second.second;
  const Expression made = of(*schema);
  known_.emplace(schema.get(), std::pair(schema, made));
  return made;
}

Expression SchemaExpressions::of(const Choice& choice) {
  merger_.count();
  switch (choice.type) {
    case Type::ANY: return any();
    case Type::REFERENCE: return rule(choice.literals->front());
    case Type::NOTHING: return constant("null");
    case Type::BOOLEAN: return choice.literals ? named(choice) : in_.either(constant("true"), constant("false"));
    case Type::NUMBER: {
      if (choice.literals) return named(choice);
      const Expression all = numbers(choice.range, in_);
      const Expression finite = finite_ == Expressions::NONE ? all : in_.both({all, finite_});
      return in_.is_alive(finite) ? finite : Expressions::NONE;
    }
    case Type::STRING: return string(choice);
    case Type::ARRAY: return choice.contained.empty() ? array(choice) : array_that_contains(choice);
    case Type::OBJECT: return object(choice, json_);
  }
  return Expressions::NONE;
}

Expression SchemaExpressions::rule(const std::string& key) {
  const auto known = rules_.find(key);
  if (known != rules_.end()) return known->second;
  if (resolve_(key).empty()) return Expressions::NONE;
  pending_.push_back(key);
  return rules_[key] = in_.add_rule();
}

// The values of a choice that are named, as any JSON writes them.
Expression SchemaExpressions::named(const Choice& choice) {
  std::vector<std::string_view> texts;
  std::vector<Expression> values;
  for (const std::string& each : *choice.literals) {
    const auto text = string_of(each);
    if (is_left_out(text ? *text : each)) continue;
    if (notation_ != Notation::JSON && choice.type != Type::NUMBER)
      values.push_back(text ? literal_string(*text) : constant(each));
    else if (each.find('\\') != each.npos) values.push_back(between_quotes(spellings(*text, in_)));
    else texts.push_back(each);
  }
  values.push_back(in_.one_of(texts));
  return in_.either(std::move(values));
}

Expression SchemaExpressions::any() {
  if (any_ == Expressions::NONE) {
    any_ = in_.add_rule();
    std::vector<Expression> choices;
    for (const Type type : Choice::TYPES) choices.push_back(of(Choice{.type = type}));
    in_.define(any_, in_.either(std::move(choices)));
  }
  return any_;
}

Expression SchemaExpressions::inner_string(const Choice& choice) {
  if (choice.count.least > choice.count.most) return Expressions::NONE;
  std::vector<Expression> parts = choice.patterns;
  if (allowed_ != Expressions::NONE) parts.push_back(allowed_);
  const Expression length = in_.repeat(character_, choice.count.least, choice.count.most);
  if (length != characters_ || choice.patterns.empty()) parts.push_back(length);  // patterns are of characters
  const Expression inner = in_.both(std::move(parts));
  return in_.is_alive(inner) ? inner : Expressions::NONE;
}

Expression SchemaExpressions::string(const Choice& choice) {
  if (choice.literals) return named(choice);
  if (notation_ != Notation::GEMMA || !choice.patterns.empty()) return between_quotes(inner_string(choice));
  const auto [least, most] = choice.count;
  const Expression any = one_of(CharacterSet::all(), Writing::PLAIN, in_);
  return least > most ? Expressions::NONE : between(quote_, in_.both({in_.repeat(any, least, most), allowed_}));
}

Expression SchemaExpressions::strings(const Schema& schema) {
  std::vector<Expression> choices;
  for (const Choice& each : merger_.resolved(schema)) {
    if (each.type != Type::STRING) continue;
    if (!each.literals) choices.push_back(inner_string(each));
    else
      for (const std::string& text : *each.literals)
        choices.push_back(spellings(JsonDocument(text).root("the value").string(), in_));
  }
  return in_.either(std::move(choices));
}

Expression SchemaExpressions::array(const Choice& choice) {
  const auto [least, most] = choice.count;
  if (least > most) return Expressions::NONE;
  const auto named = static_cast<uint32_t>(choice.first_items.size());
  const Expression others = of(choice.others);
  // What comes after so many items, from the last one to the first.
  Expression rest = in_.repeat(
      in_.concat(comma_, others), minus(least, std::max(named, 1u)), minus(most, std::max(named, 1u))
  );
  for (uint32_t place = std::max(named, 1u); place > 0; place--) {
    const Expression item = place <= named ? of(choice.first_items[place - 1]) : others;
    const Expression with = place > most ? Expressions::NONE
                                         : in_.concat(place > 1 ? comma_ : Expressions::EMPTY, in_.concat(item, rest));
    rest = place > least ? in_.optional(with) : with;
  }
  return in_.concat(in_.literal("["), in_.concat(rest, in_.literal("]")));
}

// An array whose items are counted by what they fit: each state has the place of the next item and what was counted
// before it.
Expression SchemaExpressions::array_that_contains(const Choice& choice) {
  const auto& contained = choice.contained;
  const auto [least, most] = choice.count;
  if (least > most) return Expressions::NONE;
  if (contained.size() > MOST_CONTAINED) refuse();
  const bool is_bounded = most != Expressions::UNLIMITED;
  uint64_t last = std::max<uint64_t>({choice.first_items.size(), is_bounded ? most : least, 1});
  std::vector<uint64_t> caps, sizes = {1};  // the greatest count of each that matters; states by what was counted
  for (const Contained& each : contained) {
    if (each.count.least > each.count.most) return Expressions::NONE;
    const bool has_most = each.count.most != Expressions::UNLIMITED;
    caps.push_back(has_most ? each.count.most : each.count.least);
    last = std::max<uint64_t>(last, is_bounded ? most : each.from);
    sizes.push_back(sizes.back() * (caps.back() + 1));
    if (sizes.back() > MOST_STATES) refuse();
  }
  if ((last + 1) * sizes.back() > MOST_STATES) refuse();
  const size_t kinds = size_t(1) << contained.size(), states = sizes.back();
  const auto counted = [&](size_t state, size_t each) { return state / sizes[each] % (caps[each] + 1); };

  // The item at a place that fits those of a kind, and not those that may not be more often.
  std::map<std::pair<const Schema*, size_t>, Expression> made;
  const auto item = [&](const SharedSchema& schema, size_t kind, size_t from) {
    const auto [found, is_new] = made.try_emplace({schema.get(), kind | from << MOST_CONTAINED});
    if (!is_new) return found->second;
    SharedSchema merged = schema;
    for (size_t each = 0; each < contained.size(); each++) {
      if ((from >> each & 1) == 0) continue;
      if ((kind >> each & 1) != 0) merged = merger_.both(merged, contained[each].schema);
      else if (contained[each].count.most != Expressions::UNLIMITED)
        merged = merger_.both(merged, std::make_shared<const Schema>(merger_.complement(*contained[each].schema)));
    }
    return found->second = of(merged);
  };
  // The state after an item of a kind; none where it may not come.
  const auto after = [&](size_t state, size_t kind, uint64_t place) -> std::optional<size_t> {
    for (size_t each = 0; each < contained.size(); each++) {
      if ((kind >> each & 1) == 0) continue;
      if (place < contained[each].from) return std::nullopt;
      if (counted(state, each) < caps[each]) state += sizes[each];
      else if (contained[each].count.most != Expressions::UNLIMITED) return std::nullopt;
    }
    return state;
  };
  const auto is_enough = [&](size_t state, uint64_t place) {
    for (size_t each = 0; each < contained.size(); each++) {
      if (counted(state, each) < contained[each].count.least) return false;
    }
    return place >= least;
  };
  std::vector<Expression> next(states), now(states);
  for (uint64_t place = last + 1; place-- > 0;) {
    const SharedSchema& schema = place < choice.first_items.size() ? choice.first_items[place] : choice.others;
    size_t from = 0;
    for (size_t each = 0; each < contained.size(); each++) from |= size_t(place >= contained[each].from) << each;
    for (size_t state = states; state-- > 0;) {
      std::vector<Expression> ways, again;
      if (is_enough(state, place)) ways.push_back(Expressions::EMPTY);
      for (size_t kind = 0; kind < kinds && place < most; kind++) {
        const auto to = after(state, kind, place);
        if (!to) continue;
        const Expression text = in_.concat(place > 0 ? comma_ : Expressions::EMPTY, item(schema, kind, from));
        if (place == last && *to == state) again.push_back(text);
        else ways.push_back(in_.concat(text, place == last ? now[*to] : next[*to]));
      }
      now[state] = in_.concat(
          in_.repeat(in_.either(std::move(again)), 0, Expressions::UNLIMITED), in_.either(std::move(ways))
      );
    }
    std::swap(next, now);
  }
  return in_.concat(in_.literal("["), in_.concat(next[0], in_.literal("]")));
}

Expression SchemaExpressions::objects(const Schema& schema) { return objects(schema, json_); }

Expression SchemaExpressions::objects(const Schema& schema, const ObjectWriting& writing) {
  std::vector<Expression> choices;
  for (const Choice& each : merger_.resolved(schema)) {
    if (each.type == Type::OBJECT) choices.push_back(object(each, writing));
  }
  return in_.either(std::move(choices));
}

Schema SchemaExpressions::resolved(const SharedSchema& schema) {
  return merger_.resolved(schema == nullptr ? Schema{Choice{}} : *schema);
}

Expression SchemaExpressions::object(const Choice& choice, const ObjectWriting& writing) {
  if (choice.count.least > choice.count.most) return Expressions::NONE;
  const std::unordered_set<std::string_view> required(choice.required.begin(), choice.required.end());
  std::unordered_set<std::string_view> names;
  std::vector<Member> members;
  std::vector<Expression> taken;
  uint32_t needed = 0;
  const auto add = [&](const std::string& name, const SharedSchema& schema) {
    const bool is_required = required.contains(name);
    const Expression value = writing.value(&name, schema);
    names.insert(name);
    taken.push_back(spellings(name, in_));
    needed += is_required;
    if (value == Expressions::NONE && !is_required) return;
    members.push_back({in_.concat(writing.key(name), value), is_required});
  };
  for (const Property& each : choice.properties) add(each.name, each.schema);
  for (const std::string& each : choice.required) {
    if (!names.contains(each)) add(each, merger_.unnamed(choice, each));
  }
  const bool is_bounded = choice.count.most != Expressions::UNLIMITED;
  if (needed > choice.count.most) return Expressions::NONE;
  const auto enclosed = [&](Expression inner) { return in_.concat(writing.open, in_.concat(inner, writing.close)); };
  const Expression other = unnamed_members(choice, taken, writing);
  if ((choice.count.least > 1 || is_bounded) && needed < members.size() && choice.count.most != 0) {
    return enclosed(counted_members(in_, members, writing.comma, other, choice.count));
  }
  const uint32_t least = needed < members.size() ? 0 : choice.count.least - std::min(needed, choice.count.least);
  const uint32_t most = is_bounded ? choice.count.most - needed : Expressions::UNLIMITED;
  if (most == 0) std::erase_if(members, [](const Member& each) { return !each.is_required; });

  const Expression further = in_.concat(writing.comma, other);
  Expression with = in_.repeat(further, least, most);  // what may follow, where something is before it
  const Expression first = in_.concat(
      other,
      in_.repeat(further, least > 0 ? least - 1 : 0, most == Expressions::UNLIMITED ? most : most - std::min(most, 1u))
  );
  Expression without = most == 0 ? Expressions::NONE : first;
  if (least == 0 && choice.count.least <= needed) without = in_.optional(without);
  std::vector<Expression> beginnings = {without};
  for (size_t place = members.size(); place > 0; place--) {
    const auto& [text, is_required] = members[place - 1];
    if (is_required) beginnings.clear();
    beginnings.push_back(in_.concat(text, with));
    const Expression joined = in_.concat(writing.comma, text);
    with = in_.concat(is_required ? joined : in_.optional(joined), with);
  }
  return enclosed(in_.either(std::move(beginnings)));
}

// Members of which some may be left out, where all of them are counted, and others after them.
Expression SchemaExpressions::counted_members(
    Expressions& in, const std::vector<Member>& members, Expression comma, Expression other, const Count& count
) {
  const auto [least, most] = count;
  const bool is_bounded = most != Expressions::UNLIMITED;
  const uint32_t cap = std::min<uint32_t>(
      std::max(is_bounded ? most : least, 1u), static_cast<uint32_t>(members.size())
  );
  if ((cap + 1) * members.size() * members.size() > MOST_STATES * 64) refuse();
  const Expression further = in.concat(comma, other);
  std::vector<Expression> rest(cap + 1);  // what comes after so many members
  for (uint32_t before = 0; before <= cap; before++) {
    const uint32_t needed = minus(least, before), room = minus(most, before);
    if (before > 0) {
      rest[before] = in.repeat(further, needed, room);
      continue;
    }
    const Expression all = in.concat(other, in.repeat(further, minus(needed, 1), minus(room, 1)));
    rest[0] = needed > 0 ? all : in.optional(all);
  }
  for (size_t place = members.size(); place > 0; place--) {
    const auto& [text, is_required] = members[place - 1];
    for (uint32_t before = 0; before <= cap; before++) {  // the counts above still are those of the next place
      const bool has_room = before < most;
      const Expression after = rest[std::min(before + 1, cap)];
      const Expression with = has_room ? in.concat(before > 0 ? comma : Expressions::EMPTY, in.concat(text, after))
                                       : Expressions::NONE;
      rest[before] = is_required ? with : in.either(with, rest[before]);
    }
  }
  return rest[0];
}

// A property whose name is none of those that are taken. Names are apart by the patterns that they match.
Expression SchemaExpressions::unnamed_members(
    const Choice& choice, const std::vector<Expression>& taken, const ObjectWriting& writing
) {
  struct Names {
    std::vector<Expression> matched, others;
    SharedSchema schema;
  };
  std::vector<Expression> all = {characters_}, members;
  if (allowed_ != Expressions::NONE) all.push_back(allowed_);
  if (!taken.empty()) all.push_back(in_.complement(in_.either(taken)));
  const auto is_alive = [&](std::vector<Expression> parts, const std::vector<Expression>& matched) {
    parts.insert(parts.end(), matched.begin(), matched.end());
    return in_.is_alive(in_.both(std::move(parts)));
  };
  std::vector<Names> kinds = {{}};
  for (const auto& [pattern, schema] : choice.by_pattern) {
    std::vector<Names> split;
    for (Names& each : kinds) {
      merger_.count();
      Names matching = each;
      matching.matched.push_back(pattern);
      matching.schema = each.matched.empty() ? schema : merger_.both(each.schema, schema);
      if (!each.matched.empty() && !is_alive({characters_, pattern}, each.matched)) {
        split.push_back(std::move(each));  // apart, whatever the names are
        continue;
      }
      each.others.push_back(pattern);
      split.push_back(std::move(each));
      split.push_back(std::move(matching));
    }
    if (split.size() > MOST_KINDS_OF_NAMES) refuse();
    kinds = std::move(split);
  }
  for (const Names& each : kinds) {
    auto parts = all;
    parts.insert(parts.end(), each.matched.begin(), each.matched.end());
    std::vector<Expression> apart;
    for (const Expression other : each.others) {
      if (each.matched.empty() || is_alive({characters_, other}, each.matched)) apart.push_back(other);
    }
    if (!apart.empty()) parts.push_back(in_.complement(in_.either(std::move(apart))));
    const SharedSchema& schema = each.matched.empty() ? choice.others : each.schema;
    if (schema == nullptr ? !writing.has_free : schema->empty()) continue;
    const Expression name = in_.both(std::move(parts));
    if (in_.is_alive(name)) members.push_back(in_.concat(writing.other_key(name), writing.value(nullptr, schema)));
  }
  return in_.either(std::move(members));
}

}  // namespace hybridge::text
