// The texts of JSON that the choices of a schema leave, as expressions.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_SCHEMA_EXPRESSION_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_SCHEMA_EXPRESSION_H

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "expression.h"
#include "schema.h"

namespace hybridge::text {

// Writes schemas as expressions; a reference is a rule of its own, which `finish` defines.
class SchemaExpressions {
 public:
  using Resolve = std::function<Schema(const std::string& key)>;

  SchemaExpressions(Expressions& in, SchemaMerger& merger, Resolve resolve);

  Expression of(const Schema& schema);

  // Returns the strings that fit a schema, between their quotation marks.
  Expression strings(const Schema& schema);

  // Defines the start and the rules of references. Returns the keys of those that nothing fits. Throws TextError if a text of one
  // has no end.
  std::vector<std::string> finish(Expression start, Expression body);

  Expression character() const { return character_; }
  Expression characters() const { return characters_; }

 private:
  // A property that is named. text: its name and value.
  struct Member {
    Expression text;
    bool is_required;
  };

  Expression of(const SharedSchema& schema);
  Expression of(const Choice& choice);
  Expression named(const Choice& choice);
  Expression any();
  Expression rule(const std::string& key);
  Expression inner_string(const Choice& choice);
  Expression string(const Choice& choice);
  Expression array(const Choice& choice);
  Expression array_that_contains(const Choice& choice);
  Expression object(const Choice& choice);
  Expression counted_members(const std::vector<Member>& members, Expression other, const Count& count);
  Expression unnamed_members(const Choice& choice, const std::vector<Expression>& taken);
  Expression between_quotes(Expression inner) { return in_.concat(in_.literal("\""), in_.concat(inner, in_.literal("\""))); }

  Expressions& in_;
  SchemaMerger& merger_;
  Resolve resolve_;
  const Expression character_, characters_, comma_, colon_;
  Expression any_ = Expressions::NONE;
  std::map<std::string, Expression> rules_;  // by key
  std::vector<std::string> pending_;
  std::unordered_map<const Schema*, std::pair<SharedSchema, Expression>> known_;
};

}  // namespace hybridge::text

#endif
