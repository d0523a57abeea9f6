// Languages of bytes as expressions, and what is left of one after a byte: its derivative (Brzozowski, 1964).
//
// Equal expressions have the same number. So the rest of a text is one number, however deep the text is nested: a
// concatenation is a stack, a choice is a set of them, and intersections, complements and counted repetitions need no
// states of their own.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_EXPRESSION_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_EXPRESSION_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace hybridge::text {

using Expression = uint32_t;

class ByteSet {
 public:
  ByteSet() = default;
  ByteSet(uint8_t first, uint8_t last) { add(first, last); }

  void add(uint8_t first, uint8_t last) {
    for (unsigned byte = first; byte <= last; byte++) words_[byte / 64] |= uint64_t(1) << byte % 64;
  }
  bool has(uint8_t byte) const { return (words_[byte / 64] >> byte % 64 & 1) != 0; }
  bool is_empty() const { return *this == ByteSet(); }

  ByteSet& operator|=(const ByteSet& other) {
    for (size_t i = 0; i < words_.size(); i++) words_[i] |= other.words_[i];
    return *this;
  }
  ByteSet& operator&=(const ByteSet& other) {
    for (size_t i = 0; i < words_.size(); i++) words_[i] &= other.words_[i];
    return *this;
  }
  bool operator==(const ByteSet&) const = default;
  auto operator<=>(const ByteSet&) const = default;

 private:
  std::array<uint64_t, 4> words_{};
};

// All expressions of a grammar. Functions throw TextError where there are too many of them, or a call takes too long.
class Expressions {
 public:
  static constexpr Expression NONE = 0;   // no text
  static constexpr Expression EMPTY = 1;  // the empty text alone
  static constexpr uint32_t UNLIMITED = UINT32_MAX;

  Expressions();

  Expression byte(uint8_t first, uint8_t last) { return bytes(ByteSet(first, last)); }
  Expression bytes(const ByteSet& set);
  Expression literal(std::string_view text);
  Expression concat(Expression first, Expression second);
  Expression concat(std::span<const Expression> parts);
  Expression either(std::span<const Expression> choices) {
    return either(std::vector<Expression>(choices.begin(), choices.end()));
  }
  Expression either(std::vector<Expression> choices);
  Expression either(Expression one, Expression other) { return either(std::vector<Expression>{one, other}); }
  Expression both(std::vector<Expression> parts);
  Expression complement(Expression of);  // all other texts of bytes
  Expression optional(Expression of) { return either(of, EMPTY); }
  Expression repeat(Expression of, uint32_t least, uint32_t most);

  // One of many texts, as a tree of their common beginnings; the texts are sorted.
  Expression one_of(std::span<const std::string_view> sorted);

  // Decimal digits, with at most so many places after a point, that are a multiple of coefficient / 10^places.
  Expression multiple_of(uint32_t coefficient, uint32_t places);

  // A name for an expression that is defined later, and may refer to itself after a byte. The names must be defined,
  // and checked by `find_endless`, before derivatives are asked for.
  Expression add_rule();
  void define(Expression rule, Expression as) { rules_[nodes_[rule].a] = as; }

  // A rule of which no text ever ends, or that begins with itself; NONE if all are fine.
  Expression find_endless() const;

  bool is_nullable(Expression of) const { return (nodes_[of].flags & NULLABLE) != 0; }

  // Whether any text fits. Derivatives are NONE if none does.
  bool is_alive(Expression of);

  // The texts that make one of the expression with this byte before them.
  Expression derivative(Expression of, uint8_t by);
  Expression derivative(Expression of, std::string_view by);

  // If an expression begins with a repetition of `item` that is not complete, its greatest count; 0 if it does not.
  uint32_t repetitions(Expression of, Expression item) const;

  // Bytes that no expression tells apart have the same class. Derivatives make no new ones. bytes: one of each class.
  struct Classes {
    std::array<uint8_t, 256> of{};
    std::vector<uint8_t> bytes = {0};
  };
  const Classes& classes() const { return classes_; }

  // About how many bytes of memory all of them take.
  size_t size() const {
    return nodes_.size() * (sizeof(Node) + 4 * sizeof(Expression)) + lists_.size() * sizeof(Expression);
  }

  // Allows as many steps from here on as one call of the grammar may take.
  void refuel() { steps_ = 0; }

 private:
  enum class Kind : uint8_t { NONE, EMPTY, BYTES, CONCAT, EITHER, BOTH, COMPLEMENT, REPEAT, RULE, MULTIPLE };
  static constexpr uint8_t NULLABLE = 1, MAY_BE_DEAD = 2, IS_ALIVE = 4, IS_DEAD = 8;

  // a, b, c: of BYTES the set; of CONCAT both parts; of EITHER and BOTH the list and its length; of REPEAT the item,
  // least and most; of RULE its number; of MULTIPLE the coefficient, the remainder so far, and the places that are
  // left.
  struct Node {
    Kind kind;
    uint8_t flags;
    uint32_t a, b, c;
  };

  Expression add(Node node, std::span<const Expression> list = {});
  bool is_same(const Node& one, const Node& other, std::span<const Expression> list) const;
  uint64_t hash(const Node& node, std::span<const Expression> list) const;
  std::span<const Expression> list(const Node& node) const { return std::span(lists_).subspan(node.a, node.b); }
  void grow();
  void split_classes(const ByteSet& by);
  void flatten(std::vector<Expression>& parts, Kind kind) const;
  void derive(Expression of, uint8_t by, std::vector<Expression>& into);
  bool search(Expression from);
  std::optional<bool> search_wide(Expression from);  // none where it was given up
  bool search_deep(Expression from);
  bool is_certain(Expression of) const {  // to be alive
    const uint8_t flags = nodes_[of].flags;
    return (flags & (NULLABLE | IS_ALIVE)) != 0 || (of != NONE && (flags & MAY_BE_DEAD) == 0);
  }
  size_t children(const Node& node) const;
  Expression child(const Node& node, size_t place) const;
  void mark_ending(Expression from, std::vector<uint8_t>& marks) const;
  uint16_t height(Expression of, std::vector<uint16_t>& heights, size_t depth) const;

  std::vector<Node> nodes_;
  std::vector<Expression> lists_;
  std::vector<ByteSet> sets_;
  std::map<ByteSet, uint32_t> places_;  // in sets_
  Classes classes_;
  std::vector<Expression> rules_;
  std::vector<Expression> table_;  // of nodes, by hash
  size_t steps_ = 0;
  bool is_searching_ = false;
};

}  // namespace hybridge::text

#endif
