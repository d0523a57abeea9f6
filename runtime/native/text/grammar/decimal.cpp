#include "decimal.h"

#include <algorithm>
#include <charconv>

#include "../error.h"

namespace hybridge::text {
namespace {

constexpr int MOST_DIGITS = 400;

class Digits {
 public:
  Digits(bool is_integer, Expressions& in) : in_(in), any_(in.byte('0', '9')), point_(in.literal(".")) {
    if (!is_integer) fraction_ = in.optional(in.concat(point_, more(1)));
  }

  // Numbers without a sign that are at least, or at most, a value.
  Expression at_least(const Decimal& value, bool is_exclusive) const {
    const auto size = static_cast<uint32_t>(value.whole.size());
    const Expression longer = in_.concat(
        in_.byte('1', '9'), in_.concat(exactly(size - 1), in_.concat(more(1), fraction_))
    );
    std::vector<Expression> rest;  // of the fraction
    if (is_integer()) {
      if (value.fraction.empty() && !is_exclusive) rest.push_back(Expressions::EMPTY);
    } else if (value.fraction.empty()) {
      rest.push_back(is_exclusive ? in_.concat(point_, not_zero()) : fraction_);
    } else {
      rest.push_back(in_.concat(point_, compared(value.fraction, true, is_exclusive ? not_zero() : more(0))));
    }
    return in_.either(longer, same_length(value.whole, true, in_.either(rest)));
  }

  Expression at_most(const Decimal& value, bool is_exclusive) const {
    const auto size = static_cast<uint32_t>(value.whole.size());
    std::vector<Expression> choices;
    if (size > 1) {
      const Expression shorter = in_.either(
          in_.literal("0"), in_.concat(in_.byte('1', '9'), in_.repeat(any_, 0, size - 2))
      );
      choices.push_back(in_.concat(shorter, fraction_));
    }
    Expression rest = Expressions::NONE;
    if (value.fraction.empty()) {
      if (!is_exclusive)
        rest = is_integer() ? Expressions::EMPTY
                            : in_.optional(in_.concat(point_, in_.repeat(in_.literal("0"), 1, Expressions::UNLIMITED)));
    } else if (is_integer()) {
      rest = Expressions::EMPTY;
    } else {
      rest = in_.optional(
          in_.concat(point_, compared(value.fraction, false, is_exclusive ? Expressions::NONE : Expressions::EMPTY))
      );
    }
    choices.push_back(same_length(value.whole, false, rest));
    return in_.either(std::move(choices));
  }

  Expression all() const { return in_.concat(whole(), fraction_); }

  // Numbers that are not integers, without zeros at their end.
  Expression fractions() const {
    return in_.concat(whole(), in_.concat(point_, in_.concat(more(0), in_.byte('1', '9'))));
  }

  // Numbers without zeros after their point: each can be written in one way alone.
  Expression shortest() const { return in_.either(whole(), fractions()); }

  // Numbers that are not 0, if they are numbers.
  Expression not_zero_number() const {
    const Expression mark = in_.either(any_, point_);
    const Expression before = in_.repeat(mark, 0, Expressions::UNLIMITED);
    return in_.concat(before, in_.concat(in_.byte('1', '9'), before));
  }

 private:
  bool is_integer() const { return fraction_ == Expressions::EMPTY; }
  Expression whole() const { return in_.either(in_.literal("0"), in_.concat(in_.byte('1', '9'), more(0))); }
  Expression exactly(uint32_t count) const { return in_.repeat(any_, count, count); }
  Expression more(uint32_t least) const { return in_.repeat(any_, least, Expressions::UNLIMITED); }
  Expression not_zero() const { return in_.concat(more(0), in_.concat(in_.byte('1', '9'), more(0))); }

  // The digits above, or below, one; NONE without any.
  Expression beyond(char digit, bool above, char lowest) const {
    const char first = above ? static_cast<char>(digit + 1) : lowest, last = above ? '9' : static_cast<char>(digit - 1);
    return first > last ? Expressions::NONE : in_.byte(static_cast<uint8_t>(first), static_cast<uint8_t>(last));
  }

  // Whole parts of as many digits that are above, or below, with any fraction; or are the same, with `rest` after
  // them.
  Expression same_length(std::string_view whole, bool above, Expression rest) const {
    for (size_t place = whole.size(); place > 0; place--) {
      const char digit = whole[place - 1];
      const char lowest = place == 1 && whole.size() > 1 ? '1' : '0';
      const auto left = static_cast<uint32_t>(whole.size() - place);
      const Expression other = in_.concat(beyond(digit, above, lowest), in_.concat(exactly(left), fraction_));
      rest = in_.either(in_.concat(in_.literal({&digit, 1}), rest), other);
    }
    return rest;
  }

  // Fractions that are above, or below, with any digits after; or have the same digits, with `rest` after them.
  Expression compared(std::string_view fraction, bool above, Expression rest) const {
    for (size_t place = fraction.size(); place > 0; place--) {
      const char digit = fraction[place - 1];
      rest = in_.either(in_.concat(in_.literal({&digit, 1}), rest), in_.concat(beyond(digit, above, '0'), more(0)));
      if (!above && place > 1) rest = in_.optional(rest);  // the number ends early, and is less
    }
    return rest;
  }

