#include "operators.h"

#include <algorithm>
#include <cmath>

#include "../unicode.h"

namespace hybridge::text::jinja {

namespace {

[[noreturn]] void unsupported(std::string_view operation, const Value& a, const Value& b) {
  throw TextError(
      "unsupported operand type(s) for " + std::string(operation) + ": '" + a.type() + "' and '" + b.type() + "'"
  );
}

[[noreturn]] void too_large() { throw TextError("the chat template computes a number beyond 64 bits"); }

void refuse_zero(bool is_zero) {
  if (is_zero) throw TextError("division by zero");
}

Value integer_arithmetic(std::string_view operation, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (operation == "+") overflows = __builtin_add_overflow(a, b, &result);
  else if (operation == "-") overflows = __builtin_sub_overflow(a, b, &result);
  else if (operation == "*") overflows = __builtin_mul_overflow(a, b, &result);
  else if (operation == "**") {
    if (b < 0) {
      refuse_zero(a == 0);
      return Value::number(std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
    result = 1;
    for (int64_t base = a; b > 0 && !overflows; b >>= 1) {
      if (b & 1) overflows = __builtin_mul_overflow(result, base, &result);
      if (b > 1 && !overflows) overflows = __builtin_mul_overflow(base, base, &base);
    }
  } else {
    refuse_zero(b == 0);
    if (operation == "/") return Value::number(static_cast<double>(a) / static_cast<double>(b));
    if (b == -1) {
      if (operation == "%") return Value::integer(0);
      overflows = __builtin_sub_overflow(int64_t(0), a, &result);
    } else {
      const int64_t rest = a % b, shift = rest != 0 && (rest < 0) != (b < 0);
      result = operation == "%" ? rest + shift * b : a / b - shift;
    }
  }
  if (overflows) too_large();
  return Value::integer(result);
}

Value float_arithmetic(std::string_view operation, double a, double b) {
  if (operation == "+") return Value::number(a + b);
  if (operation == "-") return Value::number(a - b);
  if (operation == "*") return Value::number(a * b);
  if (operation == "**") {
    refuse_zero(a == 0 && b < 0);
    const double power = std::pow(a, b);
    if (std::isnan(power) && !std::isnan(a) && !std::isnan(b))
      throw TextError("the chat template computes a complex number");
    if (std::isinf(power) && !std::isinf(a) && !std::isinf(b)) throw TextError("(34, 'Numerical result out of range')");
    return Value::number(power);
  }
  refuse_zero(b == 0);
  if (operation == "/") return Value::number(a / b);
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) {
    rest += b;
    quotient -= 1;
  } else if (rest == 0) {
    rest = std::copysign(0.0, b);
  }
  if (operation == "%") return Value::number(rest);
  if (quotient == 0) return Value::number(std::copysign(0.0, a / b));
  const double whole = std::floor(quotient);
  return Value::number(quotient - whole > 0.5 ? whole + 1 : whole);
}

Value repeated(Budget& budget, const Value& of, int64_t count) {
  const size_t times = count > 0 ? static_cast<size_t>(count) : 0;
  if (of.is_string()) {
    const Text& text = of.text();
    if (times > 0 && text.size() > (size_t(1) << 40) / times)
      throw TextError("the chat template takes too much memory");
    budget.take(text.size() * times);
    budget.give_back(text.size() * times);
    Text result;
    result.is_markup = text.is_markup;
    for (size_t i = 0; i < (text.size() == 0 ? 0 : times); ++i) result.append(text);
    return Value::string(budget, std::move(result));
  }
  const auto& items = of.sequence().items;
  if (times > 0 && items.size() > (size_t(1) << 32) / times) throw TextError("the chat template takes too much memory");
  budget.take(items.size() * times * sizeof(Value));
  budget.give_back(items.size() * times * sizeof(Value));
  std::vector<Value> result;
  for (size_t i = 0; i < (items.empty() ? 0 : times); ++i) result.insert(result.end(), items.begin(), items.end());
  return Value::sequence(budget, of.kind(), std::move(result));
}

Value added(Budget& budget, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    budget.take(a.text().size() + b.text().size());
    budget.give_back(a.text().size() + b.text().size());
    const bool is_markup = a.text().is_markup || b.text().is_markup;
    Text result = is_markup && !a.text().is_markup ? escaped(a.text()) : a.text();
    result.append(is_markup && !b.text().is_markup ? escaped(b.text()) : b.text());
    return Value::string(budget, std::move(result));
  }
  if (a.kind() != b.kind() || (!a.is(Kind::LIST) && !a.is(Kind::TUPLE))) unsupported("+", a, b);
  std::vector<Value> items = a.sequence().items;
  items.insert(items.end(), b.sequence().items.begin(), b.sequence().items.end());
  budget.spend(items.size());
  return Value::sequence(budget, a.kind(), std::move(items));
}

// Where the character with this number begins, of a text with `length` characters.
size_t byte_of(std::string_view text, size_t length, size_t character) {
  if (length == text.size()) return character;
  size_t at = 0;
  while (character-- > 0) at += length_of(text[at]);
  return at;
}

size_t length_of_string(const Value& value) { return static_cast<const StringObject&>(*value.object()).length(); }

}  // namespace

Value arithmetic(Budget& budget, std::string_view operation, const Value& a, const Value& b) {
  budget.spend(1);
  if (a.is_undefined() || (b.is_undefined() && !a.is_string())) throw TextError(a.is_undefined() ? a.why() : b.why());
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return integer_arithmetic(operation, a.integer(), b.integer());
    return float_arithmetic(operation, a.number(), b.number());
  }
  if (operation == "%" && a.is_string()) return Value::string(budget, percent_format(budget, a.text(), b));
  if (b.is_undefined()) throw TextError(b.why());
  if (a.is(Kind::LARGE) || b.is(Kind::LARGE)) too_large();
  if (operation == "+") return added(budget, a, b);
  const auto is_repeatable = [](const Value& each) {
    return each.is_string() || each.is(Kind::LIST) || each.is(Kind::TUPLE);
  };
  if (operation == "*" && is_repeatable(a) && b.is_integer()) return repeated(budget, a, b.integer());
  if (operation == "*" && is_repeatable(b) && a.is_integer()) return repeated(budget, b, a.integer());
  unsupported(operation, a, b);
}

