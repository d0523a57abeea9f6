// Reading a JSON document such as tokenizer.json: typed access, in which a wrong type is an error that names the key.
#ifndef HYBRIDGE_NATIVE_TEXT_JSON_H
#define HYBRIDGE_NATIVE_TEXT_JSON_H

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "../third_party/yyjson/yyjson.h"
#include "error.h"

namespace hybridge::text {

// A value of a document that outlives it. Null stands for a key that is missing as well as for a null.
class Json {
 public:
  Json() = default;
  Json(yyjson_val* value, std::string name) : value_(value), name_(std::move(name)) {}

  explicit operator bool() const { return value_ != nullptr && !yyjson_is_null(value_); }
  const std::string& name() const { return name_; }
  bool is_missing() const { return value_ == nullptr; }
  bool is_string() const { return yyjson_is_str(value_); }
  bool is_array() const { return yyjson_is_arr(value_); }
  bool is_object() const { return yyjson_is_obj(value_); }
  bool is_boolean() const { return yyjson_is_bool(value_); }
  bool is_number() const { return yyjson_is_num(value_); }
  size_t size() const { return yyjson_get_len(value_); }

  Json operator[](std::string_view key) const {
    return {yyjson_obj_getn(value_, key.data(), key.size()), name_ + "." + std::string(key)};
  }
  Json item(size_t place) const { return {yyjson_arr_get(value_, place), name_ + "[]"}; }
  Json as(std::string name) const { return {value_, std::move(name)}; }

  std::string_view string() const {
    if (!is_string()) fail("a string");
    return {yyjson_get_str(value_), yyjson_get_len(value_)};
  }
  std::string_view string_or(std::string_view otherwise) const { return *this ? string() : otherwise; }

  bool boolean() const {
    if (!yyjson_is_bool(value_)) fail("true or false");
    return yyjson_get_bool(value_);
  }
  bool boolean_or(bool otherwise) const { return *this ? boolean() : otherwise; }

  // An integer from 0 to `most`.
  uint64_t integer(uint64_t most) const {
    if (!yyjson_is_uint(value_) || yyjson_get_uint(value_) > most)
      fail(("an integer from 0 to " + std::to_string(most)).c_str());
    return yyjson_get_uint(value_);
  }

  int64_t signed_integer() const {
    if (!yyjson_is_sint(value_)) return static_cast<int64_t>(integer(INT64_MAX));
    return yyjson_get_sint(value_);
  }

  double number() const {
    if (!yyjson_is_num(value_)) fail("a number");
    return yyjson_get_num(value_);
  }

  // The value as JSON.
  std::string written() const {
    size_t size;
    const std::unique_ptr<char, decltype(&std::free)> text(
        yyjson_val_write(value_, YYJSON_WRITE_NOFLAG, &size), std::free
    );
    if (text == nullptr) fail("JSON");
    return {text.get(), size};
  }

  // Calls `call(item)` for each of an array.
  template <typename Call>
  void each(Call&& call) const {
    if (!is_array()) fail("a list");
    size_t place, count;
    yyjson_val* item;
    yyjson_arr_foreach(value_, place, count, item) call(Json(item, name_ + "[]"));
  }

  // Calls `call(key, value)` for each of an object.
  template <typename Call>
  void each_entry(Call&& call) const {
    if (!is_object()) fail("an object");
    size_t place, count;
    yyjson_val *key, *value;
    yyjson_obj_foreach(value_, place, count, key, value) {
      call(std::string_view(yyjson_get_str(key), yyjson_get_len(key)), Json(value, name_ + "{}"));
    }
  }

  [[noreturn]] void fail(const char* expected) const { throw TextError(name_ + " is not " + expected); }

 private:
  yyjson_val* value_ = nullptr;
  std::string name_;
};

// Lists and objects inside each other that a document may have, as many as serde_json and so the tokenizers library
// read: what a document describes is read by recursion, in threads of apps whose stacks have half a megabyte.
inline constexpr size_t MOST_NESTED = 127;

// A document. Throws TextError if the text is no JSON; invalid UTF-8 and more than MOST_NESTED lists in lists are none.
class JsonDocument {
 public:
  explicit JsonDocument(std::string_view text) {
    if (nesting(text) > MOST_NESTED) throw TextError("no JSON that is read here: it is nested too deeply");
    yyjson_read_err error;
    document_.reset(yyjson_read_opts(const_cast<char*>(text.data()), text.size(), YYJSON_READ_NOFLAG, nullptr, &error));
    if (document_ == nullptr)
      throw TextError("no JSON: " + std::string(error.msg) + " at byte " + std::to_string(error.pos));
  }

  // How many lists and objects of a JSON text are inside each other at most.
  static size_t nesting(std::string_view text) {
    size_t depth = 0, deepest = 0;
    bool quoted = false;
    for (size_t place = 0; place < text.size(); place++) {
      const char each = text[place];
      if (quoted) {
        place += each == '\\';  // which takes what comes after it along
        quoted = each != '"';
      } else if (each == '"') {
        quoted = true;
      } else if (each == '[' || each == '{') {
        deepest = std::max(deepest, ++depth);
      } else if ((each == ']' || each == '}') && depth > 0) {
        depth--;
      }
    }
    return deepest;
  }

  // name: what messages call the document.
  Json root(const char* name = "tokenizer.json") const { return {yyjson_doc_get_root(document_.get()), name}; }

 private:
  struct Free {
    void operator()(yyjson_doc* document) const { yyjson_doc_free(document); }
  };
  std::unique_ptr<yyjson_doc, Free> document_;
};

}  // namespace hybridge::text

#endif