  Expressions& in_;
  const Expression any_, point_;
  Expression fraction_ = Expressions::EMPTY;
};

}  // namespace

Decimal Decimal::read(std::string_view json) {
  Decimal number;
  number.is_negative = json.starts_with('-');
  json.remove_prefix(number.is_negative);
  const size_t mark = std::min(json.find_first_of("eE"), json.size());
  int exponent = 0;
  if (mark < json.size()) {
    const std::string_view text = json.substr(mark + 1 + (json[mark + 1] == '+'));
    std::from_chars(text.data(), text.data() + text.size(), exponent);
  }
  const std::string_view digits = json.substr(0, mark);
  const size_t point = std::min(digits.find('.'), digits.size());
  std::string all(digits.substr(0, point));
  if (point < digits.size()) all += digits.substr(point + 1);
  const int places = static_cast<int>(point) + exponent;  // digits of the whole part
  if (places > MOST_DIGITS || places < -MOST_DIGITS) throw TextError("a number has more than 400 digits");
  if (places < 0) all.insert(0, static_cast<size_t>(-places), '0');
  if (places > static_cast<int>(all.size())) all.append(static_cast<size_t>(places) - all.size(), '0');
  const auto whole_size = static_cast<size_t>(std::max(places, 0));
  number.whole = all.substr(0, whole_size);
  number.fraction = all.substr(whole_size);
  number.whole.erase(0, std::min(number.whole.find_first_not_of('0'), number.whole.size()));
  if (number.whole.empty()) number.whole = "0";
  number.fraction.erase(number.fraction.find_last_not_of('0') + 1);
  return number;
}

std::string Decimal::written() const {
  return (is_negative && !is_zero() ? "-" : "") + whole + (fraction.empty() ? "" : "." + fraction);
}

Expression numbers(const NumberRange& range, Expressions& in) {
  if (range.is_integer && range.is_fraction) return Expressions::NONE;
  const Digits digits(range.is_integer, in);
  const bool has_no_limits = range.limits.empty() && range.steps.empty() && range.no_steps.empty() &&
                             range.excluded.empty();
  if (has_no_limits && !range.is_fraction) {
    const Expression sign = in.optional(in.literal("-"));
    if (range.is_integer) return in.concat(sign, digits.all());
    ByteSet letter('e', 'e'), plus_or_minus('+', '+');
    letter.add('E', 'E');
    plus_or_minus.add('-', '-');
    const Expression power = in.concat(
        in.optional(in.bytes(plus_or_minus)), in.repeat(in.byte('0', '9'), 1, Expressions::UNLIMITED)
    );
    return in.concat(sign, in.concat(digits.all(), in.optional(in.concat(in.bytes(letter), power))));
  }
  std::vector<Expression> above = {digits.all()}, below = {digits.all()};  // 0, without their sign
  bool is_above = true, is_below = true, has_least = false, has_most = false;
  for (const Limit& limit : range.limits) {
    const bool is_negative = limit.value.is_negative && !limit.value.is_zero();
    (limit.is_least ? has_least : has_most) = true;
    if (limit.is_least) {
      if (!is_negative) above.push_back(digits.at_least(limit.value, limit.is_exclusive));
      if (is_negative) below.push_back(digits.at_most(limit.value, limit.is_exclusive));
      else is_below = false;
    } else {
      if (!is_negative) above.push_back(digits.at_most(limit.value, limit.is_exclusive));
      if (is_negative) below.push_back(digits.at_least(limit.value, limit.is_exclusive));
      is_above = is_above && !is_negative;
    }
  }
  const auto multiple_of = [&](const Decimal& step) {
    const std::string text = step.whole + step.fraction;
    uint32_t coefficient = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), coefficient);
    if (error != std::errc() || end != text.data() + text.size() || coefficient == 0) {
      throw TextError("\"multipleOf\" is not a number above 0 with at most nine digits");
    }
    return in.multiple_of(coefficient, static_cast<uint32_t>(step.fraction.size()));
  };
  const auto add = [&](Expression each) {
    above.push_back(each);
    below.push_back(each);
  };
  for (const Decimal& step : range.steps) add(multiple_of(step));
  for (const Decimal& step : range.no_steps) add(in.complement(multiple_of(step)));
  for (const Decimal& each : range.excluded) {
    const Expression other = in.complement(in.literal(each.whole + (each.fraction.empty() ? "" : "." + each.fraction)));
    if (!each.is_negative || each.is_zero()) above.push_back(other);
    if (each.is_negative || each.is_zero()) below.push_back(other);
  }
  if (range.is_fraction) add(digits.fractions());
  else if (!range.is_integer && !(range.no_steps.empty() && range.excluded.empty())) add(digits.shortest());
  // There is no -0, but among integers that have limits on both sides of 0, as in Python.
  if (!(range.is_integer && has_least && has_most)) below.push_back(digits.not_zero_number());
  const Expression one = is_above ? in.both(std::move(above)) : Expressions::NONE;
  const Expression other = is_below ? in.both(std::move(below)) : Expressions::NONE;
  return in.either(
      in.is_alive(one) ? one : Expressions::NONE,
      in.is_alive(other) ? in.concat(in.literal("-"), other) : Expressions::NONE
  );
}

}  // namespace hybridge::text
