#include "expression.h"

#include <algorithm>

#include "../error.h"

namespace hybridge::text {
namespace {

constexpr size_t MOST_NODES = size_t(1) << 21;     // 48 MB with their table
constexpr size_t MOST_STEPS = size_t(1) << 24;     // of one call: less than a second
constexpr size_t MOST_SEARCHED = size_t(1) << 17;  // derivatives that one search for a text may take
constexpr size_t MOST_SEARCHED_WIDE = size_t(1) << 12;
constexpr size_t MOST_SETS = size_t(1) << 14;
constexpr uint16_t HIGHEST = 250;  // calls of `derive` inside each other

[[noreturn]] void refuse() {
  throw TextError("it is too complex; write less of it, with smaller counts and fewer choices");
}

}  // namespace

Expressions::Expressions() : table_(64, NONE) {
  nodes_.push_back({Kind::NONE, 0, 0, 0, 0});
  nodes_.push_back({Kind::EMPTY, NULLABLE, 0, 0, 0});
}

bool Expressions::is_same(const Node& one, const Node& other, std::span<const Expression> list) const {
  if (one.kind != other.kind) return false;
  if (one.kind == Kind::EITHER || one.kind == Kind::BOTH) return std::ranges::equal(this->list(one), list);
  return one.a == other.a && one.b == other.b && one.c == other.c;
}

uint64_t Expressions::hash(const Node& node, std::span<const Expression> list) const {
  uint64_t hash = static_cast<uint64_t>(node.kind);
  const auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  };
  if (node.kind == Kind::EITHER || node.kind == Kind::BOTH) {
    for (const Expression each : list) mix(each);
  } else {
    mix(static_cast<uint64_t>(node.a) << 32 | node.b);
    mix(node.c);
  }
  return hash;
}

void Expressions::grow() {
  table_.assign(table_.size() * 2, NONE);
  for (Expression each = EMPTY + 1; each < nodes_.size(); each++) {
    const Node& node = nodes_[each];
    const bool has_list = node.kind == Kind::EITHER || node.kind == Kind::BOTH;
    size_t place = hash(node, has_list ? list(node) : std::span<const Expression>()) & (table_.size() - 1);
    while (table_[place] != NONE) place = (place + 1) & (table_.size() - 1);
    table_[place] = each;
  }
}

// Returns the number of an expression, which is added if it is new. list: of EITHER and BOTH, outside of lists_.
Expression Expressions::add(Node node, std::span<const Expression> list) {
  if (nodes_.size() * 2 > table_.size()) grow();
  size_t place = hash(node, list) & (table_.size() - 1);
  while (table_[place] != NONE) {
    if (is_same(nodes_[table_[place]], node, list)) return table_[place];
    place = (place + 1) & (table_.size() - 1);
  }
  if (nodes_.size() >= MOST_NODES || lists_.size() + list.size() > 2 * MOST_NODES) refuse();
  if (!list.empty()) {
    node.a = static_cast<uint32_t>(lists_.size());
    node.b = static_cast<uint32_t>(list.size());
    lists_.insert(lists_.end(), list.begin(), list.end());
  }
  table_[place] = static_cast<Expression>(nodes_.size());
  nodes_.push_back(node);
  return table_[place];
}

Expression Expressions::bytes(const ByteSet& set) {
  if (set.is_empty()) return NONE;
  const auto [found, is_new] = places_.try_emplace(set, static_cast<uint32_t>(sets_.size()));
  if (is_new) {
    if (sets_.size() >= MOST_SETS) refuse();
    sets_.push_back(set);
    split_classes(set);
  }
  return add({Kind::BYTES, 0, found->second, 0, 0});
}

void Expressions::split_classes(const ByteSet& by) {
  std::array<int, 512> renamed;  // by class, and whether the set has it
  renamed.fill(-1);
  std::vector<uint8_t> bytes;
  for (size_t byte = 0; byte < 256; byte++) {
    int& name = renamed[classes_.of[byte] * size_t(2) + by.has(static_cast<uint8_t>(byte))];
    if (name < 0) {
      name = static_cast<int>(bytes.size());
      bytes.push_back(static_cast<uint8_t>(byte));
    }
    classes_.of[byte] = static_cast<uint8_t>(name);
  }
  classes_.bytes = std::move(bytes);
}

