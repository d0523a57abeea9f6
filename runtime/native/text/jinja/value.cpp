#include "value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "../../third_party/yyjson/yyjson.h"
#include "../unicode.h"
#include "loop.h"

namespace hybridge::text::jinja {

namespace {

size_t most_levels(const std::vector<Value>& items) {
  size_t most = 0;
  for (const Value& each : items) most = std::max(most, each.levels());
  return most;
}

// A role as chat templates know them; a template may make a special token of it, such as <|user|>.
bool is_plain_word(std::string_view text) {
  return text.size() <= 32 && std::all_of(text.begin(), text.end(), [](char c) {
           return c == '_' || c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
         });
}

Value string_of(Budget& budget, std::string_view bytes, bool is_input) {
  Text text;
  text.append(bytes, is_input);
  return Value::string(budget, std::move(text));
}

int order(double a, double b) { return a < b ? -1 : a > b ? 1 : 0; }

// Orders integers of which one is beyond 64 bits: by sign, then by the number of digits, then by digits.
int order_large(const Value& a, const Value& b) {
  const auto digits = [](const Value& each) {
    return each.is(Kind::LARGE) ? each.text().bytes : std::to_string(each.integer());
  };
  const std::string left = digits(a), right = digits(b);
  const bool is_negative = left[0] == '-';
  if (is_negative != (right[0] == '-')) return is_negative ? -1 : 1;
  const int size = left.size() == right.size() ? left.compare(right) : left.size() < right.size() ? -1 : 1;
  return is_negative ? -size : size;
}

}  // namespace

Object::Object(Budget& budget, size_t bytes, size_t levels) : budget_(budget), bytes_(bytes + 64), levels_(levels) {
  if (levels > MOST_LEVELS) throw TextError("the chat template nests its values too deeply");
  budget.take(bytes_);
}

void Object::grow(size_t bytes, size_t levels_inside) {
  if (levels_inside >= MOST_LEVELS) throw TextError("the chat template nests its values too deeply");
  budget_.take(bytes);
  bytes_ += bytes;
  levels_ = std::max(levels_, levels_inside + 1);
}

StringObject::StringObject(Budget& budget, Text given)
    : Object(budget, given.size() + given.input.size() * sizeof(Span), 0), text(std::move(given)) {}

size_t StringObject::length() const {
  if (length_ == SIZE_MAX) length_ = count_characters(text.bytes);
  return length_;
}

SequenceObject::SequenceObject(Budget& budget, std::vector<Value> given, std::string name)
    : Object(budget, given.size() * sizeof(Value), 1 + most_levels(given)),
      items(std::move(given)),
      label(std::move(name)) {}

FunctionObject::FunctionObject(Budget& budget, std::string given, size_t levels, Function what)
    : Object(budget, 64, levels + 1), name(std::move(given)), call(std::move(what)) {}

DictObject::DictObject(Budget& budget) : Object(budget, 64, 1) {}

template <typename Equal>
const Value* DictObject::find(size_t hash, Equal&& equal) const {
  if (places_.empty()) {
    const auto found = std::ranges::find_if(entries, equal, &std::pair<Value, Value>::first);
    return found == entries.end() ? nullptr : &found->second;
  }
  for (auto [at, end] = places_.equal_range(hash); at != end; ++at) {
    if (equal(entries[at->second].first)) return &entries[at->second].second;
  }
  return nullptr;
}

const Value* DictObject::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.text().bytes));
  return find(hash(budget_, key), [&](const Value& each) { return equal(budget_, each, key); });
}

const Value* DictObject::find(std::string_view key) const {
  budget_.spend(1 + key.size() / 64);
  return find(places_.empty() ? 0 : std::hash<std::string_view>()(key), [&](const Value& each) {
    return each.is_string() && each.text().bytes == key;
  });
}

void DictObject::set(Value key, Value value) {
  if (const Value* known = find(key)) {
    grow(0, value.levels());
    *const_cast<Value*>(known) = std::move(value);
    return;
  }
  grow(2 * sizeof(Value) + 48, std::max(key.levels(), value.levels()));
  const size_t place = entries.size();
  entries.emplace_back(std::move(key), std::move(value));
  constexpr size_t FEW = 8;  // which are compared one by one
  for (size_t i = place == FEW ? 0 : place; place >= FEW && i <= place; ++i)
    places_.emplace(hash(budget_, entries[i].first), i);
}

Value Value::boolean(bool value) {
  Value result(Kind::BOOLEAN);
  result.integer_ = value;
  return result;
}

Value Value::integer(int64_t value) {
  Value result(Kind::INTEGER);
  result.integer_ = value;
  return result;
}

Value Value::number(double value) {
  Value result(Kind::FLOAT);
  result.number_ = value;
  return result;
}

