// Values of JavaScript, read and made by Node-API.
#pragma once

#include <node_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hybridge_node {

// Thrown where a JavaScript exception is pending, and caught where the addon returns to Node.js.
struct Pending {};

// Throws Pending unless a call of Node-API went well.
inline void check(napi_env env, napi_status status) {
  if (status == napi_ok) return;
  bool pending = false;
  napi_is_exception_pending(env, &pending);
  if (!pending) {
    const napi_extended_error_info* info = nullptr;
    napi_get_last_error_info(env, &info);
    napi_throw_type_error(
        env, nullptr, info == nullptr || info->error_message == nullptr ? "wrong argument" : info->error_message
    );
  }
  throw Pending{};
}

// A value that the package's JavaScript has checked; one of another type throws all the same.
class Value {
 public:
  Value(napi_env env, napi_value value) : env_(env), value_(value) {}

  napi_value raw() const { return value_; }

  // Returns whether it is neither undefined nor null.
  bool given() const {
    napi_valuetype type;
    check(env_, napi_typeof(env_, value_, &type));
    return type != napi_undefined && type != napi_null;
  }

  bool flag() const {
    bool value;
    check(env_, napi_get_value_bool(env_, value_, &value));
    return value;
  }

  double real() const {
    double value;
    check(env_, napi_get_value_double(env_, value_, &value));
    return value;
  }

  int64_t number() const {
    int64_t value;
    check(env_, napi_get_value_int64(env_, value_, &value));
    return value;
  }

  // A bigint: the id of a handle, a token or a seed.
  uint64_t id() const {
    uint64_t value;
    bool lossless;
    check(env_, napi_get_value_bigint_uint64(env_, value_, &value, &lossless));
    return value;
  }

  int64_t token() const {
    int64_t value;
    bool lossless;
    check(env_, napi_get_value_bigint_int64(env_, value_, &value, &lossless));
    return value;
  }

  std::string text() const {
    size_t size = 0;
    check(env_, napi_get_value_string_utf8(env_, value_, nullptr, 0, &size));
    std::string text(size, '\0');
    check(env_, napi_get_value_string_utf8(env_, value_, text.data(), size + 1, &size));
    return text;
  }

  // A BigInt64Array.
  std::vector<int64_t> ids() const {
    size_t count = 0;
    const auto* from = static_cast<const int64_t*>(elements(napi_bigint64_array, count));
    return count == 0 ? std::vector<int64_t>() : std::vector<int64_t>(from, from + count);
  }

  // The elements of a Float32Array, which lasts as long as a reference to it.
  float* floats(size_t& count) const { return static_cast<float*>(elements(napi_float32_array, count)); }

  // Those of a Uint8Array.
  uint8_t* bytes(size_t& count) const { return static_cast<uint8_t*>(elements(napi_uint8_array, count)); }

  std::vector<Value> list() const {
    uint32_t count = 0;
    check(env_, napi_get_array_length(env_, value_, &count));
    std::vector<Value> values;
    for (uint32_t i = 0; i < count; ++i) {
      napi_value element;
      check(env_, napi_get_element(env_, value_, i, &element));
      values.emplace_back(env_, element);
    }
    return values;
  }

  Value operator[](const char* name) const {
    napi_value property;
    check(env_, napi_get_named_property(env_, value_, name, &property));
    return {env_, property};
  }

 private:
  void* elements(napi_typedarray_type wanted, size_t& count) const {
    napi_typedarray_type type;
    void* data = nullptr;
    check(env_, napi_get_typedarray_info(env_, value_, &type, &count, &data, nullptr, nullptr));
    if (type == wanted) return data;
    napi_throw_type_error(env_, nullptr, "an array of another type was expected");
    throw Pending{};
  }

  napi_env env_;
  napi_value value_;
};

// Makes values.
class Maker {
 public:
  explicit Maker(napi_env env) : env(env) {}

  napi_value undefined() const {
    napi_value value;
    check(env, napi_get_undefined(env, &value));
    return value;
  }

  napi_value number(double from) const {
    napi_value value;
    check(env, napi_create_double(env, from, &value));
    return value;
  }

  napi_value id(uint64_t from) const {
    napi_value value;
    check(env, napi_create_bigint_uint64(env, from, &value));
    return value;
  }

  napi_value text(std::string_view from) const {
    napi_value value;
    check(env, napi_create_string_utf8(env, from.data(), from.size(), &value));
    return value;
  }

  // A BigInt64Array.
  napi_value ids(const std::vector<int64_t>& from) const {
    void* data = nullptr;
    napi_value buffer, value;
    check(env, napi_create_arraybuffer(env, from.size() * sizeof(int64_t), &data, &buffer));
    if (!from.empty()) std::copy(from.begin(), from.end(), static_cast<int64_t*>(data));
    check(env, napi_create_typedarray(env, napi_bigint64_array, from.size(), buffer, 0, &value));
    return value;
  }

  napi_value list(const std::vector<napi_value>& from) const {
    napi_value value;
    check(env, napi_create_array_with_length(env, from.size(), &value));
    for (size_t i = 0; i < from.size(); ++i)
      check(env, napi_set_element(env, value, static_cast<uint32_t>(i), from[i]));
    return value;
  }

  struct Field {
    const char* name;
    napi_value value;
  };

  napi_value object(std::initializer_list<Field> fields) const {
    napi_value value;
    check(env, napi_create_object(env, &value));
    for (const Field& field : fields) check(env, napi_set_named_property(env, value, field.name, field.value));
    return value;
  }

  // An Error with a status of hybridge.h as its `status`.
  napi_value error(int status, std::string_view words) const {
    napi_value value;
    check(env, napi_create_error(env, nullptr, text(words), &value));
    check(env, napi_set_named_property(env, value, "status", number(status)));
    return value;
  }

  napi_env env;
};

}  // namespace hybridge_node