Expression Expressions::literal(std::string_view text) {
  Expression all = EMPTY;
  for (size_t place = text.size(); place > 0; place--) {
    const auto each = static_cast<uint8_t>(text[place - 1]);
    all = concat(byte(each, each), all);
  }
  return all;
}

Expression Expressions::concat(Expression first, Expression second) {
  if (first == NONE || second == NONE) return NONE;
  if (first == EMPTY) return second;
  if (second == EMPTY) return first;
  const auto put_before = [&](Expression part) {
    const uint8_t one = nodes_[part].flags, other = nodes_[second].flags;
    const auto flags = static_cast<uint8_t>((one & other & NULLABLE) | ((one | other) & MAY_BE_DEAD));
    second = add({Kind::CONCAT, flags, part, second, 0});
  };
  if (nodes_[first].kind ==
      Kind::CONCAT) {  // whose parts are put there one by one: the first part of none is one itself
    std::vector<Expression> parts;
    for (; nodes_[first].kind == Kind::CONCAT; first = nodes_[first].b) parts.push_back(nodes_[first].a);
    put_before(first);
    for (; !parts.empty(); parts.pop_back()) put_before(parts.back());
  } else {
    put_before(first);
  }
  return second;
}

Expression Expressions::concat(std::span<const Expression> parts) {
  Expression all = EMPTY;
  for (size_t place = parts.size(); place > 0; place--) all = concat(parts[place - 1], all);
  return all;
}

// Replaces parts that are of the same kind by their own, and sorts them; each is there once.
void Expressions::flatten(std::vector<Expression>& parts, Kind kind) const {
  for (size_t place = parts.size(); place > 0; place--) {
    const Node& node = nodes_[parts[place - 1]];
    if (node.kind != kind) continue;
    const auto inner = list(node);
    parts[place - 1] = inner[0];
    parts.insert(parts.end(), inner.begin() + 1, inner.end());
  }
  std::ranges::sort(parts);
  const auto rest = std::ranges::unique(parts);
  parts.erase(rest.begin(), rest.end());
}

Expression Expressions::either(std::vector<Expression> choices) {
  flatten(choices, Kind::EITHER);
  ByteSet set;
  uint8_t flags = 0;
  size_t sets = 0;
  for (const Expression each : choices) {
    flags = static_cast<uint8_t>(flags | (nodes_[each].flags & (NULLABLE | MAY_BE_DEAD)));
    if (nodes_[each].kind == Kind::BYTES) set |= sets_[nodes_[each].a], sets++;
  }
  if (sets > 1) {
    std::erase_if(choices, [&](Expression each) { return nodes_[each].kind == Kind::BYTES; });
    const Expression one = bytes(set);
    choices.insert(std::ranges::lower_bound(choices, one), one);
  }
  if (!choices.empty() && choices.front() == NONE) choices.erase(choices.begin());
  const auto is_nullable = [&](Expression each) { return each != EMPTY && this->is_nullable(each); };
  if (!choices.empty() && choices.front() == EMPTY && std::ranges::any_of(choices, is_nullable))
    choices.erase(choices.begin());
  if (choices.size() < 2) return choices.empty() ? NONE : choices.front();
  return add({Kind::EITHER, flags, 0, 0, 0}, choices);
}

Expression Expressions::both(std::vector<Expression> parts) {
  flatten(parts, Kind::BOTH);
  ByteSet set(0, 255);
  uint8_t flags = NULLABLE;
  size_t sets = 0;
  for (const Expression each : parts) {
    if (each == NONE) return NONE;
    flags &= nodes_[each].flags;
    if (nodes_[each].kind == Kind::BYTES) set &= sets_[nodes_[each].a], sets++;
  }
  if (!parts.empty() && parts.front() == EMPTY) return flags != 0 ? EMPTY : NONE;
  if (sets > 1) {
    std::erase_if(parts, [&](Expression each) { return nodes_[each].kind == Kind::BYTES; });
    const Expression one = bytes(set);
    if (one == NONE) return NONE;
    parts.insert(std::ranges::lower_bound(parts, one), one);
  }
  std::erase(parts, complement(NONE));
  if (parts.size() < 2) return parts.empty() ? complement(NONE) : parts.front();
  return add({Kind::BOTH, static_cast<uint8_t>(flags | MAY_BE_DEAD), 0, 0, 0}, parts);
}

