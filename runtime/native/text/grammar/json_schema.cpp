#include "json_schema.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "../json.h"
#include "../unicode.h"
#include "characters.h"
#include "formats.h"
#include "regex.h"
#include "schema.h"

namespace hybridge::text {
namespace {

using Type = Choice::Type;

constexpr size_t DEEPEST = 64;            // schemas inside each other
constexpr uint64_t LARGEST_COUNT = 1u << 30;

// Keywords of JSON Schema that say what fits, and that are not followed here.
constexpr std::string_view NOT_SUPPORTED[] = {
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames", "dependentRequired",
    "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"};

constexpr std::string_view OF_TYPES[] = {
    "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "format",
    "prefixItems", "items", "additionalItems", "minItems", "maxItems", "properties", "patternProperties", "additionalProperties",
    "required", "minProperties", "maxProperties"};

bool is_in(std::span<const std::string_view> names, std::string_view name) { return std::ranges::find(names, name) != names.end(); }

std::string quoted(std::string_view text) { return "\"" + escaped(text) + "\""; }

class Reader {
 public:
  explicit Reader(const Json& root, Expressions& in)
      : root_(root),
        in_(in),
        merger_([this](const std::string& pointer) { return resolved(pointer); }),
        character_(one_of(CharacterSet::all(), Writing::JSON, in)),
        characters_(in.repeat(character_, 0, Expressions::UNLIMITED)),
        comma_(in.literal(", ")),
        colon_(in.literal(": ")) {}

  GrammarExpressions read() {
    const Expression start = in_.add_rule();
    in_.define(start, expression(schema(root_, 0)));
    while (!pending_.empty()) {
      const std::string pointer = pending_.back();
      pending_.pop_back();
      const Expression body = expression(resolved(pointer));
      if (body == Expressions::NONE) throw TextError("nothing fits the schema at " + pointer);
      in_.define(rules_.at(pointer), body);
    }
    const Expression endless = in_.find_endless();
    for (const auto& [pointer, rule] : rules_) {
      if (rule == endless) throw TextError("what fits the schema at " + pointer + " would have no end, as it refers to itself");
    }
    if (endless != Expressions::NONE) throw TextError("nothing fits it");
    return {.all = std::move(in_), .start = start, .item = character_};
  }

 private:
  // ---- from JSON to choices

  Schema schema(const Json& json, size_t depth) {
    merger_.count();
    if (depth > DEEPEST) throw TextError("schemas are nested too deeply");
    if (json.is_boolean()) return json.boolean() ? Schema{Choice{}} : Schema{};
    if (!json.is_object()) json.fail("an object, true or false");
    Schema all = {Choice{}};
    bool has_types = false;
    json.each_entry([&](std::string_view key, const Json& value) {
      if (is_in(NOT_SUPPORTED, key) && !(value.is_boolean() && !value.boolean() && key == "uniqueItems")) {
        throw TextError("\"" + std::string(key) + "\" in " + json.name() + " is not supported");
      }
      if (is_in(OF_TYPES, key)) {
        if (!std::exchange(has_types, true)) all = merger_.both(all, of_types(json, depth));
      } else if (const auto applied = applicator(json, key, value.as(json.name() + "." + std::string(key)), depth)) {
        all = merger_.both(all, *applied);
      }
    });
    if (json["nullable"].boolean_or(false)) all.push_back({.type = Type::NOTHING});
    return all;
  }

