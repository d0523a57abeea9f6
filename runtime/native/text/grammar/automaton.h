// The states that texts of a grammar lead to, found as they are asked for, and what each of them allows.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_AUTOMATON_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_AUTOMATON_H

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "expression.h"
#include "token_bytes.h"

namespace hybridge::text {

// A grammar that is read. after_blank_line: the same after a blank line. item: a character of a string of JSON, if
// there is one.
struct GrammarExpressions {
  Expressions all;
  Expression start = Expressions::NONE, after_blank_line = Expressions::NONE, item = Expressions::NONE;
};

// Bits, one for each token.
using TokenMask = std::vector<uint64_t>;

class Automaton {
 public:
  using State = uint32_t;
  static constexpr State NOWHERE = 0;  // no text goes on like this

  Automaton(const GrammarExpressions& grammar, const TokenBytes& tokens);

  // The state at the beginning of a text, or before the blank line that is in front of it.
  State start(bool has_blank_line = false) { return state_of(has_blank_line ? after_blank_line_ : start_); }

  // Throw TextError where the grammar is too complex; a new automaton may then go on.
  State step(State from, uint8_t byte) {
    const State next = next_[size_t(from) * width_ + classes_.of[byte]];
    return next != UNKNOWN ? next : find(from, byte);
  }
  State step(State from, std::string_view bytes);

  bool is_complete(State state) const { return expressions_.is_nullable(states_[state]); }

  // Whether the text is complete and cannot go on.
  bool is_final(State state) const { return states_[state] == Expressions::EMPTY; }

  // The tokens whose bytes may come next; until the next call.
  const TokenMask& mask(State state);

  // The tokens that come next whatever is chosen, as the tokenizer writes them; until the next call.
  const std::vector<uint32_t>& forced(State state);

  // Begins a call. Returns false where it has grown so much that a new one should go on.
  bool begin_call();

 private:
  static constexpr State UNKNOWN = UINT32_MAX;

  State state_of(Expression rest);
  State find(State from, uint8_t byte);
  std::string forced_bytes(State state);
  TokenMask allowed(State state);

  Expressions expressions_;
  const Expression start_, after_blank_line_, item_;
  const TokenBytes& tokens_;
  const Expressions::Classes classes_;
  const size_t width_, first_size_;
  std::vector<Expression> states_;
  std::vector<State> next_;  // by state and class of a byte
  std::unordered_map<Expression, State> by_expression_;
  std::unordered_map<State, TokenMask> masks_;
  std::unordered_map<State, std::vector<uint32_t>> forced_;
};

}  // namespace hybridge::text

#endif
