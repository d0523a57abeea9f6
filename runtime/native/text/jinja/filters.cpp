// Jinja's filters.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "../../third_party/yyjson/yyjson.h"
#include "../unicode.h"
#include "interpreter.h"
#include "loop.h"
#include "operators.h"

namespace hybridge::text::jinja {

namespace {

using Filter = Value (*)(Interpreter& in, const Value& value, Arguments& given);

// A value's attribute such as "function.name" or "items.0".
Value by_path(Interpreter& in, const Value& value, const Value& path) {
  if (path.is_none()) return value;
  if (!path.is_string()) return in.item(value, path);
  Value found = value;
  const std::string& text = path.text().bytes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const bool is_index = !part.empty() && part.size() < 10 &&
                          part.find_first_not_of("0123456789") == std::string::npos;
    found = in.item(found, is_index ? Value::integer(std::stoll(part)) : in.string({part}));
    begin = end + 1;
  }
  return found;
}

Value without_case(Interpreter& in, const Value& value) {
  return value.is_string() ? in.string(lower(value.text())) : value;
}

// What items are ordered by: an attribute, in lower case unless case counts.
Value sort_key(Interpreter& in, const Value& item, const Bound& bound, size_t case_sensitive, size_t attribute) {
  Value key = bound.has(attribute) ? by_path(in, item, bound[attribute]) : item;
  return bound.truth(case_sensitive, false) ? key : without_case(in, key);
}

std::vector<Value> sorted(Interpreter& in, const std::vector<Value>& items, std::vector<Value> keys, bool is_reversed) {
  std::vector<size_t> places(items.size());
  for (size_t i = 0; i < places.size(); ++i) places[i] = i;
  std::ranges::stable_sort(places, [&](size_t a, size_t b) {
    return (is_reversed ? compare(in.budget(), keys[b], keys[a]) : compare(in.budget(), keys[a], keys[b])) < 0;
  });
  std::vector<Value> result;
  for (const size_t each : places) result.push_back(items[each]);
  return result;
}

Value sort(Interpreter& in, const Value& value, Arguments& given) {
  const Bound bound("sort", given, {"reverse", "case_sensitive", "attribute"});
  const auto items = items_of(in.budget(), value);
  std::vector<Value> keys;
  for (const Value& each : items) {
    if (!bound.has(2) || !bound[2].is_string() || bound[2].text().bytes.find(',') == std::string::npos) {
      keys.push_back(sort_key(in, each, bound, 1, 2));
      continue;
    }
    std::vector<Value> several;
    const std::string& paths = bound[2].text().bytes;
    for (size_t begin = 0; begin <= paths.size();) {
      const size_t end = std::min(paths.find(',', begin), paths.size());
      const Value key = by_path(in, each, in.string({paths.substr(begin, end - begin)}));
      several.push_back(bound.truth(1, false) ? key : without_case(in, key));
      begin = end + 1;
    }
    keys.push_back(Value::list(in.budget(), std::move(several)));
  }
  return Value::list(in.budget(), sorted(in, items, std::move(keys), bound.truth(0, false)));
}

Value dictsort(Interpreter& in, const Value& value, Arguments& given) {
  const Bound bound("dictsort", given, {"case_sensitive", "by", "reverse"});
  if (!value.is_dict()) throw TextError(std::string("dictsort is for dicts, not for ") + value.type());
  const std::string by = bound.has(1) ? bound.text(1).bytes : "key";
  if (by != "key" && by != "value") throw TextError("You can only sort by either \"key\" or \"value\"");
  std::vector<Value> items, keys;
  for (const auto& [key, of] : value.dict().entries) {
    items.push_back(Value::tuple(in.budget(), {key, of}));
    const Value& order = by == "key" ? key : of;
    keys.push_back(bound.truth(0, false) ? order : without_case(in, order));
  }
  return Value::list(in.budget(), sorted(in, items, std::move(keys), bound.truth(2, false)));
}

Value unique(Interpreter& in, const Value& value, Arguments& given) {
  const Bound bound("unique", given, {"case_sensitive", "attribute"});
  Value seen = Value::dict(in.budget());
  std::vector<Value> items;
  for (const Value& each : items_of(in.budget(), value)) {
    const Value key = sort_key(in, each, bound, 0, 1);
    if (seen.dict().find(key) != nullptr) continue;
    seen.dict().set(key, Value::none());
    items.push_back(each);
  }
  return Value::iterator(in.budget(), std::move(items));
}

Value extreme(Interpreter& in, const Value& value, Arguments& given, bool is_most) {
  const Bound bound(is_most ? "max" : "min", given, {"case_sensitive", "attribute"});
  const auto items = items_of(in.budget(), value);
  if (items.empty()) return in.undefined("No aggregated item, sequence was empty.");
  Value best = items[0], best_key = sort_key(in, best, bound, 0, 1);
  for (size_t i = 1; i < items.size(); ++i) {
    const Value key = sort_key(in, items[i], bound, 0, 1);
    const int order = compare(in.budget(), key, best_key);
    if (is_most ? order <= 0 : order >= 0) continue;
    best = items[i];
    best_key = key;
  }
  return best;
}

Value map(Interpreter& in, const Value& value, Arguments& given) {
  std::vector<Value> items;
  if (!value.truth()) return Value::iterator(in.budget(), {});
  if (given.positional.empty()) {
    const Bound bound("map", given, {"attribute", "default"}, 1);
    for (const Value& each : items_of(in.budget(), value)) {
      const Value found = by_path(in, each, bound[0]);
      items.push_back(found.is_undefined() && bound.has(1) && !bound[1].is_none() ? bound[1] : found);
    }
  } else {
    if (!given.positional[0].is_string()) throw TextError("map requires a filter's name");
    const std::string name = given.positional[0].text().bytes;
    const std::vector<Value> rest(given.positional.begin() + 1, given.positional.end());
    for (const Value& each : items_of(in.budget(), value)) {
      Arguments arguments{rest, given.named};
      items.push_back(in.filter(name, each, arguments));
    }
  }
  return Value::iterator(in.budget(), std::move(items));
}

Value select(Interpreter& in, const Value& value, const Arguments& given, bool wanted, bool by_attribute) {
  std::vector<Value> items;
  if (!value.truth()) return Value::iterator(in.budget(), {});
  const size_t offset = by_attribute;
  if (given.positional.size() < offset) throw TextError("Missing parameter for attribute name");
  for (const Value& each : items_of(in.budget(), value)) {
    const Value tested = by_attribute ? by_path(in, each, given.positional[0]) : each;
    bool passes = false;
    if (given.positional.size() == offset) {
      passes = tested.truth();
    } else {
      if (!given.positional[offset].is_string()) throw TextError("select requires a test's name");
      Arguments rest{
          {given.positional.begin() + static_cast<std::ptrdiff_t>(offset) + 1, given.positional.end()}, given.named
      };
      passes = in.test(given.positional[offset].text().bytes, tested, rest);
    }
    if (passes == wanted) items.push_back(each);
  }
  return Value::iterator(in.budget(), std::move(items));
}

Value join(Interpreter& in, const Value& value, Arguments& given) {
  const Bound bound("join", given, {"d", "attribute"});
  const Text separator = bound.has(0) ? to_text(in.budget(), bound[0]) : Text{};
  const bool has_attribute = bound.has(1) && !bound[1].is_none();
  Text text;
  bool is_first = true;
  for (const Value& each : items_of(in.budget(), value)) {
    if (!is_first) text.append(separator);
    is_first = false;
    const Text piece = to_text(in.budget(), has_attribute ? by_path(in, each, bound[1]) : each);
    text.append(piece);
    in.budget().spend(1 + (piece.size() + separator.size()) / 32);
    if (text.size() > (size_t(1) << 30)) throw TextError("the chat template takes too much memory");
  }
  return in.string(std::move(text));
}

Value length(Interpreter&, const Value& value, Arguments&) {
  size_t count = 0;
  if (value.is_string()) count = static_cast<const StringObject&>(*value.object()).length();
  else if (value.is_dict()) count = value.dict().size();
  else if (value.is(Kind::LOOP)) count = value.loop().length();
  else if (value.is_sequence() && !value.is(Kind::ITERATOR)) count = value.sequence().items.size();
  else if (!value.is_undefined()) throw TextError(std::string("object of type '") + value.type() + "' has no len()");
  return Value::integer(static_cast<int64_t>(count));
}

Value first(Interpreter& in, const Value& value, Arguments&) {
  if (value.is(Kind::ITERATOR)) {
    auto& sequence = value.sequence();
    if (sequence.read < sequence.items.size()) return sequence.items[sequence.read++];
    return in.undefined("No first item, sequence was empty.");
  }
  Value found;
  if (value.is_string() && find_item(in.budget(), value, Value::integer(0), found)) return found;
  const auto items = items_of(in.budget(), value);
  return items.empty() ? in.undefined("No first item, sequence was empty.") : items[0];
}

Value last(Interpreter& in, const Value& value, Arguments&) {
  if (value.is(Kind::ITERATOR)) throw TextError("'generator' object is not reversible");
  if (value.is_undefined()) throw TextError("'Undefined' object is not reversible");
  const auto items = items_of(in.budget(), value);
  return items.empty() ? in.undefined("No last item, sequence was empty.") : items.back();
}

Value reverse(Interpreter& in, const Value& value, Arguments&) {
  if (value.is_string()) return slice(in.budget(), value, Value::none(), Value::none(), Value::integer(-1));
  auto items = items_of(in.budget(), value);
  std::ranges::reverse(items);
  if (value.is(Kind::ITERATOR) || value.is_undefined()) return Value::list(in.budget(), std::move(items));
  return Value::iterator(in.budget(), std::move(items));
}

// A number that Python's int or float would read, or none.
std::optional<double> read_float(const std::string& given) {
  std::string text = stripped({given}, true, true).bytes;
  std::erase(text, '_');
  std::string plain = lower({text}).bytes;
  const bool is_negative = plain.starts_with('-');
  if (is_negative || plain.starts_with('+')) plain.erase(0, 1);
  if (plain == "inf" || plain == "infinity") return is_negative ? -HUGE_VAL : HUGE_VAL;
  if (plain == "nan") return std::nan("");
  if (plain.starts_with('.')) plain.insert(0, "0");
  const size_t digit = plain.find_first_not_of('0');
  if (digit != std::string::npos && digit > 0)
    plain.erase(0, plain[digit] == '.' || plain[digit] == 'e' ? digit - 1 : digit);
  if (digit == std::string::npos && plain.size() > 1) plain = "0";
  if (const size_t point = plain.find('.');
      point != std::string::npos && (point + 1 == plain.size() || plain[point + 1] == 'e'))
    plain.insert(point + 1, "0");
  const std::unique_ptr<yyjson_doc, decltype(&yyjson_doc_free)> read(
      yyjson_read(plain.data(), plain.size(), 0), yyjson_doc_free
  );
  const yyjson_val* const root = read == nullptr ? nullptr : yyjson_doc_get_root(read.get());
  if (root == nullptr || !yyjson_is_num(const_cast<yyjson_val*>(root))) return std::nullopt;
  const double value = yyjson_get_num(const_cast<yyjson_val*>(root));
  return is_negative ? -value : value;
}

Value truncated(double value) {
  if (std::isnan(value) || std::isinf(value)) throw TextError("cannot convert float infinity or NaN to integer");
  if (std::abs(value) >= 9.2e18) throw TextError("the chat template computes a number beyond 64 bits");
  return Value::integer(static_cast<int64_t>(value));
}

Value to_integer(Interpreter& in, const Value& value, Arguments& given) {
  const Bound bound("int", given, {"default", "base"});
  const Value standard = bound.has(0) ? bound[0] : Value::integer(0);
  if (value.is_undefined()) throw TextError(value.why());
  if (value.is(Kind::LARGE)) return value;
  if (value.is_integer()) return Value::integer(value.integer());
  if (value.is(Kind::FLOAT))
    return std::isfinite(value.number()) ? truncated(value.number())
           : std::isnan(value.number())  ? standard
                                         : truncated(value.number());
  if (!value.is_string()) return standard;
  std::string digits = stripped(value.text(), true, true).bytes;
  std::erase(digits, '_');
  const size_t sign = digits.starts_with('-') || digits.starts_with('+');
  char* end = nullptr;
  const auto base = static_cast<int>(bound.integer(1, 10));
  if (base != 10 && base != 16 && base != 8 && base != 2)
    throw TextError("the filter 'int' supports bases 2, 8, 10 and 16");
  if (base != 10 && digits.size() > sign + 1 && digits[sign] == '0' &&
      (digits[sign + 1] == 'b' || digits[sign + 1] == 'o'))
    digits.erase(sign, 2);
  errno = 0;
  const long long read = digits.size() > sign && std::isxdigit(static_cast<unsigned char>(digits[sign]))
                             ? std::strtoll(digits.c_str(), &end, base)
                             : 0;
  if (end != nullptr && *end == '\0') {
    if (errno != ERANGE) return Value::integer(read);
    if (base == 10) return Value::large(in.budget(), digits[0] == '+' ? digits.substr(1) : digits);
  }
  const auto as_float = read_float(value.text().bytes);
  if (!as_float || !std::isfinite(*as_float)) return standard;
  return truncated(*as_float);
}

Value to_float(Interpreter&, const Value& value, Arguments& given) {
  const Bound bound("float", given, {"default"});
  if (value.is_undefined()) throw TextError(value.why());
  if (value.is_number()) return Value::number(value.number());
  const auto read = value.is_string() || value.is(Kind::LARGE) ? read_float(value.text().bytes) : std::nullopt;
  return read ? Value::number(*read) : bound.has(0) ? bound[0] : Value::number(0);
}

Value round(Interpreter& in, const Value& value, Arguments& given) {
  const Bound bound("round", given, {"precision", "method"});
  const int64_t precision = bound.integer(0, 0);
  const std::string how = bound.has(1) ? bound.text(1).bytes : "common";
  if (how != "common" && how != "ceil" && how != "floor") throw TextError("method must be common, ceil or floor");
  if (value.is_undefined()) throw TextError(value.why());
  if (!value.is_number()) throw TextError(std::string("type ") + value.type() + " doesn't define __round__ method");
  if (std::abs(precision) > 300) throw TextError("round: too many digits");
  if (how != "common") {
    const double power = std::pow(10.0, static_cast<double>(precision)), scaled = value.number() * power;
    return Value::number((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power);
  }
  if (value.is_integer() && precision >= 0) return Value::integer(value.integer());
  if (precision < 0) throw TextError("round: a negative precision is not supported");
  if (!std::isfinite(value.number()) || std::abs(value.number()) > 1e22) return value;
  const Value digits = in.string(
      percent_format(in.budget(), {"%." + std::to_string(precision) + "f"}, Value::number(value.number()))
  );
  return Value::number(*read_float(digits.text().bytes));
}

Value indent(Interpreter& in, const Value& value, Arguments& given) {
  const Bound bound("indent", given, {"width", "first", "blank"});
  Text by;
  if (bound.has(0) && bound[0].is_string()) by = bound[0].text();
  else by.bytes.assign(static_cast<size_t>(std::clamp<int64_t>(bound.integer(0, 4), 0, 10'000)), ' ');
  if (!value.is_string()) throw TextError(std::string("indent is for texts, not for ") + value.type());
  Text text = value.text(), out;
  text.append("\n");
  if (bound.truth(1, false)) out.append(by);
  for (size_t at = 0; at < text.size();) {
    size_t end = 0;
    const size_t next = next_line(text.bytes, at, end);
    if (at > 0) {
      out.append("\n");
      if (end > at || bound.truth(2, false)) out.append(by);
    }
    out.append(text, at, end);
    in.budget().take(by.size());
    in.budget().give_back(by.size());
    at = next;
  }
  out.is_markup = value.text().is_markup;
  return in.string(std::move(out));
}

Value batch(Interpreter& in, const Value& value, Arguments& given) {
  const Bound bound("batch", given, {"linecount", "fill_with"}, 1);
  const auto size = static_cast<size_t>(std::max<int64_t>(bound.integer(0, 1), 1));
  std::vector<Value> rows;
  const auto items = items_of(in.budget(), value);
  for (size_t begin = 0; begin < items.size(); begin += std::min(size, items.size() - begin)) {
    std::vector<Value> row(
        items.begin() + static_cast<std::ptrdiff_t>(begin),
        items.begin() + static_cast<std::ptrdiff_t>(begin + std::min(size, items.size() - begin))
    );
    if (bound.has(1) && !bound[1].is_none()) {
      if (size > 100'000) throw TextError("batch: too many items");
      row.resize(size, bound[1]);
    }
    rows.push_back(Value::list(in.budget(), std::move(row)));
  }
  return Value::iterator(in.budget(), std::move(rows));
}

Value sum(Interpreter& in, const Value& value, Arguments& given) {
  const Bound bound("sum", given, {"attribute", "start"});
  Value total = bound.has(1) ? bound[1] : Value::integer(0);
  if (total.is_string()) throw TextError("sum() can't sum strings");
  for (const Value& each : items_of(in.budget(), value)) {
    total = arithmetic(
        in.budget(), "+", total, bound.has(0) && !bound[0].is_none() ? by_path(in, each, bound[0]) : each
    );
  }
  return total;
}

Value replace(Interpreter& in, const Value& value, Arguments& given) {
  const Bound bound("replace", given, {"old", "new", "count"}, 2);
  const Text text = to_text(in.budget(), value), old = to_text(in.budget(), bound[0]),
             with = to_text(in.budget(), bound[1]);
  const size_t bytes = text.size() + (text.size() / std::max<size_t>(old.size(), 1) + 1) * with.size();  // at most
  in.budget().spend_search(text.size(), old.size());
  in.budget().take(bytes);
  in.budget().give_back(bytes);
  Text result = replaced(text, old.bytes, with, bound.has(2) && bound[2].is_none() ? -1 : bound.integer(2, -1));
  result.is_markup = false;
  return in.string(std::move(result));
}

Value items(Interpreter& in, const Value& value, Arguments&) {
  if (value.is_undefined()) return Value::iterator(in.budget(), {});
  if (!value.is_dict()) throw TextError("Can only get item pairs from a mapping.");
  std::vector<Value> pairs;
  for (const auto& [key, of] : value.dict().entries) pairs.push_back(Value::tuple(in.budget(), {key, of}));
  return Value::iterator(in.budget(), std::move(pairs));
}

Value absolute(Interpreter&, const Value& value, Arguments&) {
  if (value.is_undefined()) throw TextError(value.why());
  if (!value.is_number()) throw TextError(std::string("bad operand type for abs(): '") + value.type() + "'");
  if (value.is(Kind::FLOAT)) return Value::number(std::abs(value.number()));
  return value.integer() < 0 ? negative(value) : Value::integer(value.integer());
}

Value safe(Interpreter& in, const Value& value, Arguments&) {
  Text text = to_text(in.budget(), value);
  text.is_markup = true;
  return in.string(std::move(text));
}

const std::unordered_map<std::string_view, Filter>& filters() {
  static const std::unordered_map<std::string_view, Filter> all = {
      {"trim",
       [](Interpreter& in, const Value& value, Arguments& given) {
         const Bound bound("trim", given, {"chars"});
         const std::string* characters = !bound.has(0) || bound[0].is_none() ? nullptr : &bound.text(0).bytes;
         return in.string(stripped(to_text(in.budget(), value), true, true, characters));
       }},
      {"tojson",
       [](Interpreter& in, const Value& value, Arguments& given) {
         return in.string(
             to_json(in, value, Bound("tojson", given, {"ensure_ascii", "indent", "separators", "sort_keys"}))
         );
       }},
      {"string",
       [](Interpreter& in, const Value& value, Arguments&) { return in.string(to_text(in.budget(), value)); }},
      {"safe", safe},
      {"escape",
       [](Interpreter& in, const Value& value, Arguments&) {
         const Text text = to_text(in.budget(), value);
         return in.string(text.is_markup ? text : escaped(text));
       }},
      {"upper",
       [](Interpreter& in, const Value& value, Arguments&) { return in.string(upper(to_text(in.budget(), value))); }},
      {"lower",
       [](Interpreter& in, const Value& value, Arguments&) { return in.string(lower(to_text(in.budget(), value))); }},
      {"capitalize", [](Interpreter& in, const Value& value,
                        Arguments&) { return in.string(capitalized(to_text(in.budget(), value))); }},
      {"title",
       [](Interpreter& in, const Value& value, Arguments&) {
         Text text = titled_by_filter(to_text(in.budget(), value));
         text.is_markup = false;
         return in.string(std::move(text));
       }},
      {"default",
       [](Interpreter& in, const Value& value, Arguments& given) {
         const Bound bound("default", given, {"default_value", "boolean"});
         const bool is_missing = value.is_undefined() || (bound.truth(1, false) && !value.truth());
         return !is_missing ? value : bound.has(0) ? bound[0] : in.string({});
       }},
      {"list", [](Interpreter& in, const Value& value,
                  Arguments&) { return Value::list(in.budget(), items_of(in.budget(), value)); }},
      {"format",
       [](Interpreter& in, const Value& value, Arguments& given) {
         if (!given.positional.empty() && !given.named.empty())
           throw TextError("can't handle positional and keyword arguments at the same time");
         Value values = Value::tuple(in.budget(), given.positional);
         if (!given.named.empty()) values = Value::dict(in.budget());
         for (const auto& [name, each] : given.named) values.dict().set(in.string({name}), each);
         return in.string(percent_format(in.budget(), to_text(in.budget(), value), values));
       }},
      {"attr",
       [](Interpreter& in, const Value& value, Arguments& given) {
         const std::string name = Bound("attr", given, {"name"}, 1).text(0).bytes;
         if (value.is_undefined()) throw TextError(value.why());
         const auto found = method(in, value, name);
         return found                       ? *found
                : value.is(Kind::NAMESPACE) ? in.attribute(value, name)
                                            : in.undefined("there is no attribute '" + name + "'");
       }},
      {"select",
       [](Interpreter& in, const Value& value, Arguments& given) { return select(in, value, given, true, false); }},
      {"reject",
       [](Interpreter& in, const Value& value, Arguments& given) { return select(in, value, given, false, false); }},
      {"selectattr",
       [](Interpreter& in, const Value& value, Arguments& given) { return select(in, value, given, true, true); }},
      {"rejectattr",
       [](Interpreter& in, const Value& value, Arguments& given) { return select(in, value, given, false, true); }},
      {"min", [](Interpreter& in, const Value& value, Arguments& given) { return extreme(in, value, given, false); }},
      {"max", [](Interpreter& in, const Value& value, Arguments& given) { return extreme(in, value, given, true); }},
      {"map", map},
      {"join", join},
      {"length", length},
      {"first", first},
      {"last", last},
      {"reverse", reverse},
      {"sort", sort},
      {"dictsort", dictsort},
      {"unique", unique},
      {"int", to_integer},
      {"float", to_float},
      {"round", round},
      {"abs", absolute},
      {"indent", indent},
      {"batch", batch},
      {"sum", sum},
      {"replace", replace},
      {"items", items},
  };
  return all;
}

}  // namespace

Value Interpreter::filter(const std::string& name, const Value& value, Arguments& given) {
  const Budget::Level level(budget_);
  budget_.spend(1 + (value.is_string() ? value.text().size() / 32 : 0));
  const auto found = filters().find(
      name == "count" ? "length"
      : name == "d"   ? "default"
      : name == "e"   ? "escape"
                      : std::string_view(name)
  );
  if (found == filters().end()) throw TextError("No filter named '" + name + "'.");
  return found->second(*this, value, given);
}

}  // namespace hybridge::text::jinja