Value Value::large(Budget& budget, std::string digits) {
  return {Kind::LARGE, std::make_shared<StringObject>(budget, Text{std::move(digits)})};
}

Value Value::string(Budget& budget, Text text) {
  return {Kind::STRING, std::make_shared<StringObject>(budget, std::move(text))};
}

Value Value::undefined(Budget& budget, std::string why) {
  return {Kind::UNDEFINED, std::make_shared<StringObject>(budget, Text{std::move(why)})};
}

Value Value::sequence(Budget& budget, Kind kind, std::vector<Value> items, std::string label) {
  return {kind, std::make_shared<SequenceObject>(budget, std::move(items), std::move(label))};
}

Value Value::dict(Budget& budget) { return {Kind::DICT, std::make_shared<DictObject>(budget)}; }

Value Value::named(Budget& budget) { return {Kind::NAMESPACE, std::make_shared<DictObject>(budget)}; }

Value Value::function(Budget& budget, std::string name, size_t levels, Function call) {
  return {Kind::FUNCTION, std::make_shared<FunctionObject>(budget, std::move(name), levels, std::move(call))};
}

Value Value::loop(std::shared_ptr<LoopObject> loop) { return {Kind::LOOP, std::move(loop)}; }

Value Value::from_json(Budget& budget, yyjson_val* json, bool is_input) {
  const auto view = [](yyjson_val* each) { return std::string_view(yyjson_get_str(each), yyjson_get_len(each)); };
  size_t place, count;
  switch (yyjson_get_type(json)) {
    case YYJSON_TYPE_BOOL: return boolean(yyjson_get_bool(json));
    case YYJSON_TYPE_STR: return string_of(budget, view(json), is_input);
    case YYJSON_TYPE_RAW: {  // a number
      const std::string_view raw(yyjson_get_raw(json), yyjson_get_len(json));
      if (raw.find_first_of(".eE") == std::string_view::npos) return large(budget, std::string(raw));
      return number(raw[0] == '-' ? -HUGE_VAL : HUGE_VAL);
    }
    case YYJSON_TYPE_NUM:
      if (yyjson_is_real(json)) return number(yyjson_get_real(json));
      if (yyjson_is_sint(json)) return integer(yyjson_get_sint(json));
      if (yyjson_get_uint(json) > INT64_MAX) return large(budget, std::to_string(yyjson_get_uint(json)));
      return integer(static_cast<int64_t>(yyjson_get_uint(json)));
    case YYJSON_TYPE_ARR: {
      std::vector<Value> items;
      items.reserve(yyjson_arr_size(json));
      yyjson_val* each;
      yyjson_arr_foreach(json, place, count, each) items.push_back(from_json(budget, each, is_input));
      return list(budget, std::move(items));
    }
    case YYJSON_TYPE_OBJ: {
      Value result = dict(budget);
      yyjson_val *key, *each;
      yyjson_obj_foreach(json, place, count, key, each) {
        const bool is_role = view(key) == "role" && yyjson_is_str(each) && is_plain_word(view(each));
        result.dict().set(string_of(budget, view(key), is_input), from_json(budget, each, is_input && !is_role));
      }
      return result;
    }
    default: return none();
  }
}

bool Value::truth() const {
  switch (kind_) {
    case Kind::UNDEFINED:
    case Kind::NONE: return false;
    case Kind::BOOLEAN:
    case Kind::INTEGER: return integer_ != 0;
    case Kind::FLOAT: return number_ != 0;
    case Kind::STRING: return text().size() > 0;
    case Kind::LIST:
    case Kind::TUPLE:
    case Kind::VIEW:
    case Kind::RANGE: return !sequence().items.empty();
    case Kind::DICT: return dict().size() > 0;
    default: return true;
  }
}

const Text& Value::text() const { return static_cast<const StringObject&>(*object_).text; }
std::string Value::why() const { return object_ == nullptr ? "a value is undefined" : text().bytes; }
SequenceObject& Value::sequence() const { return static_cast<SequenceObject&>(*object_); }
DictObject& Value::dict() const { return static_cast<DictObject&>(*object_); }
FunctionObject& Value::function() const { return static_cast<FunctionObject&>(*object_); }
LoopObject& Value::loop() const { return static_cast<LoopObject&>(*object_); }

const char* Value::type() const {
  switch (kind_) {
    case Kind::UNDEFINED: return "Undefined";
    case Kind::NONE: return "NoneType";
    case Kind::BOOLEAN: return "bool";
    case Kind::INTEGER:
    case Kind::LARGE: return "int";
    case Kind::FLOAT: return "float";
    case Kind::STRING: return text().is_markup ? "Markup" : "str";
    case Kind::LIST: return "list";
    case Kind::TUPLE: return "tuple";
    case Kind::ITERATOR: return "generator";
    case Kind::VIEW: return sequence().label.c_str();
    case Kind::RANGE: return "range";
    case Kind::DICT: return "dict";
    case Kind::NAMESPACE: return "Namespace";
    case Kind::FUNCTION: return "function";
    case Kind::LOOP: return "LoopContext";
  }
  return "";
}