  std::optional<Schema> applicator(const Json& json, std::string_view key, const Json& value, size_t depth) {
    if (key == "$ref") return Schema{{.type = Type::REFERENCE, .literals = std::vector{std::string(value.string())}}};
    if (key == "const") return literal(value, depth);
    const bool is_any = key == "anyOf", is_one = key == "oneOf";
    if (key != "enum" && key != "allOf" && !is_any && !is_one) return std::nullopt;
    Schema all;
    if (key == "allOf") all.emplace_back();
    std::vector<Schema> branches;
    value.each([&](const Json& each) {
      Schema one = key == "enum" ? literal(each, depth + 1) : schema(each, depth + 1);
      if (key == "allOf") all = merger_.both(all, one);
      else if (is_one) branches.push_back(std::move(one));
      else std::ranges::move(one, std::back_inserter(all));
    });
    for (size_t i = 0; i < branches.size(); i++) {
      for (size_t other = 0; other < i && !json["discriminator"]; other++) {
        if (merger_.are_apart(branches[i], branches[other])) continue;
        throw TextError("\"oneOf\" in " + json.name() + " is not supported, as one text may fit several of its schemas: use \"anyOf\"");
      }
    }
    for (Schema& each : branches) std::ranges::move(each, std::back_inserter(all));
    return joined(std::move(all));
  }

  // Makes one choice of those of a type that are named, and nothing else.
  static Schema joined(Schema choices) {
    Schema all;
    for (Choice& each : choices) {
      const auto found = std::ranges::find_if(all, [&](const Choice& other) { return other.type == each.type && is_only_named(other); });
      if (found == all.end() || !is_only_named(each)) all.push_back(std::move(each));
      else found->literals->insert(found->literals->end(), each.literals->begin(), each.literals->end());
    }
    for (Choice& each : all) {
      if (!each.literals) continue;
      std::ranges::sort(*each.literals);
      const auto rest = std::ranges::unique(*each.literals);
      each.literals->erase(rest.begin(), rest.end());
    }
    return all;
  }

  static bool is_only_named(const Choice& choice) {
    return choice.literals && choice.type != Type::REFERENCE && choice.patterns.empty() && choice.range.limits.empty() && choice.range.steps.empty() && !choice.range.is_integer &&
           choice.count.least == 0 && choice.count.most == Expressions::UNLIMITED;
  }

  // What is equal to a value.
  Schema literal(const Json& value, size_t depth) {
    merger_.count();
    if (depth > DEEPEST) throw TextError("values are nested too deeply");
    const auto named = [](Type type, std::string text) { return Schema{{.type = type, .literals = std::vector{std::move(text)}}}; };
    if (value.is_string()) return named(Type::STRING, quoted(value.string()));
    if (value.is_boolean()) return named(Type::BOOLEAN, value.boolean() ? "true" : "false");
    if (value.is_number()) return named(Type::NUMBER, Decimal::read(value.written()).written());
    const SharedSchema nothing = std::make_shared<const Schema>();
    if (value.is_array()) {
      Choice choice{.type = Type::ARRAY, .others = nothing};
      value.each([&](const Json& each) { choice.first_items.push_back(shared(literal(each, depth + 1))); });
      choice.count.least = static_cast<uint32_t>(choice.first_items.size());
      return {std::move(choice)};
    }
    if (value.is_object()) {
      Choice choice{.type = Type::OBJECT, .others = nothing};
      value.each_entry([&](std::string_view key, const Json& each) {
        choice.properties.push_back({std::string(key), shared(literal(each, depth + 1))});
        choice.required.emplace_back(key);
      });
      return {std::move(choice)};
    }
    return {{.type = Type::NOTHING}};
  }

  static SharedSchema shared(Schema schema) { return std::make_shared<const Schema>(std::move(schema)); }

  Schema of_types(const Json& json, size_t depth) {
    static constexpr std::pair<std::string_view, Type> types[] = {
        {"null", Type::NOTHING}, {"boolean", Type::BOOLEAN}, {"number", Type::NUMBER}, {"string", Type::STRING}, {"array", Type::ARRAY},
        {"object", Type::OBJECT}, {"integer", Type::NUMBER}};
    const Json wanted = json["type"];
    Schema all;
    const auto add_type = [&](std::string_view name) {
      const auto found = std::ranges::find(types, name, &std::pair<std::string_view, Type>::first);
      if (found == std::end(types)) throw TextError("there is no type \"" + escaped(name) + "\"");
      all.push_back(of_type(found->second, json, depth));
      all.back().range.is_integer = name == "integer";
    };
    if (!wanted) {
      for (const auto& each : types) {
        if (each.first != "integer") add_type(each.first);
      }
    } else if (wanted.is_array()) {
      wanted.each([&](const Json& each) { add_type(each.string()); });
    } else {
      add_type(wanted.string());
    }
    return all;
  }

