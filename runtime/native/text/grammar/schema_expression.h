// The texts of JSON that the choices of a schema leave, as expressions.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_SCHEMA_EXPRESSION_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_SCHEMA_EXPRESSION_H

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../answers/value.h"
#include "expression.h"
#include "schema.h"

namespace hybridge::text {

// How an object is written. key: what is before the value of a property, value: its value and what ends it. other_key:
// the key of properties that the schema does not name, by their names as JSON writes them between quotation marks;
// their `name` is null.
struct ObjectWriting {
  Expression open, close, comma;
  std::function<Expression(const std::string& name)> key;
  std::function<Expression(Expression names)> other_key;
  std::function<Expression(const std::string* name, const SharedSchema& schema)> value;
  bool has_free = true;  // properties of which the schema says nothing are written
};

// Writes schemas as expressions; a reference is a rule of its own, which `finish` defines.
class SchemaExpressions {
 public:
  using Resolve = std::function<Schema(const std::string& key)>;

  SchemaExpressions(Expressions& in, SchemaMerger& merger, Resolve resolve);

  Expression of(const Schema& schema);
  Expression of(const SharedSchema& schema);
  Expression of(const Choice& choice);

  // Returns the objects that fit a schema, in JSON or another writing.
  Expression objects(const Schema& schema);
  Expression objects(const Schema& schema, const ObjectWriting& writing);

  // Returns the choices with the types of ANY and the schemas of references; null is any.
  Schema resolved(const SharedSchema& schema);

  // From here on values are written as a form of calls writes them. quote: the bytes around strings in Gemma's
  // notation. Strings that are written without escapes cannot have those characters that need one if a schema has a
  // pattern for them.
  void write_in(Notation notation, std::string_view quote = {});

  // From here on numbers have exponents of at most two digits: readers make infinity of larger ones.
  void keep_numbers_finite();

  // From here on no string or name contains a text.
  void leave_out(std::string text);

  // Returns the strings that fit a schema, between JSON's quotation marks.
  Expression strings(const Schema& schema);

  // Defines the start and the rules of references. Returns the keys of those that nothing fits. Throws TextError if a
  // text of one has no end.
  std::vector<std::string> finish(Expression start, Expression body);

  Expression character() const { return character_; }
  Expression characters() const { return characters_; }

 private:
  // A property that is named. text: its name and value.
  struct Member {
    Expression text;
    bool is_required;
  };

  Expression named(const Choice& choice);
  Expression any();
  Expression rule(const std::string& key);
  Expression inner_string(const Choice& choice);
  Expression string(const Choice& choice);
  Expression array(const Choice& choice);
  Expression array_that_contains(const Choice& choice);
  Expression object(const Choice& choice, const ObjectWriting& writing);
  static Expression counted_members(
      Expressions& in, const std::vector<Member>& members, Expression comma, Expression other, const Count& count
  );
  Expression unnamed_members(const Choice& choice, const std::vector<Expression>& taken, const ObjectWriting& writing);
  bool is_left_out(std::string_view text) const { return !left_out_.empty() && text.find(left_out_) != text.npos; }
  Expression between(std::string_view quote, Expression inner) {
    return in_.concat(in_.literal(quote), in_.concat(inner, in_.literal(quote)));
  }
  Expression between_quotes(Expression inner);
  Expression literal_string(const std::string& text);
  Expression constant(const std::string& json);
  Expression bare(Expression names);

  Expressions& in_;
  SchemaMerger& merger_;
  Resolve resolve_;
  const Expression character_, characters_;
  Notation notation_ = Notation::JSON;
  std::string quote_ = {};
  Expression bare_ = Expressions::NONE;   // a name without quotation marks
  Expression plain_ = Expressions::NONE;  // a character of strings without escapes that a pattern describes
  Expression comma_, colon_;
  ObjectWriting json_;
  Expression any_ = Expressions::NONE, finite_ = Expressions::NONE, allowed_ = Expressions::NONE;
  std::string left_out_;
  std::map<std::string, Expression> rules_;  // by key
  std::vector<std::string> pending_;
  std::unordered_map<const Schema*, std::pair<SharedSchema, Expression>> known_;
};

}  // namespace hybridge::text

#endif