bool equal(Budget& budget, const Value& a, const Value& b) {
  const Budget::Level level(budget);
  budget.spend(1);
  if (a.is_number() && b.is_number()) {
    return a.is(Kind::FLOAT) || b.is(Kind::FLOAT) ? a.number() == b.number() : a.integer() == b.integer();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::UNDEFINED:
    case Kind::NONE: return true;
    case Kind::LARGE:
    case Kind::STRING:
      if (a.text().size() != b.text().size()) return false;
      budget.spend(a.text().size() / 64);
      return a.text().bytes == b.text().bytes;
    case Kind::LIST:
    case Kind::TUPLE:
    case Kind::RANGE: {
      const auto &left = a.sequence().items, &right = b.sequence().items;
      return std::equal(left.begin(), left.end(), right.begin(), right.end(), [&](const Value& x, const Value& y) {
        return equal(budget, x, y);
      });
    }
    case Kind::DICT: {
      if (a.dict().size() != b.dict().size()) return false;
      return std::all_of(a.dict().entries.begin(), a.dict().entries.end(), [&](const auto& each) {
        const Value* other = b.dict().find(each.first);
        return other != nullptr && equal(budget, each.second, *other);
      });
    }
    default: return a.identity() == b.identity();
  }
}

int compare(Budget& budget, const Value& a, const Value& b) {
  const Budget::Level level(budget);
  budget.spend(1);
  if (a.is_number() && b.is_number()) {
    if (a.is(Kind::FLOAT) || b.is(Kind::FLOAT)) return order(a.number(), b.number());
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  }
  const bool are_integers = (a.is_integer() || a.is(Kind::LARGE)) && (b.is_integer() || b.is(Kind::LARGE));
  if (are_integers) return order_large(a, b);
  if (a.is_string() && b.is_string()) budget.spend(std::min(a.text().size(), b.text().size()) / 64);
  if (a.is_string() && b.is_string()) return a.text().bytes.compare(b.text().bytes);
  if (a.kind() == b.kind() && (a.is(Kind::LIST) || a.is(Kind::TUPLE))) {
    const auto &left = a.sequence().items, &right = b.sequence().items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(budget, left[i], right[i])) return compare(budget, left[i], right[i]);
    }
    return left.size() < right.size() ? -1 : left.size() > right.size();
  }
  if (a.is_undefined() || b.is_undefined()) throw TextError(a.is_undefined() ? a.why() : b.why());
  throw TextError(std::string("'<' not supported between instances of '") + a.type() + "' and '" + b.type() + "'");
}

size_t hash(Budget& budget, const Value& value) {
  const Budget::Level level(budget);
  budget.spend(1);
  switch (value.kind()) {
    case Kind::UNDEFINED:
    case Kind::NONE: return static_cast<size_t>(value.kind()) + 0x9E37;
    case Kind::LARGE:
    case Kind::STRING: budget.spend(value.text().size() / 64); return std::hash<std::string_view>()(value.text().bytes);
    case Kind::BOOLEAN:
    case Kind::INTEGER: return std::hash<double>()(static_cast<double>(value.integer()));
    case Kind::FLOAT: return std::hash<double>()(value.number());
    case Kind::TUPLE: {
      size_t all = 0x345678;
      for (const Value& each : value.sequence().items) all = all * 1000003 ^ hash(budget, each);
      return all;
    }
    case Kind::LIST:
    case Kind::DICT:
    case Kind::VIEW: throw TextError(std::string("unhashable type: '") + value.type() + "'");
    default: return std::hash<const void*>()(value.identity());
  }
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  yyjson_val number{};
  yyjson_set_real(&number, value);
  size_t size = 0;
  const std::unique_ptr<char, decltype(&std::free)> json(
      yyjson_val_write(&number, YYJSON_WRITE_NOFLAG, &size), std::free
  );
  if (json == nullptr) throw TextError("a number cannot be written");
  const char* const end = json.get() + size;
  // The shortest digits; Python writes an exponent below -4 and from 16 on.
  std::string digits, sign;
  int exponent = 0;
  bool has_point = false;
  for (const char* at = json.get(); at != end; ++at) {
    if (*at == '-') sign = "-";
    else if (*at == '.') has_point = true;
    else if (*at == 'e' || *at == 'E') {
      int written = 0;
      std::from_chars(at + (at[1] == '+' ? 2 : 1), end, written);
      exponent += written;
      break;
    } else {
      digits += *at;
      exponent -= has_point;
    }
  }
  const size_t zeros = std::min(digits.find_first_not_of('0'), digits.size() - 1);
  digits.erase(0, zeros);
  while (digits.size() > 1 && digits.back() == '0') {
    digits.pop_back();
    ++exponent;
  }
  if (digits == "0") return sign + "0.0";
  const int point = static_cast<int>(digits.size()) + exponent;  // digits before it
  if (point < -3 || point > 16) {
    std::string text = sign + digits.substr(0, 1);
    if (digits.size() > 1) text += "." + digits.substr(1);
    const int power = point - 1;
    return text + (power < 0 ? "e-" : "e+") + (std::abs(power) < 10 ? "0" : "") + std::to_string(std::abs(power));
  }
  if (point <= 0) return sign + "0." + std::string(static_cast<size_t>(-point), '0') + digits;
  if (exponent >= 0) return sign + digits + std::string(static_cast<size_t>(exponent), '0') + ".0";
  return sign + digits.substr(0, static_cast<size_t>(point)) + "." + digits.substr(static_cast<size_t>(point));
}

