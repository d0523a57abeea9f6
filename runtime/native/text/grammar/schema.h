// A JSON schema as the choices that it leaves: each is of one type, and what several schemas ask for is merged into it.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_SCHEMA_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_SCHEMA_H

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "decimal.h"
#include "expression.h"

namespace hybridge::text {

struct Choice;
using Schema = std::vector<Choice>;  // empty: nothing fits
using SharedSchema = std::shared_ptr<const Schema>;

// How many there may be.
struct Count {
  uint32_t least = 0, most = Expressions::UNLIMITED;
  bool is_free() const { return least == 0 && most == Expressions::UNLIMITED; }
};

struct Property {
  std::string name;
  SharedSchema schema;
};

// How many items from a place on fit a schema. is_keyword: asked by `contains`, whose items count as evaluated.
struct Contained {
  SharedSchema schema;
  Count count = {1, Expressions::UNLIMITED};
  uint32_t from = 0;
  bool is_keyword = false;
};

struct Choice {
  enum class Type : uint8_t { ANY, REFERENCE, NOTHING, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT };  // NOTHING is null
  static constexpr std::array TYPES = {Type::NOTHING, Type::BOOLEAN, Type::NUMBER,
                                       Type::STRING,  Type::ARRAY,   Type::OBJECT};

  Type type = Type::ANY;
  Count count = {};  // of characters, items or properties

  // The JSON of strings, numbers and booleans that are named one by one, sorted; of a reference its key, after "!" if
  // it is negated.
  std::optional<std::vector<std::string>> literals = std::nullopt;
  NumberRange range = {};
  std::vector<Expression> patterns = {};  // of a string, as JSON writes it between quotation marks

  std::vector<SharedSchema> first_items = {};
  SharedSchema others = nullptr;  // further items, or properties whose names nothing else matches; null for any
  std::vector<Contained> contained = {};

  std::vector<Property> properties = {};
  std::vector<std::string> required = {};
  std::vector<std::pair<Expression, SharedSchema>> by_pattern = {};  // properties that are not named, by their names

  // The names of properties, and the number of first items, that count as evaluated; known only where `unevaluated...`
  // is used.
  Expression evaluated = Expressions::NONE;
  uint32_t evaluated_items = 0;
};

// Merges schemas. resolve: reads what a key of a reference refers to.
class SchemaMerger {
 public:
  SchemaMerger(Expressions& in, std::function<Schema(const std::string& key)> resolve)
      : in_(in), resolve_(std::move(resolve)) {}

  // Returns what fits both; properties have the order of the first schema, then of the second. Throws TextError where
  // that cannot be said, or is too much.
  Schema both(const Schema& one, const Schema& other);
  SharedSchema both(const SharedSchema& one, const SharedSchema& other);

  // Returns what does not fit. Throws TextError where that cannot be said, or is too much.
  Schema complement(const Schema& of);

  // Tells whether it is certain that nothing fits both.
  bool are_apart(const Schema& one, const Schema& other);

  // Returns the schema of a property that a choice does not name; null for any.
  SharedSchema unnamed(const Choice& choice, const std::string& name);

  // Returns the choices with the types of ANY and the schemas of references.
  Schema resolved(const Schema& schema);

  // Counts steps of reading or merging. Throws TextError once there are too many.
  void count(size_t steps = 1);

 private:
  Schema both(const Choice& one, const Choice& other);
  void merge_objects(Choice& into, const Choice& other);
  void merge_arrays(Choice& into, const Choice& other);
  bool keep_fitting(Choice& choice);
  bool are_apart(const Choice& one, const Choice& other);
  Schema complement(const Choice& of);
  void add_violations(const Choice& of, Schema& to);
  void add_array_violations(const Choice& of, Schema& to);
  void add_object_violations(const Choice& of, Schema& to);

  Expressions& in_;
  std::function<Schema(const std::string&)> resolve_;
  size_t steps_ = 0, depth_ = 0;
};

}  // namespace hybridge::text

#endif
