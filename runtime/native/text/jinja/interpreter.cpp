#include "interpreter.h"

#include <algorithm>

#include "loop.h"
#include "operators.h"

namespace hybridge::text::jinja {

const Value* Scope::find(std::string_view name) const {
  for (const auto& [known, value] : variables) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : variables) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Interpreter::Interpreter(Budget& budget, size_t most_output, std::optional<std::tm> now)
    : budget_(budget), most_output_(most_output), now_(now) {
  add_globals();
}

Interpreter::~Interpreter() {
  // A namespace or a macro may hold itself, or begin a long chain of others: all of them live until each is empty.
  for (const ScopePtr& each : kept_scopes_) each->variables.clear();
  for (const Value& each : namespaces_) each.dict().entries.clear();
}

Text Interpreter::render(const Block& block, const Value& variables) {
  const auto context = std::make_shared<Scope>();
  for (const auto& [name, value] : variables.dict().entries) context->set(name.text().bytes, value);
  const auto scope = std::make_shared<Scope>(Scope{context});
  Text text;
  out_ = &text;
  run(block, scope);
  out_ = nullptr;
  return text;
}

void Interpreter::add_globals() {
  const auto add = [&](const char* name, Function call) {
    globals_.emplace(name, Value::function(budget_, name, 0, std::move(call)));
  };
  add("range", [](Interpreter& in, Arguments& given) {
    const Bound bound("range", given, {"start", "stop", "step"}, 1);
    if (!given.named.empty()) throw TextError("range() takes no keyword arguments");
    const int64_t first = bound.integer(0, 0), start = bound.has(1) ? first : 0,
                  stop = bound.has(1) ? bound.integer(1, 0) : first;
    const int64_t step = bound.integer(2, 1);
    if (step == 0) throw TextError("range() arg 3 must not be zero");
    std::vector<Value> items;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
      if (items.size() == 100'000)
        throw TextError("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
      items.push_back(Value::integer(i));
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    std::string label = "range(" + std::to_string(start) + ", " + std::to_string(stop);
    if (step != 1) label += ", " + std::to_string(step);
    return Value::sequence(in.budget(), Kind::RANGE, std::move(items), label + ")");
  });
  add("raise_exception", [](Interpreter& in, Arguments& given) -> Value {
    throw TextError(to_text(in.budget(), Bound("raise_exception", given, {"message"}, 1)[0]).bytes);
  });
  add("strftime_now", [](Interpreter& in, Arguments& given) {
    const Bound bound("strftime_now", given, {"format"}, 1);
    if (!in.now_) throw TextError("the chat template asks for the time, and the caller gave none");
    return in.string({format_time(bound.text(0).bytes, *in.now_)});
  });
  const auto entries = [](Interpreter& in, Arguments& given, Value made) {
    if (given.positional.size() > 1) throw TextError("dict expected at most 1 argument");
    if (!given.positional.empty()) {
      const Value& from = given.positional[0];
      if (from.is_undefined() || from.is_dict() || from.is_sequence()) {
        for (const Value& each : items_of(in.budget(), from)) {
          if (from.is_dict()) {
            made.dict().set(each, *from.dict().find(each));
            continue;
          }
          const auto pair = items_of(in.budget(), each);
          if (pair.size() != 2) throw TextError("dictionary update sequence element has not length 2");
          made.dict().set(pair[0], pair[1]);
        }
      } else {
        throw TextError(std::string("'") + from.type() + "' object is not iterable");
      }
    }
    for (const auto& [name, value] : given.named) made.dict().set(in.string({name}), value);
    return made;
  };
  add("dict", [entries](Interpreter& in, Arguments& given) { return entries(in, given, Value::dict(in.budget())); });
  add("namespace", [entries](Interpreter& in, Arguments& given) {
    Value made = entries(in, given, Value::named(in.budget()));
    for (const auto& [name, value] : made.dict().entries) {
      if (name.is_string() && name.text().bytes.starts_with('_'))
        throw TextError("a namespace cannot hold a name with an underscore first");
    }
    in.namespaces_.push_back(made);
    return made;
  });
}

// Statements

void Interpreter::count(size_t bytes) {
  if (out_->size() + bytes > most_output_) throw TextError("the chat template makes too long a text");
  budget_.spend(1 + bytes / 32);
}

void Interpreter::write(std::string_view text) {
  count(text.size());
  out_->append(text);
}

void Interpreter::write(const Text& text) {
  count(text.size());
  out_->append(text);
}

Interpreter::Flow Interpreter::run(const Block& block, const ScopePtr& scope) {
  const Budget::Level level(budget_);
  for (const auto& each : block) {
    if (const Flow flow = run(*each, scope); flow != Flow::NEXT) return flow;
  }
  return Flow::NEXT;
}

Interpreter::Flow Interpreter::run(const Statement& statement, const ScopePtr& scope) {
  budget_.spend(1);
  switch (statement.type) {
    case StatementType::DATA: write(statement.data); break;
    case StatementType::OUTPUT: {
      const Value value = evaluate(*statement.expressions[0], scope);
      if (value.is_string()) write(value.text());
      else write(to_text(budget_, value));
      break;
    }
    case StatementType::IF: return run_if(statement, scope);
    case StatementType::FOR: return run_for(statement, scope);
    case StatementType::SET:
    case StatementType::SET_BLOCK: run_set(statement, scope); break;
    case StatementType::MACRO:
    case StatementType::CALL: run_macro(statement, scope); break;
    case StatementType::FILTER:
    case StatementType::WITH: run_enclosed(statement, scope); break;
    case StatementType::SCOPE: run(statement.blocks[0], std::make_shared<Scope>(Scope{scope})); break;
    case StatementType::BREAK: return Flow::BREAK;
    case StatementType::CONTINUE: return Flow::CONTINUE;
  }
  return Flow::NEXT;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement, const ScopePtr& scope) {
  for (size_t i = 0; i < statement.expressions.size(); ++i) {
    if (evaluate(*statement.expressions[i], scope).truth()) return run(statement.blocks[i], scope);
  }
  if (statement.blocks.size() == statement.expressions.size()) return Flow::NEXT;
  return run(statement.blocks.back(), scope);
}

Interpreter::Flow Interpreter::run_for(const Statement& statement, const ScopePtr& scope) {
  const Value over = evaluate(*statement.expressions[0], scope);
  LoopObject::Accepts accepts;
  if (const Expression* filter = statement.expressions[1].get()) {
    accepts = [this, filter, &statement, scope](const Value& each) {
      const auto inside = std::make_shared<Scope>(Scope{scope});
      assign(statement.targets[0], each, *inside, inside);
      return evaluate(*filter, inside).truth();
    };
  }
  const auto loop = std::make_shared<LoopObject>(
      budget_, items_of(budget_, over), over.levels() + 1, std::move(accepts)
  );
  const Value variable = Value::loop(loop);
  Flow flow = Flow::NEXT;
  while (loop->advance()) {
    budget_.spend(1);
    const auto inside = std::make_shared<Scope>(Scope{scope});
    inside->variables.reserve(4);
    inside->set("loop", variable);
    assign(statement.targets[0], loop->current, *inside, inside);
    flow = run(statement.blocks[0], inside);
    if (flow == Flow::BREAK) break;
  }
  loop->accepts = nullptr;
  if (loop->index0 >= 0 || statement.blocks.size() == 1) return Flow::NEXT;
  return run(statement.blocks[1], scope);
}

void Interpreter::run_set(const Statement& statement, const ScopePtr& scope) {
  if (statement.type == StatementType::SET) {
    assign(statement.targets[0], evaluate(*statement.expressions[0], scope), *scope, scope);
    return;
  }
  Value value = captured(statement.blocks[0], std::make_shared<Scope>(Scope{scope}));
  for (const Step& each : statement.steps) value = step(each, value, scope);
  assign(statement.targets[0], value, *scope, scope);
}

void Interpreter::run_macro(const Statement& statement, const ScopePtr& scope) {
  if (statement.type == StatementType::MACRO) {
    scope->set(statement.macro->name, macro(statement.macro, scope));
    return;
  }
  // The call gets its caller as an argument.
  const Value caller = macro(statement.macro, std::make_shared<Scope>(Scope{scope}));
  const Expression& node = *statement.expressions[0];
  Value callee = operand(node, scope);
  for (size_t i = 0; i + 1 < node.steps.size(); ++i) callee = step(node.steps[i], callee, scope);
  Arguments given;
  read_arguments(node.steps.back().arguments, scope, given);
  given.named.emplace_back("caller", caller);
  write(to_text(budget_, call(callee, given)));
}

void Interpreter::run_enclosed(const Statement& statement, const ScopePtr& scope) {
  const auto inside = std::make_shared<Scope>(Scope{scope});
  if (statement.type == StatementType::FILTER) {
    Value value = captured(statement.blocks[0], inside);
    for (const Step& each : statement.steps) value = step(each, value, scope);
    write(to_text(budget_, value));
    return;
  }
  for (size_t i = 0; i < statement.targets.size(); ++i) {
    assign(statement.targets[i], evaluate(*statement.expressions[i], scope), *inside, inside);
  }
  run(statement.blocks[0], inside);
}

Value Interpreter::captured(const Block& block, const ScopePtr& scope) {
  Text text;
  Text* const before = std::exchange(out_, &text);
  struct Restore {
    Text*& out;
    Text* const before;
    ~Restore() { out = before; }
  } const restore{out_, before};
  run(block, scope);
  return string(std::move(text));
}

void Interpreter::assign(const Target& target, const Value& value, Scope& scope, const ScopePtr& visible) {
  budget_.spend(1);
  if (!target.parts.empty()) {
    const auto values = items_of(budget_, value);
    if (values.size() != target.parts.size()) {
      throw TextError(
          values.size() < target.parts.size() ? "not enough values to unpack" : "too many values to unpack"
      );
    }
    for (size_t i = 0; i < values.size(); ++i) assign(target.parts[i], values[i], scope, visible);
  } else if (target.attribute.empty()) {
    budget_.take(sizeof(Value));
    budget_.give_back(sizeof(Value));
    scope.set(target.name, value);
  } else {
    const Value of = named(target.name, visible);
    if (!of.is(Kind::NAMESPACE)) throw TextError("cannot assign attribute on non-namespace object");
    if (target.attribute.starts_with('_')) throw TextError("a namespace cannot hold a name with an underscore first");
    of.dict().set(string({target.attribute}), value);
  }
}

// Macros

Value Interpreter::macro(std::shared_ptr<const MacroNode> node, const ScopePtr& scope) {
  if (!scope->is_kept) {
    scope->is_kept = true;
    budget_.take(256 + scope->variables.size() * sizeof(Value));
    kept_scopes_.push_back(scope);
  }
  const std::string name = node->name;
  return Value::function(
      budget_, name, 0,
      [node = std::move(node), weak = std::weak_ptr<Scope>(scope)](Interpreter& in, Arguments& given) {
        return in.call_macro(*node, weak.lock(), given);
      }
  );
}

Value Interpreter::call_macro(const MacroNode& node, const ScopePtr& scope, Arguments& given) {
  const auto inside = std::make_shared<Scope>(Scope{scope});
  const auto take = [&](const std::string& name) -> std::optional<Value> {
    const auto found = std::ranges::find(given.named, name, &std::pair<std::string, Value>::first);
    if (found == given.named.end()) return std::nullopt;
    Value value = std::move(found->second);
    given.named.erase(found);
    return value;
  };
  const size_t count = node.parameters.size();
  for (size_t i = 0; i < count; ++i) {
    const Parameter& each = node.parameters[i];
    std::optional<Value> value = i < given.positional.size() ? given.positional[i] : take(each.name);
    if (!value && each.standard != nullptr) value = evaluate(*each.standard, inside);
    inside->set(each.name, value ? *value : undefined("parameter '" + each.name + "' was not provided"));
  }
  const bool has_caller_parameter = std::ranges::any_of(node.parameters, [](const Parameter& each) {
    return each.name == "caller";
  });
  if (node.uses_caller && !has_caller_parameter) {
    const auto caller = take("caller");
    inside->set("caller", caller ? *caller : undefined("No caller defined"));
  }
  if (node.uses_kwargs) {
    Value rest = Value::dict(budget_);
    for (auto& [name, value] : given.named) rest.dict().set(string({name}), value);
    inside->set("kwargs", rest);
  } else if (!given.named.empty()) {
    throw TextError("macro '" + node.name + "' takes no keyword argument '" + given.named[0].first + "'");
  }
  if (node.uses_varargs) {
    const size_t used = std::min(count, given.positional.size());
    inside->set(
        "varargs",
        Value::tuple(budget_, {given.positional.begin() + static_cast<std::ptrdiff_t>(used), given.positional.end()})
    );
  } else if (given.positional.size() > count) {
    throw TextError("macro '" + node.name + "' takes not more than " + std::to_string(count) + " argument(s)");
  }
  return captured(node.body, inside);
}

Value Interpreter::call(const Value& callee, Arguments& given) {
  const Budget::Level level(budget_);
  budget_.spend(1);
  if (callee.is_undefined()) throw TextError(callee.why());
  if (!callee.is(Kind::FUNCTION)) throw TextError(std::string("'") + callee.type() + "' object is not callable");
  const Value held = callee;  // what it does may drop the last other copy
  return held.function().call(*this, given);
}

// Expressions

Value Interpreter::named(const std::string& name, const ScopePtr& scope) {
  for (const Scope* each = scope.get(); each != nullptr; each = each->outer.get()) {
    budget_.spend(1);
    if (const Value* found = each->find(name)) return *found;
  }
  const auto found = globals_.find(name);
  return found != globals_.end() ? found->second : undefined("'" + name + "' is undefined");
}

Value Interpreter::evaluate(const Expression& expression, const ScopePtr& scope) {
  const Budget::Level level(budget_);
  budget_.spend(1);
  Value value = operand(expression, scope);
  for (const Step& each : expression.steps) value = step(each, value, scope);
  return value;
}

std::vector<Value> Interpreter::all(const std::vector<ExpressionPtr>& parts, const ScopePtr& scope) {
  std::vector<Value> values;
  values.reserve(parts.size());
  for (const auto& each : parts) values.push_back(evaluate(*each, scope));
  return values;
}

Value Interpreter::operand(const Expression& expression, const ScopePtr& scope) {
  const auto& parts = expression.parts;
  switch (expression.type) {
    case ExpressionType::CONSTANT: return expression.constant;
    case ExpressionType::NAME: return named(expression.name, scope);
    case ExpressionType::TUPLE: return Value::tuple(budget_, all(parts, scope));
    case ExpressionType::LIST: return Value::list(budget_, all(parts, scope));
    case ExpressionType::DICT: return made_dict(expression, scope);
    case ExpressionType::NEGATIVE: return negative(evaluate(*parts[0], scope));
    case ExpressionType::POSITIVE: return negative(negative(evaluate(*parts[0], scope)));
    case ExpressionType::NOT: return Value::boolean(!evaluate(*parts[0], scope).truth());
    case ExpressionType::AND:
    case ExpressionType::OR: {
      const bool decides = expression.type == ExpressionType::OR;
      Value value = evaluate(*parts[0], scope);
      for (size_t i = 1; i < parts.size() && value.truth() != decides; ++i) value = evaluate(*parts[i], scope);
      return value;
    }
    case ExpressionType::COMPARE: return compared(expression, scope);
    case ExpressionType::ARITHMETIC: {
      Value value = evaluate(*parts[0], scope);
      for (size_t i = 1; i < parts.size(); ++i) {
        value = arithmetic(budget_, expression.operators[i - 1], value, evaluate(*parts[i], scope));
      }
      return value;
    }
    case ExpressionType::CONCAT: return concatenated(expression, scope);
    case ExpressionType::CONDITION:
      if (evaluate(*parts[0], scope).truth()) return evaluate(*parts[1], scope);
      if (parts.size() == 3) return evaluate(*parts[2], scope);
      return undefined("the inline if-expression evaluated to false and no else section was defined.");
  }
  return Value();
}

Value Interpreter::concatenated(const Expression& expression, const ScopePtr& scope) {
  Text text;
  for (const Value& each : all(expression.parts, scope)) {
    const size_t before = text.size();
    if (each.is_string()) text.append(each.text());
    else text.append(to_text(budget_, each));
    budget_.spend(1 + (text.size() - before) / 32);
  }
  return string(std::move(text));
}

Value Interpreter::made_dict(const Expression& expression, const ScopePtr& scope) {
  const auto values = all(expression.parts, scope);
  Value made = Value::dict(budget_);
  for (size_t i = 0; i < values.size(); i += 2) made.dict().set(values[i], values[i + 1]);
  return made;
}

Value Interpreter::compared(const Expression& expression, const ScopePtr& scope) {
  Value left = evaluate(*expression.parts[0], scope);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.parts[i + 1], scope);
    const std::string& operation = expression.operators[i];
    bool holds = false;
    if (operation == "==") holds = equal(budget_, left, right);
    else if (operation == "!=") holds = !equal(budget_, left, right);
    else if (operation == "in") holds = contains(budget_, right, left);
    else if (operation == "not in") holds = !contains(budget_, right, left);
    else {
      const int order = compare(budget_, left, right);
      const bool is_nan = (left.is(Kind::FLOAT) && left.number() != left.number()) ||
                          (right.is(Kind::FLOAT) && right.number() != right.number());
      holds = !is_nan && (operation == "<"    ? order < 0
                          : operation == "<=" ? order <= 0
                          : operation == ">"  ? order > 0
                                              : order >= 0);
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

void Interpreter::read_arguments(const std::vector<ArgumentNode>& nodes, const ScopePtr& scope, Arguments& given) {
  for (const ArgumentNode& each : nodes) {
    const Value value = evaluate(*each.value, scope);
    if (value.is_string()) budget_.spend(value.text().size() / 32);
    if (each.name.empty()) {
      given.positional.push_back(value);
    } else if (each.name == "*") {
      for (const Value& item : items_of(budget_, value)) given.positional.push_back(item);
    } else if (each.name == "**") {
      if (!value.is_dict()) throw TextError("argument after ** must be a mapping");
      for (const auto& [name, item] : value.dict().entries)
        given.named.emplace_back(to_text(budget_, name).bytes, item);
    } else {
      given.named.emplace_back(each.name, value);
    }
  }
}

Value Interpreter::step(const Step& step, const Value& value, const ScopePtr& scope) {
  budget_.spend(1);
  switch (step.type) {
    case StepType::ATTRIBUTE: return attribute(value, step.name);
    case StepType::ITEM: return item(value, evaluate(*step.parts[0], scope));
    case StepType::SLICE: {
      const auto part = [&](size_t i) {
        return step.parts[i] == nullptr ? Value::none() : evaluate(*step.parts[i], scope);
      };
      const Value begin = part(0), end = part(1), by = part(2);
      return slice(budget_, value, begin, end, by);
    }
    default: break;
  }
  Arguments given;
  read_arguments(step.arguments, scope, given);
  if (step.type == StepType::CALL) return call(value, given);
  if (step.type == StepType::FILTER) return filter(step.name, value, given);
  return Value::boolean(test(step.name, value, given) == (step.type == StepType::TEST));
}

namespace {

std::optional<Value> loop_attribute(Interpreter& in, const Value& of, const std::string& name) {
  LoopObject& loop = of.loop();
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(!loop.peek());
  if (name == "length") return Value::integer(static_cast<int64_t>(loop.length()));
  if (name == "revindex") return Value::integer(static_cast<int64_t>(loop.length()) - loop.index0);
  if (name == "revindex0") return Value::integer(static_cast<int64_t>(loop.length()) - loop.index0 - 1);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return loop.index0 == 0 ? in.undefined("there is no previous item") : loop.previous;
  if (name == "nextitem") return loop.peek() ? *loop.after : in.undefined("there is no next item");
  if (name == "cycle") {
    return Value::function(in.budget(), name, of.levels(), [of](Interpreter&, Arguments& given) {
      if (given.positional.empty()) throw TextError("no items for cycling given");
      return given.positional[static_cast<size_t>(of.loop().index0) % given.positional.size()];
    });
  }
  if (name == "changed") {
    return Value::function(in.budget(), name, of.levels(), [of](Interpreter& inside, Arguments& given) {
      auto& last = of.loop().changed;
      const auto same = [&](const Value& a, const Value& b) { return equal(inside.budget(), a, b); };
      const bool is_same = last &&
                           std::equal(
                               last->begin(), last->end(), given.positional.begin(), given.positional.end(), same
                           );
      // A loop that holds itself would never be freed.
      for (const Value& each : given.positional) {
        if (each.levels() > 64 || each.is(Kind::LOOP) || each.is(Kind::FUNCTION))
          throw TextError("loop.changed is for plain values");
      }
      if (!is_same) last = given.positional;
      return Value::boolean(!is_same);
    });
  }
  return std::nullopt;
}

}  // namespace

Value Interpreter::attribute(const Value& of, const std::string& name) {
  if (of.is_undefined()) throw TextError(of.why());
  if (of.is(Kind::LOOP)) {
    if (const auto found = loop_attribute(*this, of, name)) return *found;
  } else if (of.is(Kind::NAMESPACE)) {
    if (const Value* found = of.dict().find(name)) return *found;
  } else {
    if (const auto found = method(*this, of, name)) return *found;
    if (of.is_dict()) {
      if (const Value* found = of.dict().find(name)) return *found;
    }
  }
  return undefined(std::string("'") + of.type() + " object' has no attribute '" + name + "'");
}

Value Interpreter::item(const Value& of, const Value& key) {
  Value found;
  if (find_item(budget_, of, key, found)) return found;
  if (key.is_string() && !of.is(Kind::NAMESPACE) && !of.is(Kind::LOOP)) {
    if (const auto known = method(*this, of, key.text().bytes)) return *known;
  } else if (key.is_string()) {
    return attribute(of, key.text().bytes);
  }
  return undefined(
      std::string(of.type()) + " object has no element " + (key.is_string() ? quoted(key.text()).bytes : key.type())
  );
}

Bound::Bound(
    const char* function, const Arguments& given, std::initializer_list<const char*> parameters, size_t required
)
    : function_(function), values_(parameters.size(), nullptr) {
  const std::string called = std::string(function) + "()";
  if (given.positional.size() > parameters.size())
    throw TextError(called + " takes at most " + std::to_string(parameters.size()) + " arguments");
  for (size_t i = 0; i < given.positional.size(); ++i) values_[i] = &given.positional[i];
  for (const auto& [name, value] : given.named) {
    const auto* const place = std::ranges::find_if(parameters, [&](const char* each) { return each == name; });
    if (place == parameters.end()) throw TextError(called + " got an unexpected keyword argument '" + name + "'");
    auto& slot = values_[static_cast<size_t>(place - parameters.begin())];
    if (slot != nullptr) throw TextError(called + " got multiple values for argument '" + name + "'");
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr)
      throw TextError(called + " missing required argument '" + *(parameters.begin() + i) + "'");
  }
}

int64_t Bound::integer(size_t i, int64_t standard) const {
  if (!has(i)) return standard;
  if (values_[i]->is_undefined()) throw TextError(values_[i]->why());
  if (!values_[i]->is_integer())
    throw TextError(
        std::string(function_) + "(): '" + values_[i]->type() + "' object cannot be interpreted as an integer"
    );
  return values_[i]->integer();
}

const Text& Bound::text(size_t i) const {
  if (!values_[i]->is_string())
    throw TextError(std::string(function_) + "(): argument must be str, not " + values_[i]->type());
  return values_[i]->text();
}

}  // namespace hybridge::text::jinja