  Choice of_type(Type type, const Json& json, size_t depth) {
    Choice choice{.type = type};
    switch (type) {
      case Type::NUMBER: read_number(json, choice.range); break;
      case Type::STRING: read_string(json, choice); break;
      case Type::ARRAY: read_array(json, choice, depth); break;
      case Type::OBJECT: read_object(json, choice, depth); break;
      default: break;
    }
    return choice;
  }

  static Count read_count(const Json& least, const Json& most) {
    Count count;
    if (least) count.least = static_cast<uint32_t>(least.integer(LARGEST_COUNT));
    if (most) count.most = static_cast<uint32_t>(most.integer(LARGEST_COUNT));
    return count;
  }

  static void read_number(const Json& json, NumberRange& range) {
    const auto add = [&](const Json& value, bool is_least, bool is_exclusive) {
      if (!value.is_number()) value.fail("a number");
      range.limits.push_back({Decimal::read(value.written()), is_least, is_exclusive});
    };
    const auto read = [&](const char* inclusive, const char* exclusive, bool is_least) {
      const Json limit = json[inclusive], other = json[exclusive];
      const bool is_switch = other.is_boolean();  // as in JSON Schema's draft 4
      if (limit) add(limit, is_least, is_switch && other.boolean());
      if (other && !is_switch) add(other, is_least, true);
    };
    read("minimum", "exclusiveMinimum", true);
    read("maximum", "exclusiveMaximum", false);
    if (const Json step = json["multipleOf"]) {
      if (!step.is_number()) step.fail("a number");
      range.steps.push_back(Decimal::read(step.written()));
      range.steps.back().is_negative = false;
    }
  }

  void read_string(const Json& json, Choice& choice) {
    choice.count = read_count(json["minLength"], json["maxLength"]);
    if (const Json pattern = json["pattern"]) {
      try {
        choice.patterns.push_back(read_pattern_of_schema(pattern.string(), in_));
      } catch (const TextError& error) {
        throw TextError("the pattern \"" + std::string(pattern.string()) + "\", " + error.what());
      }
    }
    if (const Json format = json["format"]) {
      const std::string_view name = format.string();
      if (name == "unknown") return;
      const auto expression = format_expression(name);
      if (!expression) throw TextError("the format \"" + escaped(name) + "\" is not supported");
      choice.patterns.push_back(read_regex(*expression, in_, Writing::JSON));
    }
  }

  void read_array(const Json& json, Choice& choice, size_t depth) {
    choice.count = read_count(json["minItems"], json["maxItems"]);
    const Json items = json["items"];
    const bool is_old = items.is_array() && !json["prefixItems"];  // before 2020
    const Json first = is_old ? items : json["prefixItems"], others = is_old ? json["additionalItems"] : items;
    if (first) first.each([&](const Json& each) { choice.first_items.push_back(shared(schema(each, depth + 1))); });
    if (others) choice.others = shared(schema(others, depth + 1));
  }

  void read_object(const Json& json, Choice& choice, size_t depth) {
    choice.count = read_count(json["minProperties"], json["maxProperties"]);
    if (const Json properties = json["properties"]) {
      properties.each_entry([&](std::string_view key, const Json& value) {
        choice.properties.push_back({std::string(key), shared(schema(value.as(json.name() + ".properties." + std::string(key)), depth + 1))});
      });
    }
    if (const Json patterns = json["patternProperties"]) {
      patterns.each_entry([&](std::string_view key, const Json& value) {
        choice.by_pattern.emplace_back(read_pattern_of_schema(key, in_), shared(schema(value, depth + 1)));
      });
    }
    if (const Json others = json["additionalProperties"]) choice.others = shared(schema(others, depth + 1));
    if (const Json required = json["required"]) {
      std::unordered_set<std::string> known;
      required.each([&](const Json& each) {
        std::string name(each.string());
        if (known.insert(name).second) choice.required.push_back(std::move(name));
      });
    }
  }