Expression Expressions::complement(Expression of) {
  if (nodes_[of].kind == Kind::COMPLEMENT) return nodes_[of].a;
  const uint8_t nullable = is_nullable(of) ? 0 : NULLABLE;
  return add({Kind::COMPLEMENT, static_cast<uint8_t>(nullable | MAY_BE_DEAD), of, 0, 0});
}

Expression Expressions::repeat(Expression of, uint32_t least, uint32_t most) {
  if (most == 0 || of == EMPTY) return EMPTY;
  if (of == NONE) return least == 0 ? EMPTY : NONE;
  if (least == 1 && most == 1) return of;
  const Node node = nodes_[of];
  if ((node.flags & NULLABLE) != 0) least = 0;
  if (node.kind == Kind::REPEAT && node.b == 0 && node.c == UNLIMITED) return of;  // most is not 0
  const auto flags = static_cast<uint8_t>((least == 0 ? NULLABLE : 0) | (node.flags & MAY_BE_DEAD));
  return add({Kind::REPEAT, flags, of, least, most});
}

Expression Expressions::one_of(std::span<const std::string_view> sorted) {
  const auto choose = [&](auto&& self, size_t begin, size_t end, size_t depth) -> Expression {
    if (begin + 1 == end) return literal(sorted[begin].substr(depth));
    size_t same = depth;  // all have this beginning
    while (same < sorted[begin].size() && same < sorted[end - 1].size() && sorted[begin][same] == sorted[end - 1][same])
      same++;
    std::vector<Expression> choices;
    for (size_t first = begin; first < end;) {
      if (sorted[first].size() == same) {
        choices.push_back(EMPTY);
        first++;
        continue;
      }
      size_t last = first + 1;
      while (last < end && sorted[last][same] == sorted[first][same]) last++;
      choices.push_back(self(self, first, last, same));
      first = last;
    }
    return concat(literal(sorted[begin].substr(depth, same - depth)), either(std::move(choices)));
  };
  return sorted.empty() ? NONE : choose(choose, 0, sorted.size(), 0);
}

