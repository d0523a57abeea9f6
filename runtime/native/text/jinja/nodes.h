// A template as a tree. Chains, such as a.b.c|trim or a + b + c, are lists, so that depth is nesting alone.
#ifndef HYBRIDGE_NATIVE_TEXT_JINJA_NODES_H
#define HYBRIDGE_NATIVE_TEXT_JINJA_NODES_H

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "value.h"

namespace hybridge::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

// name: empty for one by position, "*" or "**" for one that is taken apart.
struct ArgumentNode {
  std::string name;
  ExpressionPtr value;
};

enum class StepType { ATTRIBUTE, ITEM, SLICE, CALL, FILTER, TEST, TEST_NOT };

// What is done with the value before it. parts: an item's key, or a slice's begin, end and step, which may be missing.
struct Step {
  StepType type;
  std::string name = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<ArgumentNode> arguments = {};
};

enum class ExpressionType {
  CONSTANT,
  NAME,
  TUPLE,
  LIST,
  DICT,
  NEGATIVE,
  POSITIVE,
  NOT,
  AND,
  OR,
  COMPARE,
  ARITHMETIC,
  CONCAT,
  CONDITION
};

// operators: between the parts. CONDITION: the test, the value, and what it is otherwise, which may be missing.
struct Expression {
  ExpressionType type;
  Value constant = {};
  std::string name = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<std::string> operators = {};
  std::vector<Step> steps = {};
};

struct Target {
  std::string name, attribute = {};  // attribute: of a namespace
  std::vector<Target> parts = {};
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

enum class StatementType { DATA, OUTPUT, IF, FOR, SET, SET_BLOCK, MACRO, CALL, FILTER, WITH, SCOPE, BREAK, CONTINUE };

struct Parameter {
  std::string name;
  ExpressionPtr standard;
};

struct MacroNode {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

// expressions: those of an output; an IF's tests, one for each of its blocks but the `else`; a loop's items and its
// filter, which may be missing; what is set. steps: filters of a block.
struct Statement {
  StatementType type;
  std::string data = {};
  std::vector<ExpressionPtr> expressions = {};
  std::vector<Target> targets = {};
  std::vector<Block> blocks = {};
  std::vector<Step> steps = {};
  std::shared_ptr<const MacroNode> macro = {};
};

}  // namespace hybridge::text::jinja

#endif
