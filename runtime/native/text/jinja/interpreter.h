// Renders a template that was read, as Jinja's immutable sandbox does.
#ifndef HYBRIDGE_NATIVE_TEXT_JINJA_INTERPRETER_H
#define HYBRIDGE_NATIVE_TEXT_JINJA_INTERPRETER_H

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nodes.h"

namespace hybridge::text::jinja {

// Variables of a block, and the block around it. Their names are those of the template, or of the variables that it
// got.
struct Scope {
  std::shared_ptr<Scope> outer;
  std::vector<std::pair<std::string_view, Value>> variables = {};
  bool is_kept = false;  // a macro sees it

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  // now: what strftime_now writes; without it, the function is refused.
  Interpreter(Budget& budget, size_t most_output, std::optional<std::tm> now);
  ~Interpreter();

  // variables: a dict.
  Text render(const Block& block, const Value& variables);

  Budget& budget() { return budget_; }
  Value attribute(const Value& of, const std::string& name);
  Value item(const Value& of, const Value& key);
  Value call(const Value& callee, Arguments& given);
  // Applies a filter, or a test, by name (filters.cpp, tests.cpp).
  Value filter(const std::string& name, const Value& value, Arguments& given);
  bool test(const std::string& name, const Value& value, Arguments& given);

  Value string(Text text) { return Value::string(budget_, std::move(text)); }
  Value undefined(std::string why) { return Value::undefined(budget_, std::move(why)); }

 private:
  enum class Flow { NEXT, BREAK, CONTINUE };

  Flow run(const Block& block, const ScopePtr& scope);
  Flow run(const Statement& statement, const ScopePtr& scope);
  Flow run_if(const Statement& statement, const ScopePtr& scope);
  Flow run_for(const Statement& statement, const ScopePtr& scope);
  void run_set(const Statement& statement, const ScopePtr& scope);
  void run_macro(const Statement& statement, const ScopePtr& scope);
  void run_enclosed(const Statement& statement, const ScopePtr& scope);
  Value captured(const Block& block, const ScopePtr& scope);
  void write(const Text& text);
  void write(std::string_view text);
  void count(size_t bytes);
  void assign(const Target& target, const Value& value, Scope& scope, const ScopePtr& visible);

  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value operand(const Expression& expression, const ScopePtr& scope);
  Value compared(const Expression& expression, const ScopePtr& scope);
  Value concatenated(const Expression& expression, const ScopePtr& scope);
  Value made_dict(const Expression& expression, const ScopePtr& scope);
  std::vector<Value> all(const std::vector<ExpressionPtr>& parts, const ScopePtr& scope);
  Value step(const Step& step, const Value& value, const ScopePtr& scope);
  void read_arguments(const std::vector<ArgumentNode>& nodes, const ScopePtr& scope, Arguments& given);
  Value named(const std::string& name, const ScopePtr& scope);
  Value macro(std::shared_ptr<const MacroNode> node, const ScopePtr& scope);
  Value call_macro(const MacroNode& node, const ScopePtr& scope, Arguments& given);
  void add_globals();

  Budget& budget_;
  const size_t most_output_;
  const std::optional<std::tm> now_;
  std::unordered_map<std::string, Value> globals_;
  Text* out_ = nullptr;
  // What may hold itself, until the end.
  std::vector<ScopePtr> kept_scopes_;
  std::vector<Value> namespaces_;
};

// Arguments by the names of a function's parameters.
class Bound {
 public:
  // Throws TextError for too few, too many or unknown ones.
  Bound(
      const char* function, const Arguments& given, std::initializer_list<const char*> parameters, size_t required = 0
  );

  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value& operator[](size_t i) const { return *values_[i]; }
  bool truth(size_t i, bool standard) const { return has(i) ? values_[i]->truth() : standard; }
  int64_t integer(size_t i, int64_t standard) const;
  const Text& text(size_t i) const;

 private:
  const char* function_;
  std::vector<const Value*> values_;
};

// A method of a string, a list or a dict (methods.cpp); undefined if there is none that a template may call.
std::optional<Value> method(Interpreter& in, const Value& of, const std::string& name);

// As json.dumps writes it (to_json.cpp).
Text to_json(Interpreter& in, const Value& value, const Bound& options);

}  // namespace hybridge::text::jinja

#endif
