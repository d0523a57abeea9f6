#include "schema.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "../json.h"
#include "../unicode.h"
#include "characters.h"

namespace hybridge::text {
namespace {

constexpr size_t MOST_STEPS = 1'000'000, OF_A_CHOICE = 5, DEEPEST = 100;
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

void SchemaMerger::count(size_t steps) {
  steps_ += steps;
  if (steps_ > MOST_STEPS)
    throw TextError("it is too complex; write less of it, with smaller counts and fewer choices");
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

Schema SchemaMerger::resolved(const Schema& schema) {
  Schema all;
  for (const Choice& each : schema) {
    if (each.type == Type::ANY) {
      for (const Type type : Choice::TYPES) all.push_back({.type = type});
    } else if (each.type == Type::REFERENCE) {
      if (++depth_ > DEEPEST)
        throw TextError("a reference to what it is in has other keywords beside it, which is not supported");
      append(all, resolved(resolve_(each.literals->front())));
      depth_--;
    } else {
      all.push_back(each);
    }
  }
  return all;
}

Schema SchemaMerger::both(const Choice& one, const Choice& other) {
  const auto size = [](const Choice& of) {
    return of.properties.size() + of.required.size() + of.first_items.size() + of.patterns.size();
  };
  count(OF_A_CHOICE + size(one) + size(other));
  if (one.type == Type::ANY) return {other};
  if (other.type == Type::ANY) return {one};
  if (one.type == Type::REFERENCE || other.type == Type::REFERENCE) {
    if (one.type == other.type && one.literals == other.literals) return {one};
    if (++depth_ > DEEPEST)
      throw TextError("a reference to what it is in has other keywords beside it, which is not supported");
    const Schema first = one.type == Type::REFERENCE ? resolve_(one.literals->front()) : Schema{one};
    const Schema second = other.type == Type::REFERENCE ? resolve_(other.literals->front()) : Schema{other};
    Schema merged = both(first, second);
    depth_--;
    return merged;
  }
  if (one.type != other.type) return {};
  Choice merged = one;
  merged.count = {std::max(one.count.least, other.count.least), std::min(one.count.most, other.count.most)};
  if (merged.count.least > merged.count.most) return {};
  if (one.literals && other.literals) {
    merged.literals.emplace();
    std::ranges::set_intersection(*one.literals, *other.literals, std::back_inserter(*merged.literals));
  } else if (other.literals) {
    merged.literals = other.literals;
  }
  merged.range.is_integer = one.range.is_integer || other.range.is_integer;
  merged.range.is_fraction = one.range.is_fraction || other.range.is_fraction;
  append(merged.range.limits, other.range.limits);
  append(merged.range.steps, other.range.steps);
  append(merged.range.no_steps, other.range.no_steps);
  append(merged.range.excluded, other.range.excluded);
  append(merged.patterns, other.patterns);
  if (one.type == Type::OBJECT) merge_objects(merged, other);
  if (one.type == Type::ARRAY) merge_arrays(merged, other);
  if (!keep_fitting(merged)) return {};
  return {std::move(merged)};
}

// Keeps the named values that fit what else is asked of them. Returns false if it is certain that nothing fits the
// choice.
bool SchemaMerger::keep_fitting(Choice& choice) {
  if (choice.type == Type::OBJECT) {
    const std::unordered_set<std::string_view> required(choice.required.begin(), choice.required.end());
    const auto is_missing = [&](const Property& each) {
      return each.schema != nullptr && each.schema->empty() && required.contains(each.name);
    };
    return std::ranges::none_of(choice.properties, is_missing);
  }
  if (!choice.literals) return true;
  if (choice.type == Type::NUMBER && !choice.range.is_free()) {
    const Expression fitting = numbers(choice.range, in_);
    std::erase_if(*choice.literals, [&](const std::string& each) {
      return !in_.is_nullable(in_.derivative(fitting, each));
    });
    choice.range = {};
  }
  if (choice.type == Type::STRING && !(choice.patterns.empty() && choice.count.is_free())) {
    std::erase_if(*choice.literals, [&](const std::string& each) {
      const JsonDocument document(each);
      const std::string_view inner = std::string_view(each).substr(1, each.size() - 2);
      const size_t size = count_characters(document.root().string());
      const auto matches = [&](Expression pattern) { return in_.is_nullable(in_.derivative(pattern, inner)); };
      return size < choice.count.least || size > choice.count.most || !std::ranges::all_of(choice.patterns, matches);
    });
    choice.patterns.clear();
    choice.count = {};
  }
  return !choice.literals->empty();
}

void SchemaMerger::merge_arrays(Choice& into, const Choice& other) {
  const auto item = [](const Choice& of, size_t place) {
    return place < of.first_items.size() ? of.first_items[place] : of.others;
  };
  std::vector<SharedSchema> first_items;
  for (size_t i = 0; i < std::max(into.first_items.size(), other.first_items.size()); i++) {
    const SharedSchema found = both(item(into, i), item(other, i));
    first_items.push_back(found == nullptr ? any() : found);
  }
  into.first_items = std::move(first_items);
  into.others = both(into.others, other.others);
  append(into.contained, other.contained);
  into.evaluated_items = std::max(into.evaluated_items, other.evaluated_items);
}

SharedSchema SchemaMerger::unnamed(const Choice& choice, const std::string& name) {
  const std::string text = escaped(name);
  SharedSchema found;
  bool is_matched = false;
  for (const auto& [names, schema] : choice.by_pattern) {
    if (!in_.is_nullable(in_.derivative(names, text))) continue;
    found = both(found, schema);
    is_matched = true;
  }
  return is_matched ? found : choice.others;
}

void SchemaMerger::merge_objects(Choice& into, const Choice& other) {
  std::unordered_map<std::string_view, SharedSchema> theirs;
  for (const Property& each : other.properties) theirs.emplace(each.name, each.schema);
  std::unordered_set<std::string> names;
  for (Property& each : into.properties) {
    const auto found = theirs.find(each.name);
    each.schema = both(each.schema, found != theirs.end() ? found->second : unnamed(other, each.name));
    names.insert(each.name);
  }
  for (const Property& each : other.properties) {
    if (!names.contains(each.name)) into.properties.push_back({each.name, both(unnamed(into, each.name), each.schema)});
  }
  if (into.by_pattern.empty() && other.by_pattern.empty()) {
    into.others = both(into.others, other.others);
  } else {  // each schema for other names is for those that its own patterns do not match
    const auto of_others = [&](const Choice& of) {
      std::vector<std::pair<Expression, SharedSchema>> found;
      if (of.others == nullptr) return found;
      std::vector<Expression> patterns;
      for (const auto& [pattern, schema] : of.by_pattern) patterns.push_back(pattern);
      found.emplace_back(in_.complement(in_.either(std::move(patterns))), of.others);
      return found;
    };
    const auto mine = of_others(into), others = of_others(other);
    append(into.by_pattern, other.by_pattern);
    append(into.by_pattern, mine);
    append(into.by_pattern, others);
    into.others = nullptr;
  }
  names.clear();
  names.insert(into.required.begin(), into.required.end());
  for (const std::string& each : other.required) {
    if (!names.contains(each)) into.required.push_back(each);
  }
  into.evaluated = in_.either(into.evaluated, other.evaluated);
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
  const auto find = [&](const Choice& in, const std::string& name) {
    const auto found = std::ranges::find(in.properties, name, &Property::name);
    const SharedSchema schema = found != in.properties.end() ? found->schema : unnamed(in, name);
    return schema != nullptr ? schema : any();
  };
  const auto tells_apart = [&](const std::string& name) { return are_apart(*find(one, name), *find(other, name)); };
  return std::ranges::any_of(one.required, tells_apart) || std::ranges::any_of(other.required, tells_apart);
}

}  // namespace hybridge::text
