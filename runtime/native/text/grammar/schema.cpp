#include "schema.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "../error.h"

namespace hybridge::text {
namespace {

constexpr size_t MOST_STEPS = 200'000, DEEPEST = 100;
using Type = Choice::Type;

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// A schema's part for what it does not name; null stands for any.
const SharedSchema& any() {
  static const SharedSchema schema = std::make_shared<const Schema>(Schema{Choice{}});
  return schema;
}

}  // namespace

void SchemaMerger::count() {
  if (++steps_ > MOST_STEPS) throw TextError("it is too complex; write less of it, with smaller counts and fewer choices");
}

Schema SchemaMerger::both(const Schema& one, const Schema& other) {
  Schema merged;
  for (const Choice& each : one) {
    for (const Choice& with : other) append(merged, both(each, with));
  }
  return merged;
}

SharedSchema SchemaMerger::both(const SharedSchema& one, const SharedSchema& other) {
  if (one == nullptr || other == nullptr) return one == nullptr ? other : one;
  return std::make_shared<const Schema>(both(*one, *other));
}

Schema SchemaMerger::both(const Choice& one, const Choice& other) {
  count();
  if (one.type == Type::ANY) return {other};
  if (other.type == Type::ANY) return {one};
  if (one.type == Type::REFERENCE || other.type == Type::REFERENCE) {
    if (one.type == other.type && one.literals == other.literals) return {one};
    if (++depth_ > DEEPEST) throw TextError("a reference to what it is in has other keywords beside it, which is not supported");
    const Schema first = one.type == Type::REFERENCE ? resolve_(one.literals->front()) : Schema{one};
    const Schema second = other.type == Type::REFERENCE ? resolve_(other.literals->front()) : Schema{other};
    Schema merged = both(first, second);
    depth_--;
    return merged;
  }
  if (one.type != other.type) return {};
  Choice merged = one;
  merged.count = {std::max(one.count.least, other.count.least), std::min(one.count.most, other.count.most)};
  if (one.literals && other.literals) {
    merged.literals.emplace();
    std::ranges::set_intersection(*one.literals, *other.literals, std::back_inserter(*merged.literals));
    if (merged.literals->empty()) return {};
  } else if (other.literals) {
    merged.literals = other.literals;
  }
  merged.range.is_integer = one.range.is_integer || other.range.is_integer;
  append(merged.range.limits, other.range.limits);
  append(merged.range.steps, other.range.steps);
  append(merged.patterns, other.patterns);
  if (one.type == Type::OBJECT) {
    merge_objects(merged, other);
  } else if (one.type == Type::ARRAY) {
    merged.first_items.clear();
    const auto item = [](const Choice& of, size_t place) { return place < of.first_items.size() ? of.first_items[place] : of.others; };
    for (size_t i = 0; i < std::max(one.first_items.size(), other.first_items.size()); i++) {
      const SharedSchema found = both(item(one, i), item(other, i));
      merged.first_items.push_back(found == nullptr ? any() : found);
    }
    merged.others = both(one.others, other.others);
  }
  return {std::move(merged)};
}

void SchemaMerger::merge_objects(Choice& into, const Choice& other) {
  const auto is_plain = [](const Choice& each) { return each.by_pattern.empty(); };
  const auto is_free = [&](const Choice& each) { return is_plain(each) && each.properties.empty() && each.others == nullptr; };
  if (!(is_plain(into) && is_plain(other)) && !is_free(into) && !is_free(other)) {
    throw TextError("\"patternProperties\" is not supported in one of several schemas for the same object");
  }
  append(into.by_pattern, other.by_pattern);
  std::unordered_map<std::string, SharedSchema> theirs;
  for (const Property& each : other.properties) theirs.emplace(each.name, each.schema);
  std::unordered_set<std::string> names;
  for (Property& each : into.properties) {
    const auto found = theirs.find(each.name);
    each.schema = both(each.schema, found != theirs.end() ? found->second : other.others);
    names.insert(each.name);
  }
  for (const Property& each : other.properties) {
    if (!names.contains(each.name)) into.properties.push_back({each.name, both(into.others, each.schema)});
  }
  into.others = both(into.others, other.others);
  names.clear();
  names.insert(into.required.begin(), into.required.end());
  for (const std::string& each : other.required) {
    if (!names.contains(each)) into.required.push_back(each);
  }
}

bool SchemaMerger::are_apart(const Schema& one, const Schema& other) {
  return std::ranges::all_of(one, [&](const Choice& each) {
    return std::ranges::all_of(other, [&](const Choice& with) { return are_apart(each, with); });
  });
}

bool SchemaMerger::are_apart(const Choice& one, const Choice& other) {
  count();
  if (one.type == Type::ANY || other.type == Type::ANY) return false;
  if (one.type == Type::REFERENCE || other.type == Type::REFERENCE) {
    if (one.type == other.type && one.literals == other.literals) return false;
    if (depth_ >= DEEPEST / 10) return false;
    depth_++;
    const Schema first = one.type == Type::REFERENCE ? resolve_(one.literals->front()) : Schema{one};
    const Schema second = other.type == Type::REFERENCE ? resolve_(other.literals->front()) : Schema{other};
    const bool found = are_apart(first, second);
    depth_--;
    return found;
  }
  if (one.type != other.type) return true;
  if (one.literals && other.literals) {
    std::vector<std::string> common;
    std::ranges::set_intersection(*one.literals, *other.literals, std::back_inserter(common));
    return common.empty();
  }
  if (one.type != Type::OBJECT) return false;
  // Objects are apart if a property that one of them must have is.
  const auto find = [](const Choice& in, const std::string& name) {
    const auto found = std::ranges::find(in.properties, name, &Property::name);
    const SharedSchema& schema = found != in.properties.end() ? found->schema : in.others;
    return schema != nullptr && in.by_pattern.empty() ? schema : any();
  };
  const auto tells_apart = [&](const std::string& name) { return are_apart(*find(one, name), *find(other, name)); };
  return std::ranges::any_of(one.required, tells_apart) || std::ranges::any_of(other.required, tells_apart);
}

}  // namespace hybridge::text
