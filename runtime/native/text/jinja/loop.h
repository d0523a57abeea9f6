// The variable `loop`, and the items that it counts.
#ifndef HYBRIDGE_NATIVE_TEXT_JINJA_LOOP_H
#define HYBRIDGE_NATIVE_TEXT_JINJA_LOOP_H

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "value.h"

namespace hybridge::text::jinja {

// Items are asked for one by one, because a loop's filter may see what the block did before.
struct LoopObject final : Object {
  using Accepts = std::function<bool(const Value&)>;

  // accepts: the loop's filter; none takes all.
  LoopObject(Budget& budget, std::vector<Value> given, size_t levels, Accepts filter)
      : Object(budget, given.size() * sizeof(Value), levels), items(std::move(given)), accepts(std::move(filter)) {}

  // Goes to the next item; false at the end.
  bool advance() {
    const bool had = peek();
    if (!had) return false;
    previous = std::exchange(current, *std::exchange(after, std::nullopt));
    ++index0;
    return true;
  }

  // Finds the item after this one, if there is one.
  bool peek() {
    while (!after && next < items.size()) {
      budget_.spend(1);
      const Value& each = items[next++];
      if (!accepts || accepts(each)) after = each;
    }
    return after.has_value();
  }

  // Of all items that pass the filter, which is asked for the rest.
  size_t length() {
    if (!accepts) return items.size();
    std::vector<Value> rest;
    while (peek()) rest.push_back(*std::exchange(after, std::nullopt));
    const size_t all = static_cast<size_t>(index0 + 1) + rest.size();
    items.assign(static_cast<size_t>(index0 + 1), Value());
    items.insert(items.end(), rest.begin(), rest.end());
    next = static_cast<size_t>(index0 + 1);
    accepts = nullptr;
    return all;
  }

  std::vector<Value> items;
  Accepts accepts;
  size_t next = 0;
  int64_t index0 = -1;
  Value previous, current;
  std::optional<Value> after;
  std::optional<std::vector<Value>> changed;  // of loop.changed
};

}  // namespace hybridge::text::jinja

#endif