void write_repr(Budget& budget, const Value& value, Text& out) {
  const Budget::Level level(budget);
  budget.spend(1);
  const auto write_all = [&](const std::vector<Value>& items) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out.append(", ");
      write_repr(budget, items[i], out);
    }
  };
  const auto write_dict = [&](const DictObject& dict) {
    out.append("{");
    for (size_t i = 0; i < dict.size(); ++i) {
      if (i > 0) out.append(", ");
      write_repr(budget, dict.entries[i].first, out);
      out.append(": ");
      write_repr(budget, dict.entries[i].second, out);
    }
    out.append("}");
  };
  switch (value.kind()) {
    case Kind::UNDEFINED: out.append("Undefined"); break;
    case Kind::NONE: out.append("None"); break;
    case Kind::BOOLEAN: out.append(value.integer() != 0 ? "True" : "False"); break;
    case Kind::INTEGER: out.append(std::to_string(value.integer())); break;
    case Kind::LARGE: out.append(value.text()); break;
    case Kind::FLOAT: out.append(float_text(value.number())); break;
    case Kind::STRING:
      budget.spend(value.text().size() / 16);
      if (value.text().is_markup) out.append("Markup(");
      out.append(quoted(value.text()));
      if (value.text().is_markup) out.append(")");
      break;
    case Kind::LIST:
      out.append("[");
      write_all(value.sequence().items);
      out.append("]");
      break;
    case Kind::TUPLE:
      out.append("(");
      write_all(value.sequence().items);
      out.append(value.sequence().items.size() == 1 ? ",)" : ")");
      break;
    case Kind::VIEW:
      out.append(value.sequence().label + "([");
      write_all(value.sequence().items);
      out.append("])");
      break;
    case Kind::RANGE: out.append(value.sequence().label); break;
    case Kind::DICT: write_dict(value.dict()); break;
    case Kind::NAMESPACE:
      out.append("<Namespace ");
      write_dict(value.dict());
      out.append(">");
      break;
    case Kind::LOOP:
      out.append(
          "<LoopContext " + std::to_string(value.loop().index0 + 1) + "/" + std::to_string(value.loop().length()) + ">"
      );
      break;
    case Kind::ITERATOR:
    case Kind::FUNCTION: throw TextError(std::string("a ") + value.type() + " has no text of its own");
  }
  if (out.size() > (size_t(1) << 16)) budget.spend(1 + out.size() / 4096);
}

Text to_text(Budget& budget, const Value& value) {
  if (value.is_string()) return value.text();
  Text out;
  if (!value.is_undefined()) write_repr(budget, value, out);
  return out;
}

std::vector<Value> items_of(Budget& budget, const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::UNDEFINED: break;
    case Kind::STRING: {
      const Text& text = value.text();
      budget.take(text.size());
      for (size_t at = 0; at < text.size();) {
        const size_t end = at + length_of(text.bytes[at]);
        items.push_back(Value::string(budget, text.part(at, end)));
        at = end;
      }
      budget.give_back(text.size());
      break;
    }
    case Kind::LIST:
    case Kind::TUPLE:
    case Kind::VIEW:
    case Kind::RANGE: items = value.sequence().items; break;
    case Kind::ITERATOR: {
      auto& sequence = value.sequence();
      items.assign(sequence.items.begin() + static_cast<std::ptrdiff_t>(sequence.read), sequence.items.end());
      sequence.read = sequence.items.size();
      break;
    }
    case Kind::DICT:
      for (const auto& [key, of] : value.dict().entries) items.push_back(key);
      break;
    default: throw TextError(std::string("'") + value.type() + "' object is not iterable");
  }
  budget.spend(items.size());
  return items;
}

}  // namespace hybridge::text::jinja