Value negative(const Value& value) {
  if (value.is_undefined()) throw TextError(value.why());
  if (value.is(Kind::FLOAT)) return Value::number(-value.number());
  if (!value.is_integer()) throw TextError(std::string("bad operand type for unary -: '") + value.type() + "'");
  if (value.integer() == INT64_MIN) too_large();
  return Value::integer(-value.integer());
}

bool contains(Budget& budget, const Value& container, const Value& value) {
  if (container.is_string()) {
    if (!value.is_string())
      throw TextError(std::string("'in <string>' requires string as left operand, not ") + value.type());
    budget.spend_search(container.text().size(), value.text().size());
    return container.text().bytes.find(value.text().bytes) != std::string::npos;
  }
  if (container.is_dict()) return container.dict().find(value) != nullptr;
  if (!container.is_sequence() && !container.is_undefined()) {
    throw TextError(std::string("argument of type '") + container.type() + "' is not iterable");
  }
  if (container.is_undefined()) return false;
  auto& sequence = container.sequence();
  for (size_t i = sequence.read; i < sequence.items.size(); ++i) {
    if (container.is(Kind::ITERATOR)) sequence.read = i + 1;
    if (equal(budget, sequence.items[i], value)) return true;
  }
  return false;
}

bool find_item(Budget& budget, const Value& of, const Value& key, Value& found) {
  budget.spend(1);
  if (of.is_undefined()) throw TextError(of.why());
  if (of.is_dict()) {
    if (key.is(Kind::LIST) || key.is_dict()) return false;
    const Value* value = of.dict().find(key);
    if (value != nullptr) found = *value;
    return value != nullptr;
  }
  const bool is_indexed = of.is_string() || of.is(Kind::LIST) || of.is(Kind::TUPLE) || of.is(Kind::RANGE);
  if (!is_indexed || !key.is_integer()) return false;
  const auto length = static_cast<int64_t>(of.is_string() ? length_of_string(of) : of.sequence().items.size());
  const int64_t index = key.integer() < 0 ? key.integer() + length : key.integer();
  if (index < 0 || index >= length) return false;
  if (of.is_string()) {
    const Text& text = of.text();
    budget.spend(static_cast<uint64_t>(index) / 64);
    const size_t begin = byte_of(text.bytes, static_cast<size_t>(length), static_cast<size_t>(index));
    found = Value::string(budget, text.part(begin, begin + length_of(text.bytes[begin])));
  } else {
    found = of.sequence().items[static_cast<size_t>(index)];
  }
  return true;
}

Value slice(Budget& budget, const Value& of, const Value& begin, const Value& end, const Value& step) {
  if (of.is_undefined()) throw TextError(of.why());
  const bool is_indexed = of.is_string() || of.is(Kind::LIST) || of.is(Kind::TUPLE) || of.is(Kind::RANGE);
  if (!is_indexed) throw TextError(std::string("'") + of.type() + "' object cannot be sliced");
  for (const Value* each : {&begin, &end, &step}) {
    if (!each->is_none() && !each->is_integer()) throw TextError("slice indices must be integers or None");
  }
  const auto length = static_cast<int64_t>(of.is_string() ? length_of_string(of) : of.sequence().items.size());
  const int64_t by = step.is_none() ? 1 : step.integer();
  if (by == 0) throw TextError("slice step cannot be zero");
  const int64_t least = by < 0 ? -1 : 0, most = by < 0 ? length - 1 : length;
  const auto place = [&](const Value& given, int64_t standard) {
    if (given.is_none()) return standard;
    int64_t index = given.integer();
    if (index < 0) index = std::max(index + length, least);
    return std::min(std::max(index, least), most);
  };
  const int64_t from = place(begin, by < 0 ? most : 0), to = place(end, by < 0 ? -1 : length);
  budget.spend(static_cast<uint64_t>(length) / 16 + 1);
  if (!of.is_string()) {
    std::vector<Value> items;
    for (int64_t i = from; by > 0 ? i < to : i > to;) {
      items.push_back(of.sequence().items[static_cast<size_t>(i)]);
      if (__builtin_add_overflow(i, by, &i)) break;
    }
    return Value::sequence(budget, of.is(Kind::RANGE) ? Kind::LIST : of.kind(), std::move(items));
  }
  const Text& text = of.text();
  const auto count = static_cast<size_t>(length);
  if (by == 1) {
    if (from >= to) return Value::string(budget, text.part(0, 0));
    const size_t first = byte_of(text.bytes, count, static_cast<size_t>(from));
    return Value::string(budget, text.part(first, byte_of(text.bytes, count, static_cast<size_t>(to))));
  }
  std::vector<size_t> places;
  for (size_t at = 0; at < text.size(); at += length_of(text.bytes[at])) places.push_back(at);
  Text result;
  result.is_markup = text.is_markup;
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    const size_t at = places[static_cast<size_t>(i)];
    result.append(text, at, at + length_of(text.bytes[at]));
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return Value::string(budget, std::move(result));
}

}  // namespace hybridge::text::jinja
