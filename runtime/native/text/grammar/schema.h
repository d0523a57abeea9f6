// A JSON schema as the choices that it leaves: each is of one type, and what several schemas ask for is merged into it.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_SCHEMA_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_SCHEMA_H

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
using Schema = std::vector<Choice>;  // none: nothing fits
using SharedSchema = std::shared_ptr<const Schema>;

// How many there may be.
struct Count {
  uint32_t least = 0, most = Expressions::UNLIMITED;
};

struct Property {
  std::string name;
  SharedSchema schema;
};

struct Choice {
  enum class Type : uint8_t { ANY, REFERENCE, NOTHING, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT };  // NOTHING is null

  Type type = Type::ANY;
  Count count = {};  // of characters, items or properties

  // The JSON of strings, numbers and booleans that are named one by one, sorted; of a reference its pointer.
  std::optional<std::vector<std::string>> literals = std::nullopt;
  NumberRange range = {};
  std::vector<Expression> patterns = {};  // of a string, as JSON writes it between quotation marks

  std::vector<SharedSchema> first_items = {};
  SharedSchema others = nullptr;  // further items, or properties that are not named; null for any

  std::vector<Property> properties = {};
  std::vector<std::string> required = {};
  std::vector<std::pair<Expression, SharedSchema>> by_pattern = {};  // properties by what is in their names
};

// Merges schemas. resolve: reads what a reference refers to.
class SchemaMerger {
 public:
  explicit SchemaMerger(std::function<Schema(const std::string& pointer)> resolve) : resolve_(std::move(resolve)) {}

  // Returns what fits both; properties have the order of the first schema, then of the second. Throws TextError where that cannot
  // be said, or is too much.
  Schema both(const Schema& one, const Schema& other);
  SharedSchema both(const SharedSchema& one, const SharedSchema& other);

  // Whether it is certain that nothing fits both.
  bool are_apart(const Schema& one, const Schema& other);

  // Counts a step of reading or merging. Throws TextError once there are too many.
  void count();

 private:
  Schema both(const Choice& one, const Choice& other);
  void merge_objects(Choice& into, const Choice& other);
  bool are_apart(const Choice& one, const Choice& other);

  std::function<Schema(const std::string&)> resolve_;
  size_t steps_ = 0, depth_ = 0;
};

}  // namespace hybridge::text

#endif