  // ---- references

  Schema resolved(const std::string& pointer) {
    if (!resolving_.insert(pointer).second) throw TextError("the reference " + pointer + " to what it is in has other keywords beside it, which is not supported");
    Schema found = schema(target(pointer), 0);
    resolving_.erase(pointer);
    return found;
  }

  Json target(const std::string& pointer) const {
    if (pointer != "#" && !pointer.starts_with("#/")) {
      throw TextError("the reference \"" + escaped(pointer) + "\" is not one inside the schema, such as \"#/$defs/name\"");
    }
    Json at = root_;
    std::string_view rest = std::string_view(pointer).substr(1);
    while (!rest.empty()) {
      const size_t end = std::min(rest.find('/', 1), rest.size());
      const std::string name = unescaped(rest.substr(1, end - 1));
      rest.remove_prefix(end);
      if (at.is_array() && !name.empty() && name.size() < 7 && name.find_first_not_of("0123456789") == name.npos) at = at.item(std::stoul(name));
      else if (at.is_object() && name.find('\0') == name.npos) at = at[name.c_str()];
      else at = {};
      if (!at.is_object() && !at.is_array() && !at.is_boolean()) throw TextError("the reference \"" + escaped(pointer) + "\" leads nowhere");
    }
    return at.as("the schema at " + pointer);
  }

  // A part of a pointer, without the escapes of URLs and pointers.
  static std::string unescaped(std::string_view part) {
    std::string text;
    for (size_t i = 0; i < part.size(); i++) {
      unsigned byte = 0;
      if (part[i] == '%' && i + 2 < part.size() && std::sscanf(std::string(part.substr(i + 1, 2)).c_str(), "%2x", &byte) == 1) {
        text += static_cast<char>(byte);
        i += 2;
      } else if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
        text += part[++i] == '0' ? '~' : '/';
      } else {
        text += part[i];
      }
    }
    return text;
  }

  Expression rule(const std::string& pointer) {
    const auto [found, is_new] = rules_.try_emplace(pointer);
    if (is_new) {
      found->second = in_.add_rule();
      pending_.push_back(pointer);
    }
    return found->second;
  }

  // ---- from choices to expressions

  Expression expression(const Schema& schema) {
    std::vector<Expression> choices;
    for (const Choice& each : schema) choices.push_back(expression(each));
    return in_.either(std::move(choices));
  }

  Expression expression(const SharedSchema& schema) { return schema == nullptr ? any() : expression(*schema); }

  Expression expression(const Choice& choice) {
    switch (choice.type) {
      case Type::ANY: return any();
      case Type::REFERENCE: return rule(choice.literals->front());
      case Type::NOTHING: return in_.literal("null");
      case Type::BOOLEAN: return choice.literals ? named(choice, Expressions::NONE) : in_.either(in_.literal("true"), in_.literal("false"));
      case Type::NUMBER: {
        const bool is_free = !choice.range.is_integer && choice.range.limits.empty() && choice.range.steps.empty();
        return choice.literals ? named(choice, is_free ? Expressions::NONE : numbers(choice.range, in_)) : numbers(choice.range, in_);
      }
      case Type::STRING: return string(choice);
      case Type::ARRAY: return array(choice);
      case Type::OBJECT: return object(choice);
    }
    return Expressions::NONE;
  }

  // The values of a choice that are named, as any JSON writes them; those of them that fit, if something else is asked of them.
  Expression named(const Choice& choice, Expression fitting) {
    std::vector<std::string_view> texts;
    std::vector<Expression> values;
    for (const std::string& each : *choice.literals) {
      if (fitting != Expressions::NONE && !in_.is_nullable(in_.derivative(fitting, each))) continue;
      if (choice.type != Type::STRING || each.find('\\') == std::string::npos) texts.push_back(each);
      else values.push_back(between_quotes(spellings(JsonDocument(each).root("the value").string())));
    }
    values.push_back(in_.one_of(texts));
    return in_.either(std::move(values));
  }

