#include "automaton.h"

#include <algorithm>

#include "../error.h"

namespace hybridge::text {
namespace {

constexpr size_t MOST_BYTES = size_t(16) << 20;       // of each: expressions, states, masks
constexpr size_t LONGEST_FORCED = 256;                // bytes
constexpr size_t MOST_TRANSITIONS = size_t(1) << 24;  // in one call

}  // namespace

Automaton::Automaton(const GrammarExpressions& grammar, const TokenBytes& tokens)
    : expressions_(grammar.all),
      start_(grammar.start),
      after_blank_line_(grammar.after_blank_line),
      item_(grammar.item),
      tokens_(tokens),
      classes_(expressions_.classes()),
      width_(classes_.bytes.size()),
      first_size_(expressions_.size()) {
  state_of(Expressions::NONE);
  std::ranges::fill(next_, NOWHERE);
}

Automaton::State Automaton::state_of(Expression rest) {
  const auto [found, is_new] = by_expression_.try_emplace(rest, static_cast<State>(states_.size()));
  if (is_new) {
    if (next_.size() > MOST_TRANSITIONS)
      throw TextError("it is too complex; write less of it, with smaller counts and fewer choices");
    states_.push_back(rest);
    next_.resize(next_.size() + width_, UNKNOWN);
  }
  return found->second;
}

Automaton::State Automaton::find(State from, uint8_t byte) {
  const State next = state_of(expressions_.derivative(states_[from], byte));
  return next_[size_t(from) * width_ + classes_.of[byte]] = next;
}

Automaton::State Automaton::step(State from, std::string_view bytes) {
  for (const char each : bytes) from = step(from, static_cast<uint8_t>(each));
  return from;
}

bool Automaton::begin_call() {
  expressions_.refuel();
  if (masks_.size() * tokens_.size() / 8 > MOST_BYTES) masks_.clear();
  return expressions_.size() - first_size_ < MOST_BYTES && next_.size() * sizeof(State) < MOST_BYTES;
}

const TokenMask& Automaton::mask(State state) {
  const auto found = masks_.find(state);
  return found != masks_.end() ? found->second : masks_.emplace(state, allowed(state)).first->second;
}

TokenMask Automaton::allowed(State state) {
  TokenMask bits((tokens_.size() + 63) / 64);
  const auto allow = [&](uint32_t id) { bits[id / 64] |= uint64_t(1) << id % 64; };
  const auto step = [this](State from, uint8_t byte) { return this->step(from, byte); };
  const uint32_t items = item_ == Expressions::NONE ? 0 : expressions_.repetitions(states_[state], item_);
  std::ranges::for_each(tokens_.plain(items), allow);
  (items > 0 ? tokens_.others() : tokens_.all()).walk(state, step, allow);
  return bits;
}

std::string Automaton::forced_bytes(State state) {
  std::string bytes;
  while (bytes.size() < LONGEST_FORCED && !is_complete(state)) {
    size_t found = 0;
    uint8_t only = 0;
    for (size_t each = 0; each < width_ && found < 2; each++) {
      if (step(state, classes_.bytes[each]) == NOWHERE) continue;
      only = classes_.bytes[each];
      found += static_cast<size_t>(std::ranges::count(classes_.of, static_cast<uint8_t>(each)));
    }
    if (found != 1) break;
    bytes += static_cast<char>(only);
    state = step(state, only);
  }
  return bytes;
}

const std::vector<uint32_t>& Automaton::forced(State state) {
  const auto [found, is_new] = forced_.try_emplace(state);
  std::vector<uint32_t>& forced = found->second;
  if (!is_new) return forced;
  const std::string bytes = forced_bytes(state);
  if (bytes.empty()) return forced;
  // The tokens may be others once more follows: those that end after the first place from which a longer token might
  // begin.
  size_t certain = 0;
  while (certain < bytes.size() && !tokens_.all().has_longer(std::string_view(bytes).substr(certain))) certain++;
  size_t end = 0;
  const auto add = [&](uint32_t id) {
    const std::string_view each = tokens_.bytes(id);
    // A tokenizer that puts a blank before texts has other tokens for these bytes than inside of a text.
    if (each.empty() || std::string_view(bytes).substr(end, each.size()) != each || end + each.size() > certain)
      return false;
    end += each.size();
    forced.push_back(id);
    return true;
  };
  while (end < certain) {
    if (bytes[end] == TokenBytes::SPECIAL) {
      const auto special = tokens_.special_at(std::string_view(bytes).substr(end + 1));
      if (!special || !add(*special)) break;
      continue;
    }
    const size_t size = std::min(bytes.find(TokenBytes::SPECIAL, end), bytes.size()) - end;
    const std::vector<TextPart> plain = {{0, size}};
    const auto written = tokens_.tokenizer().encode(bytes.substr(end, size), false, plain);
    if (!std::ranges::all_of(written, [&](const TextToken& token) { return add(token.id); })) break;
  }
  return forced;
}

}  // namespace hybridge::text