Expression Expressions::multiple_of(uint32_t coefficient, uint32_t places) {
  for (const char each : {'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '.'})
    literal({&each, 1});  // classes of their own
  return add({Kind::MULTIPLE, NULLABLE, coefficient, 0, places << 1});
}

Expression Expressions::add_rule() {
  rules_.push_back(NONE);
  return add({Kind::RULE, 0, static_cast<uint32_t>(rules_.size() - 1), 0, 0});
}

size_t Expressions::children(const Node& node) const {
  switch (node.kind) {
    case Kind::CONCAT: return 2;
    case Kind::EITHER:
    case Kind::BOTH: return node.b;
    case Kind::REPEAT:
    case Kind::COMPLEMENT:
    case Kind::RULE: return 1;
    default: return 0;
  }
}

Expression Expressions::child(const Node& node, size_t place) const {
  switch (node.kind) {
    case Kind::CONCAT: return place == 0 ? node.a : node.b;
    case Kind::EITHER:
    case Kind::BOTH: return lists_[node.a + place];
    case Kind::RULE: return rules_[node.a];
    default: return node.a;
  }
}

// Marks the expressions below one that have a text which ends: 2; those that have none as far as is known: 3.
void Expressions::mark_ending(Expression from, std::vector<uint8_t>& marks) const {
  enum : uint8_t { UNKNOWN, OPEN, ENDS, ENDLESS };
  std::vector<std::pair<Expression, size_t>> open = {{from, 0}};
  if (marks[from] != UNKNOWN) return;
  marks[from] = OPEN;
  while (!open.empty()) {
    auto& [at, place] = open.back();
    const Node& node = nodes_[at];
    const size_t count = children(node);
    const bool is_any = node.kind == Kind::EITHER;
    const bool ends_by_itself = node.kind == Kind::REPEAT ? node.b == 0 : node.kind != Kind::NONE && count == 0;
    if (ends_by_itself || node.kind == Kind::BOTH || node.kind == Kind::COMPLEMENT) {
      marks[at] = ENDS;
    } else if (count == 0) {
      marks[at] = ENDLESS;
    } else if (place > 0 && is_any == (marks[child(node, place - 1)] == ENDS)) {
      marks[at] = is_any ? ENDS : ENDLESS;  // decided by the last child
    } else if (place == count) {
      marks[at] = is_any ? ENDLESS : ENDS;
    } else {
      const Expression next = child(node, place++);
      if (marks[next] == UNKNOWN) {
        marks[next] = OPEN;
        open.emplace_back(next, 0);
      }
      continue;
    }
    open.pop_back();
  }
}

// Returns how many calls of `derive` are inside each other for an expression; HIGHEST if it begins with itself, or for
// more.
uint16_t Expressions::height(Expression of, std::vector<uint16_t>& heights, size_t depth) const {
  if (heights[of] != 0) return heights[of];
  if (depth >= HIGHEST) return HIGHEST;
  heights[of] = HIGHEST;
  const Node& node = nodes_[of];
  uint16_t highest = 0;
  for (size_t place = 0, count = children(node); place < count; place++) {
    highest = std::max(highest, height(child(node, place), heights, depth + (node.kind != Kind::CONCAT || place == 0)));
    if (node.kind == Kind::CONCAT && !is_nullable(node.a)) break;
  }
  return heights[of] = std::min<uint16_t>(highest + 1, HIGHEST);
}

Expression Expressions::find_endless() const {
  std::vector<uint8_t> marks(nodes_.size());
  std::vector<uint16_t> heights(nodes_.size());
  size_t open = rules_.size(), before = open + 1;
  for (size_t rounds = 0; open > 0 && open < before;
       rounds++) {  // where rules refer to each other, one ends because another does
    if (rounds * nodes_.size() > MOST_STEPS) refuse();
    for (uint8_t& each : marks) each = each == 2 ? 2 : 0;
    for (const Expression rule : rules_) mark_ending(rule, marks);
    before = open;
    open = static_cast<size_t>(std::ranges::count_if(rules_, [&](Expression rule) { return marks[rule] != 2; }));
  }
  for (auto each = static_cast<Expression>(nodes_.size()); each-- > 0;) {  // the rules that others refer to come first
    if (nodes_[each].kind != Kind::RULE) continue;
    if (marks[rules_[nodes_[each].a]] != 2 || height(each, heights, 0) == HIGHEST) return each;
  }
  return NONE;
}

Expression Expressions::derivative(Expression of, uint8_t by) {
  std::vector<Expression> choices;
  derive(of, by, choices);
  if (choices.size() < 2) return choices.empty() ? NONE : choices.front();
  return either(std::move(choices));
}

Expression Expressions::derivative(Expression of, std::string_view by) {
  for (const char each : by) of = derivative(of, static_cast<uint8_t>(each));
  return of;
}

// Adds the choices that are left of an expression after a byte.
void Expressions::derive(Expression of, uint8_t by, std::vector<Expression>& into) {
  for (;;) {
    if (++steps_ > MOST_STEPS) refuse();
    const Node node = nodes_[of];
    switch (node.kind) {
      case Kind::NONE:
      case Kind::EMPTY: return;
      case Kind::BYTES:
        if (sets_[node.a].has(by)) into.push_back(EMPTY);
        return;
      case Kind::CONCAT: {
        const Expression first = derivative(node.a, by);
        if (first != NONE) into.push_back(concat(first, node.b));
        if (!is_nullable(node.a)) return;
        of = node.b;
        continue;
      }
      case Kind::EITHER:
        for (size_t i = 0; i < node.b; i++) derive(lists_[node.a + i], by, into);
        return;
      case Kind::BOTH: {
        std::vector<Expression> parts;
        for (size_t i = 0; i < node.b; i++) {
          parts.push_back(derivative(lists_[node.a + i], by));
          if (parts.back() == NONE) return;
        }
        const Expression all = both(std::move(parts));
        if (is_searching_ || is_alive(all)) into.push_back(all);
        return;
      }
      case Kind::COMPLEMENT: into.push_back(complement(derivative(node.a, by))); return;
      case Kind::REPEAT: {
        const Expression first = derivative(node.a, by);
        if (first == NONE) return;
        const uint32_t most = node.c == UNLIMITED ? UNLIMITED : node.c - 1;
        into.push_back(concat(first, repeat(node.a, node.b > 0 ? node.b - 1 : 0, most)));
        return;
      }
      case Kind::RULE: of = rules_[node.a]; continue;
      case Kind::MULTIPLE: {
        const bool is_fraction = (node.c & 1) != 0;
        const uint32_t places = node.c >> 1;
        Node next = node;
        if (by == '.') {
          if (is_fraction || places == 0) return;
          next.c |= 1;
        } else if (by >= '0' && by <= '9' && (!is_fraction || places > 0)) {
          next.b = static_cast<uint32_t>((uint64_t(node.b) * 10 + (by - '0')) % node.a);
          if (is_fraction) next.c -= 2;
        } else {
          return;
        }
        uint64_t rest = next.b;  // of the number with zeros in the places that are left
        for (uint32_t i = 0; i < next.c >> 1; i++) rest = rest * 10 % next.a;
        next.flags = rest == 0 ? NULLABLE : 0;
        into.push_back(add(next));
        return;
      }
    }
  }
}

bool Expressions::is_alive(Expression of) {
  if ((nodes_[of].flags & MAY_BE_DEAD) == 0) return of != NONE;
  if ((nodes_[of].flags & (IS_ALIVE | IS_DEAD)) == 0) {
    const uint8_t found = search(of) ? IS_ALIVE : IS_DEAD;
    nodes_[of].flags |= found;
  }
  return (nodes_[of].flags & IS_ALIVE) != 0;
}

// Looks for a text of an expression, and notes what it comes to know of the derivatives on its way.
bool Expressions::search(Expression from) {
  struct Searching {
    bool& is_on;
    explicit Searching(bool& flag) : is_on(flag) { is_on = true; }
    ~Searching() { is_on = false; }
  } searching(is_searching_);
  // Most texts that fit are short, but with a least length there may be too many of a length: then, deep before wide.
  const auto found = search_wide(from);
  return found ? *found : search_deep(from);
}

std::optional<bool> Expressions::search_wide(Expression from) {
  const std::vector<uint8_t> bytes = classes_.bytes;
  std::vector<std::pair<Expression, size_t>> seen = {
      {from, 0}
  };  // each with the place of the one that it is derived from
  std::vector<bool> is_seen(nodes_.size());
  for (size_t at = 0; at < seen.size(); at++) {
    if (is_certain(seen[at].first)) {
      for (size_t place = at; place != 0; place = seen[place].second) nodes_[seen[place].first].flags |= IS_ALIVE;
      return true;
    }
    if (seen.size() > MOST_SEARCHED_WIDE) return std::nullopt;
    for (const uint8_t byte : bytes) {
      const Expression next = derivative(seen[at].first, byte);
      if (next >= is_seen.size()) is_seen.resize(nodes_.size());
      if (next == NONE || is_seen[next] || (nodes_[next].flags & IS_DEAD) != 0) continue;
      is_seen[next] = true;
      seen.emplace_back(next, at);
    }
  }
  for (const auto& each : seen) nodes_[each.first].flags |= IS_DEAD;
  return false;
}

bool Expressions::search_deep(Expression from) {
  const std::vector<uint8_t> bytes = classes_.bytes;
  std::vector<std::pair<Expression, size_t>> path = {{from, 0}};
  std::vector<Expression> seen = {from};
  std::vector<bool> is_seen(nodes_.size());
  is_seen[from] = true;
  while (!path.empty()) {
    auto& [at, place] = path.back();
    if (is_certain(at)) {
      for (const auto& each : path) nodes_[each.first].flags |= IS_ALIVE;
      return true;
    }
    if (place == bytes.size()) {
      path.pop_back();
      continue;
    }
    if (seen.size() > MOST_SEARCHED) refuse();
    const Expression next = derivative(at, bytes[place++]);
    if (next >= is_seen.size()) is_seen.resize(nodes_.size());
    if (next == NONE || is_seen[next] || (nodes_[next].flags & IS_DEAD) != 0) continue;
    is_seen[next] = true;
    seen.push_back(next);
    path.emplace_back(next, 0);
  }
  for (const Expression each : seen) nodes_[each].flags |= IS_DEAD;
  return false;
}

uint32_t Expressions::repetitions(Expression of, Expression item) const {
  const Node& node = nodes_[of];
  const Node& first = node.kind == Kind::CONCAT ? nodes_[node.a] : node;
  return first.kind == Kind::REPEAT && first.a == item ? first.c : 0;
}

}  // namespace hybridge::text