  Expression any() {
    if (any_ == Expressions::NONE) {
      any_ = in_.add_rule();
      std::vector<Expression> choices;
      for (const Type type : {Type::NOTHING, Type::BOOLEAN, Type::NUMBER, Type::STRING, Type::ARRAY, Type::OBJECT}) {
        choices.push_back(expression(Choice{.type = type}));
      }
      in_.define(any_, in_.either(std::move(choices)));
    }
    return any_;
  }

  Expression between_quotes(Expression inner) { return in_.concat(in_.literal("\""), in_.concat(inner, in_.literal("\""))); }

  Expression string(const Choice& choice) {
    if (choice.count.least > choice.count.most) return Expressions::NONE;
    std::vector<Expression> parts = choice.patterns;
    const Expression length = in_.repeat(character_, choice.count.least, choice.count.most);
    if (length != characters_ || parts.empty()) parts.push_back(length);
    const Expression inner = in_.both(std::move(parts));
    const Expression whole = in_.is_alive(inner) ? between_quotes(inner) : Expressions::NONE;
    if (!choice.literals) return whole;
    return named(choice, inner == characters_ ? Expressions::NONE : whole == Expressions::NONE ? Expressions::EMPTY : whole);
  }

  Expression array(const Choice& choice) {
    const auto [least, most] = choice.count;
    if (least > most) return Expressions::NONE;
    const auto named = static_cast<uint32_t>(choice.first_items.size());
    const Expression others = expression(choice.others);
    const auto minus = [](uint32_t count, uint32_t less) { return count == Expressions::UNLIMITED ? count : count - std::min(count, less); };
    // What is behind so many items, from the last one to the first.
    Expression rest = in_.repeat(in_.concat(comma_, others), minus(least, std::max(named, 1u)), minus(most, std::max(named, 1u)));
    for (uint32_t place = std::max(named, 1u); place > 0; place--) {
      const Expression item = place <= named ? expression(choice.first_items[place - 1]) : others;
      const Expression with = place > most ? Expressions::NONE : in_.concat(place > 1 ? comma_ : Expressions::EMPTY, in_.concat(item, rest));
      rest = place > least ? in_.optional(with) : with;
    }
    return in_.concat(in_.literal("["), in_.concat(rest, in_.literal("]")));
  }

  struct Member {
    Expression text;
    bool is_required;
  };

