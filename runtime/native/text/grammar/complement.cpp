// What does not fit a schema, as choices.
#include <algorithm>

#include "../json.h"
#include "characters.h"
#include "schema.h"

namespace hybridge::text {
namespace {

using Type = Choice::Type;

SharedSchema shared(Schema schema) { return std::make_shared<const Schema>(std::move(schema)); }

void add_counts(Type type, const Count& count, Schema& to) {
  if (count.least > 0) to.push_back({.type = type, .count = {0, count.least - 1}});
  if (count.most != Expressions::UNLIMITED)
    to.push_back({.type = type, .count = {count.most + 1, Expressions::UNLIMITED}});
}

void add_number_violations(const NumberRange& range, Schema& to) {
  const auto add = [&](NumberRange other) { to.push_back({.type = Type::NUMBER, .range = std::move(other)}); };
  if (range.is_integer) add({.is_fraction = true});
  if (range.is_fraction) add({.is_integer = true});
  for (const Limit& each : range.limits) add({.limits = {{each.value, !each.is_least, !each.is_exclusive}}});
  for (const Decimal& each : range.steps) add({.no_steps = {each}});
  for (const Decimal& each : range.no_steps) add({.steps = {each}});
  for (const Decimal& each : range.excluded) add({.limits = {{each, true, false}, {each, false, false}}});
}

}  // namespace

Schema SchemaMerger::complement(const Schema& of) {
  Schema all = {Choice{}};
  for (const Choice& each : of) {
    all = both(all, complement(each));
    if (all.empty()) break;
  }
  return all;
}

Schema SchemaMerger::complement(const Choice& of) {
  count();
  if (of.type == Type::ANY) return {};
  if (of.type == Type::REFERENCE) {  // which may refer to itself
    const std::string& key = of.literals->front();
    return {{.type = Type::REFERENCE, .literals = std::vector{key.starts_with('!') ? key.substr(1) : "!" + key}}};
  }
  Schema all;
  for (const Type type : Choice::TYPES) {
    if (type != of.type) all.push_back({.type = type});
  }
  add_violations(of, all);
  return all;
}

void SchemaMerger::add_violations(const Choice& of, Schema& to) {
  switch (of.type) {
    case Type::BOOLEAN:
      for (const char* const value : {"false", "true"}) {
        if (of.literals && !std::ranges::binary_search(*of.literals, value))
          to.push_back({.type = of.type, .literals = std::vector<std::string>{value}});
      }
      return;
    case Type::NUMBER:
      if (of.literals) {
        Choice others{.type = of.type};
        for (const std::string& each : *of.literals) others.range.excluded.push_back(Decimal::read(each));
        to.push_back(std::move(others));
      }
      return add_number_violations(of.range, to);
    case Type::STRING: {
      const Expression character = one_of(CharacterSet::all(), Writing::JSON, in_);
      const auto other_strings = [&](Expression texts) {  // a complement alone would have quotation marks as well
        return in_.both({in_.repeat(character, 0, Expressions::UNLIMITED), in_.complement(texts)});
      };
      if (of.literals) {
        std::vector<Expression> named;
        for (const std::string& each : *of.literals)
          named.push_back(spellings(JsonDocument(each).root().string(), in_));
        to.push_back({.type = of.type, .patterns = {other_strings(in_.either(std::move(named)))}});
      }
      for (const Expression each : of.patterns) to.push_back({.type = of.type, .patterns = {other_strings(each)}});
      return add_counts(of.type, of.count, to);
    }
    case Type::ARRAY: return add_array_violations(of, to);
    case Type::OBJECT: return add_object_violations(of, to);
    default: return;
  }
}

void SchemaMerger::add_array_violations(const Choice& of, Schema& to) {
  add_counts(of.type, of.count, to);
  for (size_t place = 0; place < of.first_items.size(); place++) {
    Choice other{.type = of.type, .count = {static_cast<uint32_t>(place) + 1, Expressions::UNLIMITED}};
    other.first_items.assign(place, shared({Choice{}}));
    other.first_items.push_back(shared(complement(*of.first_items[place])));
    if (!other.first_items.back()->empty()) to.push_back(std::move(other));
  }
  if (of.others != nullptr) {
    const SharedSchema other = shared(complement(*of.others));
    const auto from = static_cast<uint32_t>(of.first_items.size());
    if (of.others->empty()) to.push_back({.type = of.type, .count = {from + 1, Expressions::UNLIMITED}});
    else if (!other->empty()) to.push_back({.type = of.type, .contained = {{.schema = other, .from = from}}});
  }
  for (const Contained& each : of.contained) {
    const auto add = [&](Count count) {
      to.push_back({.type = of.type, .contained = {{each.schema, count, each.from}}});
    };
    if (each.count.least > 0) add({0, each.count.least - 1});
    if (each.count.most != Expressions::UNLIMITED) add({each.count.most + 1, Expressions::UNLIMITED});
  }
}

void SchemaMerger::add_object_violations(const Choice& of, Schema& to) {
  const auto is_open = [](const auto& each) { return each.second == nullptr; };
  if (of.others != nullptr || !std::ranges::all_of(of.by_pattern, is_open)) {
    throw TextError(
        "objects that do not keep \"additionalProperties\", \"patternProperties\" or \"propertyNames\" are not supported"
    );
  }
  add_counts(of.type, of.count, to);
  for (const std::string& each : of.required) to.push_back({.type = of.type, .properties = {{each, shared({})}}});
  for (const Property& each : of.properties) {
    if (each.schema == nullptr) continue;
    const SharedSchema other = shared(complement(*each.schema));
    if (!other->empty()) to.push_back({.type = of.type, .properties = {{each.name, other}}, .required = {each.name}});
  }
}

}  // namespace hybridge::text
