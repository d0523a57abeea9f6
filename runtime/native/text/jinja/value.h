// Values of a template: those of Python that Jinja has, as JSON and the template's own expressions make them.
#ifndef HYBRIDGE_NATIVE_TEXT_JINJA_VALUE_H
#define HYBRIDGE_NATIVE_TEXT_JINJA_VALUE_H

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "budget.h"
#include "text.h"

struct yyjson_val;

namespace hybridge::text::jinja {

// LARGE: an integer beyond 64 bits, which can be written and compared. ITERATOR: can be read once, as a generator can.
// VIEW: a dict's keys, values or items.
enum class Kind : uint8_t {
  UNDEFINED,
  NONE,
  BOOLEAN,
  INTEGER,
  LARGE,
  FLOAT,
  STRING,
  LIST,
  TUPLE,
  ITERATOR,
  VIEW,
  RANGE,
  DICT,
  NAMESPACE,
  FUNCTION,
  LOOP
};

// What a value shares with its copies. levels: of values inside each other.
class Object {
 public:
  Object(Budget& budget, size_t bytes, size_t levels);
  virtual ~Object() { budget_.give_back(bytes_); }
  Object(const Object&) = delete;

  size_t levels() const { return levels_; }
  // Pays for more bytes, and for values inside.
  void grow(size_t bytes, size_t levels_inside);

 protected:
  Budget& budget_;

 private:
  size_t bytes_, levels_;
};

class Value;
struct Arguments;
class Interpreter;
using Function = std::function<Value(Interpreter&, Arguments&)>;

struct StringObject;
struct SequenceObject;
struct DictObject;
struct FunctionObject;
struct LoopObject;

class Value {
 public:
  Value() = default;  // undefined, without a word why
  static Value none() { return Value(Kind::NONE); }
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value number(double value);
  static Value large(Budget& budget, std::string digits);
  static Value string(Budget& budget, Text text);
  static Value undefined(Budget& budget, std::string why);
  // label: of a range or a view, such as "dict_keys".
  static Value sequence(Budget& budget, Kind kind, std::vector<Value> items, std::string label = "");
  static Value list(Budget& budget, std::vector<Value> items) { return sequence(budget, Kind::LIST, std::move(items)); }
  static Value tuple(Budget& budget, std::vector<Value> items) {
    return sequence(budget, Kind::TUPLE, std::move(items));
  }
  static Value iterator(Budget& budget, std::vector<Value> items) {
    return sequence(budget, Kind::ITERATOR, std::move(items));
  }
  static Value dict(Budget& budget);
  static Value named(Budget& budget);  // a namespace
  // levels: of what the function holds.
  static Value function(Budget& budget, std::string name, size_t levels, Function call);
  static Value loop(std::shared_ptr<LoopObject> loop);
  // Strings count as people's if `is_input`, but the role of a message if that is a plain word.
  static Value from_json(Budget& budget, yyjson_val* json, bool is_input);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::UNDEFINED; }
  bool is_none() const { return kind_ == Kind::NONE; }
  bool is_string() const { return kind_ == Kind::STRING; }
  bool is_dict() const { return kind_ == Kind::DICT; }
  bool is_integer() const { return kind_ == Kind::INTEGER || kind_ == Kind::BOOLEAN; }  // as Python's int has both
  bool is_number() const { return is_integer() || kind_ == Kind::FLOAT; }
  bool is_sequence() const { return Kind::LIST <= kind_ && kind_ <= Kind::RANGE; }

  bool truth() const;
  int64_t integer() const { return integer_; }
  double number() const { return kind_ == Kind::FLOAT ? number_ : static_cast<double>(integer_); }
  const Text& text() const;
  std::string why() const;  // it is undefined
  SequenceObject& sequence() const;
  DictObject& dict() const;  // a namespace's too
  FunctionObject& function() const;
  LoopObject& loop() const;
  const void* identity() const { return object_.get(); }
  size_t levels() const { return object_ == nullptr ? 0 : object_->levels(); }
  const std::shared_ptr<Object>& object() const { return object_; }

  const char* type() const;  // as Python names it

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind_ = Kind::UNDEFINED;
  union {
    int64_t integer_ = 0;
    double number_;
  };
  std::shared_ptr<Object> object_;
};

struct StringObject final : Object {
  StringObject(Budget& budget, Text text);
  // Characters, not bytes.
  size_t length() const;
  bool is_ascii() const { return length() == text.size(); }

  const Text text;

 private:
  mutable size_t length_ = SIZE_MAX;
};

struct SequenceObject final : Object {
  SequenceObject(Budget& budget, std::vector<Value> items, std::string label);

  std::vector<Value> items;
  const std::string label;
  size_t read = 0;  // of an iterator
};

struct DictObject final : Object {
  explicit DictObject(Budget& budget);

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
  size_t size() const { return entries.size(); }

  std::vector<std::pair<Value, Value>> entries;

 private:
  template <typename Equal>
  const Value* find(size_t hash, Equal&& equal) const;
  std::unordered_multimap<size_t, size_t> places_;  // of entries by their hashes, if there are many
};

struct FunctionObject final : Object {
  FunctionObject(Budget& budget, std::string name, size_t levels, Function call);

  const std::string name;
  const Function call;
};

// Arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

bool equal(Budget& budget, const Value& a, const Value& b);
// Less than zero, zero or more, as Python orders them. Throws TextError for what has no order.
int compare(Budget& budget, const Value& a, const Value& b);
size_t hash(Budget& budget, const Value& value);  // throws TextError for what changes

// As Python's str and repr write it.
Text to_text(Budget& budget, const Value& value);
void write_repr(Budget& budget, const Value& value, Text& out);
std::string float_text(double value);

// All items of what can be read in a loop; an iterator is used up. Throws TextError for anything else.
std::vector<Value> items_of(Budget& budget, const Value& value);

}  // namespace hybridge::text::jinja

#endif
