// Numbers of JSON between limits, as expressions over their digits.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_DECIMAL_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_DECIMAL_H

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expression.h"

namespace hybridge::text {

// A number in decimal digits: the whole part without zeros before it, the fraction without zeros after it.
struct Decimal {
  bool is_negative = false;
  std::string whole, fraction;

  // Reads a number of JSON, such as -1.5e3. Throws TextError for one with more than 400 digits.
  static Decimal read(std::string_view json);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  std::string written() const;
};

struct Limit {
  Decimal value;
  bool is_least, is_exclusive;
};

// Numbers that keep all limits, are multiples of all steps, and of none of those in `no_steps`, and are none of
// `excluded`. A number without limits may have an exponent.
struct NumberRange {
  bool is_integer = false, is_fraction = false;  // is_fraction: not an integer
  std::vector<Limit> limits = {};
  std::vector<Decimal> steps = {}, no_steps = {}, excluded = {};

  bool is_free() const {
    return !is_integer && !is_fraction && limits.empty() && steps.empty() && no_steps.empty() && excluded.empty();
  }
};

// The numbers, NONE if there are none. Throws TextError for steps with too many digits.
Expression numbers(const NumberRange& range, Expressions& in);

}  // namespace hybridge::text

#endif
