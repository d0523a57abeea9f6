#include "json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "../json.h"
#include "characters.h"
#include "formats.h"
#include "references.h"
#include "regex.h"
#include "schema.h"
#include "schema_expression.h"

namespace hybridge::text {
namespace {

using Type = Choice::Type;

constexpr size_t DEEPEST = 64;       // schemas inside each other
constexpr size_t MOST_READINGS = 8;  // of a schema, as references turn out to be of nothing
constexpr double LARGEST_COUNT = 1u << 30;

// Keywords of JSON Schema that say what fits, and that are not followed here.
constexpr std::string_view NOT_SUPPORTED[] = {"uniqueItems", "$recursiveRef"};

// Keywords that ask something of each type by itself. Those that apply schemas come after them, in the order of
// APPLIED.
constexpr std::string_view OF_TYPES[] = {
    "type",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "prefixItems",
    "items",
    "additionalItems",
    "minItems",
    "maxItems",
    "contains",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties"
};
constexpr const char* APPLIED[] = {
    "propertyNames",    "dependentRequired",    "dependentSchemas", "dependencies", "not", "if",
    "unevaluatedItems", "unevaluatedProperties"
};

bool is_in(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string quoted(std::string_view text) { return "\"" + escaped(text) + "\""; }

SharedSchema shared(Schema schema) { return std::make_shared<const Schema>(std::move(schema)); }

// Returns the schema of values that are of another type, or fit the choice.
Schema if_of_type(Choice choice) {
  Schema all;
  for (const Type type : Choice::TYPES) {
    if (type != choice.type) all.push_back({.type = type});
  }
  all.push_back(std::move(choice));
  return all;
}

class Reader {
 public:
  // nothing: keys of references that nothing fits.
  Reader(const Json& root, Expressions& in, const std::set<std::string>& nothing)
      : root_(root),
        in_(in),
        nothing_(nothing),
        references_(root),
        merger_(in, [this](const std::string& key) { return resolved(key); }),
        made_(in, merger_, [this](const std::string& key) { return resolved(key); }) {}

  // Adds to `dead` the references that nothing fits: it is to be read again with them.
  template <typename Write>
  Expression read(std::set<std::string>& dead, Write&& write) {
    const Expression start = in_.add_rule();
    const Expression body = write(made_, schema(root_, 0));
    const auto found = made_.finish(start, body);
    if (found.empty() && body == Expressions::NONE) {
      throw TextError(nothing_.empty() ? "nothing fits it" : "nothing fits the schema at " + *nothing_.begin());
    }
    dead.insert(found.begin(), found.end());
    return start;
  }

  Expression character() const { return made_.character(); }

 private:
  // ---- from JSON to choices

  Schema schema(const Json& json, size_t depth) {
    merger_.count();
    if (depth > DEEPEST) throw TextError("schemas are nested too deeply");
    if (json.is_boolean()) return json.boolean() ? Schema{Choice{}} : Schema{};
    if (!json.is_object()) json.fail("an object, true or false");
    const std::string around = std::exchange(base_, References::base_inside(json, base_));
    Schema all = {Choice{}};
    bool has_types = false;
    json.each_entry([&](std::string_view key, const Json& value) {
      if (is_in(NOT_SUPPORTED, key) && !(value.is_boolean() && !value.boolean() && key == "uniqueItems")) {
        throw TextError("\"" + std::string(key) + "\" in " + json.name() + " is not supported");
      }
      if (is_in(OF_TYPES, key)) {
        if (!std::exchange(has_types, true)) all = merger_.both(all, of_types(json, depth));
      } else if (const auto applied = choices(json, key, value.as(json.name() + "." + std::string(key)), depth)) {
        all = merger_.both(all, *applied);
      }
    });
    for (const char* const key : APPLIED) {
      const Json value = json[key];
      if (value) all = apply(json, key, value, std::move(all), depth + 1);
    }
    if (json["nullable"].boolean_or(false)) all.push_back({.type = Type::NOTHING});
    base_ = around;
    return all;
  }

  std::optional<Schema> choices(const Json& json, std::string_view key, const Json& value, size_t depth) {
    if (key == "$ref" || key == "$dynamicRef") {
      return Schema{
          {.type = Type::REFERENCE,
           .literals = std::vector{references_.key(value.string(), base_, key == "$dynamicRef")}}
      };
    }
    if (key == "const") return literal(value, depth);
    const bool is_any = key == "anyOf", is_one = key == "oneOf";
    if (key != "enum" && key != "allOf" && !is_any && !is_one) return std::nullopt;
    Schema all;
    if (key == "allOf") all.emplace_back();
    std::vector<Schema> branches;
    value.each([&](const Json& each) {
      Schema one = key == "enum" ? literal(each, depth + 1) : schema(each, depth + 1);
      if (key == "allOf") {
        all = merger_.both(all, one);
      } else if (is_one) {
        branches.push_back(std::move(one));
      } else {
        // What fits several branches has the properties of all of them evaluated.
        if (is_any && references_.has_unevaluated()) std::ranges::move(merger_.both(all, one), std::back_inserter(all));
        std::ranges::move(one, std::back_inserter(all));
      }
    });
    if (is_one) all = exactly_one(json, std::move(branches));
    return joined(std::move(all));
  }

  // What fits one of the branches alone.
  Schema exactly_one(const Json& json, std::vector<Schema> branches) {
    std::vector<std::vector<size_t>> overlapping(branches.size());
    for (size_t i = 0; i < branches.size() && !json["discriminator"]; i++) {
      for (size_t other = 0; other < i; other++) {
        if (merger_.are_apart(branches[i], branches[other])) continue;
        overlapping[i].push_back(other);
        overlapping[other].push_back(i);
      }
    }
    Schema all;
    for (size_t i = 0; i < branches.size(); i++) {
      Schema one = branches[i];
      try {
        for (const size_t other : overlapping[i]) one = merger_.both(one, merger_.complement(branches[other]));
      } catch (const TextError& error) {
        throw TextError(
            "\"oneOf\" in " + json.name() +
            " is not supported, as one text may fit several of its schemas: use \"anyOf\" (" + error.what() + ")"
        );
      }
      std::ranges::move(one, std::back_inserter(all));
    }
    return all;
  }

  // Returns the choices of `all` that keep a keyword.
  Schema apply(const Json& json, std::string_view key, const Json& value, Schema all, size_t depth) {
    if (key == "not") return merger_.both(all, merger_.complement(schema(value, depth)));
    if (key == "propertyNames") {
      const Expression others = in_.complement(made_.strings(schema(value, depth)));
      return merger_.both(all, if_of_type({.type = Type::OBJECT, .by_pattern = {{others, shared({})}}}));
    }
    if (key == "if") {
      const Schema condition = schema(value, depth);
      const auto branch = [&](const char* name, const Schema& when) {
        const Json then = json[name];
        return then ? merger_.both(when, schema(then, depth)) : when;
      };
      if (!json["then"] && !json["else"] && !references_.has_unevaluated()) return all;
      Schema either = branch("then", condition);
      std::ranges::move(branch("else", merger_.complement(condition)), std::back_inserter(either));
      return merger_.both(all, either);
    }
    if (key == "unevaluatedItems" || key == "unevaluatedProperties")
      return unevaluated(merger_.resolved(all), schema(value, depth), key == "unevaluatedItems");
    value.each_entry([&](std::string_view name,
                         const Json& dependent) {  // dependentRequired, dependentSchemas or dependencies
      Choice with{.type = Type::OBJECT, .required = {std::string(name)}};
      Schema schemas = if_of_type({.type = Type::OBJECT, .properties = {{std::string(name), shared({})}}});
      if (dependent.is_array()) {
        add_names(dependent, with.required);
        schemas.push_back(std::move(with));
      } else {
        std::ranges::move(merger_.both(Schema{std::move(with)}, schema(dependent, depth)), std::back_inserter(schemas));
      }
      all = merger_.both(all, schemas);
    });
    return all;
  }

  // Returns the choices whose items, or properties, that nothing has evaluated fit a schema.
  Schema unevaluated(Schema all, const Schema& rest, bool is_of_items) {
    Schema kept;
    for (Choice& each : all) {
      if (is_of_items && each.type == Type::ARRAY && each.evaluated_items != Expressions::UNLIMITED) {
        Schema item = rest;
        for (const Contained& found : each.contained) {
          if (found.is_keyword) item.insert(item.end(), found.schema->begin(), found.schema->end());
        }
        Choice others{
            .type = Type::ARRAY, .others = shared(std::move(item)), .evaluated_items = Expressions::UNLIMITED
        };
        others.first_items.assign(each.evaluated_items, shared({Choice{}}));
        std::ranges::move(merger_.both(Schema{std::move(each)}, Schema{std::move(others)}), std::back_inserter(kept));
      } else if (!is_of_items && each.type == Type::OBJECT) {
        const Expression others = in_.complement(each.evaluated);
        const Choice object{
            .type = Type::OBJECT, .by_pattern = {{others, shared(rest)}}, .evaluated = made_.characters()
        };
        std::ranges::move(merger_.both(Schema{std::move(each)}, Schema{object}), std::back_inserter(kept));
      } else {
        kept.push_back(std::move(each));
      }
    }
    return kept;
  }

  // Makes one choice of those of a type that are named, and nothing else.
  static Schema joined(Schema choices) {
    Schema all;
    for (Choice& each : choices) {
      const auto found = std::ranges::find_if(all, [&](const Choice& other) {
        return other.type == each.type && is_only_named(other);
      });
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
    return choice.literals && choice.type != Type::REFERENCE && choice.patterns.empty() && choice.range.is_free() &&
           choice.count.is_free();
  }

  // What is equal to a value.
  Schema literal(const Json& value, size_t depth) {
    merger_.count();
    if (depth > DEEPEST) throw TextError("values are nested too deeply");
    const auto named = [](Type type, std::string text) {
      return Schema{{.type = type, .literals = std::vector{std::move(text)}}};
    };
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

  Schema of_types(const Json& json, size_t depth) {
    static constexpr std::pair<std::string_view, Type> types[] = {{"null", Type::NOTHING},  {"boolean", Type::BOOLEAN},
                                                                  {"number", Type::NUMBER}, {"string", Type::STRING},
                                                                  {"array", Type::ARRAY},   {"object", Type::OBJECT},
                                                                  {"integer", Type::NUMBER}};
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
    const auto read = [](const Json& value) {  // 2.0 is a count as well
      if (!value.is_number() || !(value.number() >= 0 && value.number() <= LARGEST_COUNT) ||
          std::floor(value.number()) != value.number()) {
        value.fail("an integer from 0 to 1073741824");
      }
      return static_cast<uint32_t>(value.number());
    };
    if (least) count.least = read(least);
    if (most) count.most = read(most);
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
    choice.evaluated_items = others ? Expressions::UNLIMITED : static_cast<uint32_t>(choice.first_items.size());
    if (const Json contains = json["contains"]) {
      Contained found{
          .schema = shared(schema(contains, depth + 1)),
          .count = read_count(json["minContains"], json["maxContains"]),
          .is_keyword = true
      };
      if (!json["minContains"]) found.count.least = 1;
      choice.contained.push_back(std::move(found));
    }
  }

  void read_object(const Json& json, Choice& choice, size_t depth) {
    choice.count = read_count(json["minProperties"], json["maxProperties"]);
    std::vector<Expression> evaluated;
    if (const Json patterns = json["patternProperties"]) {
      patterns.each_entry([&](std::string_view key, const Json& value) {
        choice.by_pattern.emplace_back(read_pattern_of_schema(key, in_), shared(schema(value, depth + 1)));
        evaluated.push_back(choice.by_pattern.back().first);
      });
    }
    if (const Json properties = json["properties"]) {
      properties.each_entry([&](std::string_view key, const Json& value) {
        SharedSchema found = shared(schema(value.as(json.name() + ".properties." + std::string(key)), depth + 1));
        if (!choice.by_pattern.empty()) found = merger_.both(found, merger_.unnamed(choice, std::string(key)));
        if (references_.has_unevaluated()) evaluated.push_back(spellings(key, in_));
        choice.properties.push_back({std::string(key), std::move(found)});
      });
    }
    if (const Json others = json["additionalProperties"]) {
      choice.others = shared(schema(others, depth + 1));
      evaluated.push_back(made_.characters());
    }
    if (references_.has_unevaluated()) choice.evaluated = in_.either(std::move(evaluated));
    if (const Json required = json["required"]) add_names(required, choice.required);
  }

  // Adds the names of a list that are new.
  static void add_names(const Json& list, std::vector<std::string>& to) {
    std::unordered_set<std::string> known(to.begin(), to.end());
    list.each([&](const Json& each) {
      std::string name(each.string());
      if (known.insert(name).second) to.push_back(std::move(name));
    });
  }

  // ---- references

  Schema resolved(const std::string& key) {
    if (nothing_.contains(key)) return {};
    if (const auto known = known_.find(key); known != known_.end()) return *known->second;
    Schema found;
    if (key.starts_with('!')) {
      found = merger_.complement(resolved(key.substr(1)));
    } else {
      if (!resolving_.insert(key).second)
        throw TextError(
            "the reference " + key + " to what it is in has other keywords beside it, which is not supported"
        );
      const References::Target target = references_.find(key);
      const std::string around = std::exchange(base_, target.base);
      found = schema(target.schema, 0);
      base_ = around;
      resolving_.erase(key);
    }
    known_[key] = shared(found);
    return found;
  }

  const Json root_;
  Expressions& in_;
  const std::set<std::string>& nothing_;
  const References references_;
  SchemaMerger merger_;
  SchemaExpressions made_;
  std::string base_;                           // the URI that references in the schema that is read start from
  std::map<std::string, SharedSchema> known_;  // by key
  std::set<std::string> resolving_;
};

}  // namespace

GrammarExpressions read_json_schemas(
    std::span<const Json> schemas,
    const std::function<Expression(Expressions& in, SchemaExpressions& made, size_t place, const Schema& schema)>&
        write,
    const std::function<Expression(Expressions& in, std::span<const Expression> written)>& join
) {
  std::vector<std::set<std::string>> nothing(schemas.size());
  for (size_t reading = 0; reading < MOST_READINGS; reading++) {
    GrammarExpressions found;
    std::vector<Expression> written;
    bool is_done = true;
    for (size_t place = 0; place < schemas.size(); place++) {
      Reader reader(schemas[place], found.all, nothing[place]);
      std::set<std::string> dead;
      written.push_back(reader.read(dead, [&](SchemaExpressions& made, const Schema& schema) {
        return write(found.all, made, place, schema);
      }));
      found.item = reader.character();
      is_done = is_done && dead.empty();
      nothing[place].merge(dead);
    }
    if (!is_done) continue;
    found.start = join(found.all, written);
    return found;
  }
  for (const std::set<std::string>& each : nothing) {
    if (!each.empty()) throw TextError("nothing fits the schema at " + *each.begin());
  }
  throw TextError("nothing fits it");
}

GrammarExpressions read_json_schema(std::string_view json) {
  const JsonDocument document(json);
  const Json root = document.root("the schema");
  return read_json_schemas(
      {&root, 1}, [](Expressions&, SchemaExpressions& made, size_t, const Schema& schema) { return made.of(schema); },
      [](Expressions&, std::span<const Expression> written) { return written[0]; }
  );
}

}  // namespace hybridge::text