  Expression object(const Choice& choice) {
    if (choice.count.least > choice.count.most) return Expressions::NONE;
    const std::unordered_set<std::string_view> required(choice.required.begin(), choice.required.end());
    std::unordered_set<std::string_view> names;
    std::vector<Member> members;
    std::vector<Expression> taken;
    uint32_t needed = 0;
    const auto add = [&](const std::string& name, SharedSchema schema) {
      const std::string text = escaped(name);
      for (const auto& [pattern, by_pattern] : choice.by_pattern) {
        if (in_.is_nullable(in_.derivative(pattern, text))) schema = merger_.both(schema, by_pattern);
      }
      const bool is_required = required.contains(name);
      const Expression value = expression(schema);
      names.insert(name);
      taken.push_back(spellings(name));
      needed += is_required;
      if (value == Expressions::NONE && !is_required) return;
      members.push_back({in_.concat(in_.literal(quoted(name)), in_.concat(colon_, value)), is_required});
    };
    for (const Property& each : choice.properties) add(each.name, each.schema);
    for (const std::string& each : choice.required) {
      if (!names.contains(each)) add(each, unnamed(choice, each));
    }
    const bool is_bounded = choice.count.most != Expressions::UNLIMITED;
    if ((choice.count.least > 1 || is_bounded) && needed < members.size() && !(is_bounded && choice.count.most == 0)) {
      throw TextError("\"minProperties\" and \"maxProperties\" are supported only where all named properties are required");
    }
    if (needed > choice.count.most) return Expressions::NONE;
    const uint32_t least = needed < members.size() ? 0 : choice.count.least - std::min(needed, choice.count.least);
    const uint32_t most = is_bounded ? choice.count.most - needed : Expressions::UNLIMITED;
    if (most == 0) std::erase_if(members, [](const Member& each) { return !each.is_required; });

    const Expression other = unnamed_members(choice, taken);
    const Expression further = in_.concat(comma_, other);
    Expression with = in_.repeat(further, least, most);  // what may follow, where something is before it
    const Expression first = in_.concat(other, in_.repeat(further, least > 0 ? least - 1 : 0, most == Expressions::UNLIMITED ? most : most - std::min(most, 1u)));
    Expression without = most == 0 ? Expressions::NONE : first;
    if (least == 0 && choice.count.least <= needed) without = in_.optional(without);
    std::vector<Expression> beginnings = {without};
    for (size_t place = members.size(); place > 0; place--) {
      const auto& [text, is_required] = members[place - 1];
      if (is_required) beginnings.clear();
      beginnings.push_back(in_.concat(text, with));
      const Expression joined = in_.concat(comma_, text);
      with = in_.concat(is_required ? joined : in_.optional(joined), with);
    }
    return in_.concat(in_.literal("{"), in_.concat(in_.either(std::move(beginnings)), in_.literal("}")));
  }

  // The schema of a property that no name has.
  SharedSchema unnamed(const Choice& choice, const std::string& name) {
    const std::string text = escaped(name);
    const auto matches = [&](const auto& each) { return in_.is_nullable(in_.derivative(each.first, text)); };
    return std::ranges::any_of(choice.by_pattern, matches) ? nullptr : choice.others;
  }

  // A property whose name is none of those that are taken.
  Expression unnamed_members(const Choice& choice, const std::vector<Expression>& taken) {
    std::vector<Expression> names = {characters_}, members;
    if (!taken.empty()) names.push_back(in_.complement(in_.either(taken)));
    std::vector<Expression> matching;
    const auto add = [&](std::vector<Expression> parts, const SharedSchema& schema) {
      const Expression name = in_.both(std::move(parts));
      if (in_.is_alive(name)) members.push_back(in_.concat(between_quotes(name), in_.concat(colon_, expression(schema))));
    };
    for (const auto& [pattern, schema] : choice.by_pattern) {
      for (const Expression other : matching) {
        if (in_.is_alive(in_.both({pattern, other}))) throw TextError("two of \"patternProperties\" match the same name, which is not supported");
      }
      matching.push_back(pattern);
      auto parts = names;
      parts.push_back(pattern);
      add(std::move(parts), schema);
    }
    if (!matching.empty()) names.push_back(in_.complement(in_.either(matching)));
    add(names, choice.others);
    return in_.either(std::move(members));
  }

  // All ways in which JSON writes a name here.
  Expression spellings(std::string_view name) {
    Expression all = EMPTY_TEXT;
    size_t end = name.size();
    while (end > 0) {
      const size_t begin = last_character(name.substr(0, end));
      const char32_t character = character_at(name, begin);
      all = in_.concat(one_of(CharacterSet(character, character), Writing::JSON, in_), all);
      end = begin;
    }
    return all;
  }

  static constexpr Expression EMPTY_TEXT = Expressions::EMPTY;

  const Json root_;
  Expressions& in_;
  SchemaMerger merger_;
  const Expression character_, characters_, comma_, colon_;
  Expression any_ = Expressions::NONE;
  std::map<std::string, Expression> rules_;  // by pointer
  std::vector<std::string> pending_;
  std::set<std::string> resolving_;
};

}  // namespace

GrammarExpressions read_json_schema(std::string_view json) {
  const JsonDocument document(json);
  Expressions expressions;
  return Reader(document.root("the schema"), expressions).read();
}

}  // namespace hybridge::text
