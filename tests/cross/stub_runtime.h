// Stands for kernel.h, so that the kernels run without ExecuTorch: under an emulator of another processor, for
// instance.
//
// A program made of this header and the kernels reads one call from stdin and writes every tensor of it, as it is
// afterwards, to stdout. A call is the operator's name, then its arguments in order, each a letter and its value:
//   t  dtype (int32), dimensions (int32), sizes (int64 each), order of the dimensions in memory (uint8 each), data
//   a  which tensor before it shares its memory with (int32), then a tensor without data; both end with the call
//   n  none      i  int64      d  double      s  length (int32), characters      l  length (int32), int64 each
//   m  length (int32), tensors or none, each with its letter
#define HYBRIDGE_KERNEL_H

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "instruction_set.h"

namespace executorch::aten {
template <typename T>
using ArrayRef = std::vector<T>;
}

namespace hybridge {

enum class ScalarType : int32_t {
  Byte = 0,
  Char = 1,
  Int = 3,
  Long = 4,
  Half = 5,
  Float = 6,
  Double = 7,
  Bool = 11,
  BFloat16 = 15
};

inline int64_t width_of(ScalarType type) {
  switch (type) {
    case ScalarType::Double:
    case ScalarType::Long: return 8;
    case ScalarType::Int:
    case ScalarType::Float: return 4;
    case ScalarType::BFloat16:
    case ScalarType::Half: return 2;
    default: return 1;
  }
}

struct Tensor {
  ScalarType type = ScalarType::Float;
  std::vector<int64_t> shape;
  std::vector<uint8_t> order;
  std::vector<uint8_t>*
      bytes = nullptr;  // exactly as many as the tensor has: a sanitizer sees what is behind them; seen() has it

  ScalarType scalar_type() const { return type; }
  int64_t dim() const { return shape.size(); }
  int64_t size(int64_t d) const { return shape[d < 0 ? d + dim() : d]; }
  int64_t numel() const {
    int64_t count = 1;
    for (int64_t each : shape) count *= each;
    return count;
  }
  size_t nbytes() const { return numel() * element_size(); }
  const std::vector<uint8_t>& dim_order() const { return order; }
  int64_t element_size() const { return width_of(type); }
  const void* const_data_ptr() const { return bytes->data(); }
  void* mutable_data_ptr() const { return bytes->data(); }
  template <typename T>
  const T* const_data_ptr() const {
    return reinterpret_cast<const T*>(bytes->data());
  }
  template <typename T>
  T* mutable_data_ptr() const {
    return reinterpret_cast<T*>(bytes->data());
  }
};

constexpr size_t MOST_SCRATCH = size_t(1) << 30;  // a call that asks for more is told that there is none

struct KernelRuntimeContext {
  std::vector<std::unique_ptr<uint8_t[]>> memory;
  const char* refused = nullptr;  // the check that failed
};

// Requests for scratch memory that are granted; the next one is refused. Negative: all are.
inline int64_t& scratch_left() {
  static int64_t left = -1;
  return left;
}

template <typename F>
void parallel(int64_t count, int64_t, const F& f) {
  f(int64_t(0), count / 2);  // in two parts, as two threads would
  f(count / 2, count);
}

inline int64_t parts_at_once(int64_t, int64_t) { return 1; }

template <typename T>
T* scratch(KernelRuntimeContext& context, int64_t count) {
  size_t bytes = 0;
  if (scratch_left() >= 0 && scratch_left()-- == 0) return nullptr;
  if (count < 0 || __builtin_mul_overflow(size_t(count), sizeof(T), &bytes) || bytes > MOST_SCRATCH) return nullptr;
  // The end is exact, so that a sanitizer sees what is behind it; kernels ask for 64 bytes of alignment, and need none.
  context.memory.emplace_back(new uint8_t[bytes]);
  return reinterpret_cast<T*>(context.memory.back().get());
}

template <typename T>
const T* data(const Tensor& tensor) {
  return tensor.const_data_ptr<T>();
}
template <typename T>
T* data(Tensor& tensor) {
  return tensor.mutable_data_ptr<T>();
}
inline int64_t last(const Tensor& tensor) { return tensor.size(tensor.dim() - 1); }
inline int64_t rows(const Tensor& tensor) { return last(tensor) == 0 ? 0 : tensor.numel() / last(tensor); }
inline bool is_float(const Tensor& tensor) { return tensor.scalar_type() == ScalarType::Float; }

// Where calls are read from.
inline std::FILE*& source() {
  static std::FILE* file = stdin;
  return file;
}

inline void get(void* to, size_t size) {
  if (size && std::fread(to, size, 1, source()) != 1) std::exit(2);
}

template <typename T>
T get() {
  T value;
  get(&value, sizeof value);
  return value;
}

inline std::vector<Tensor>& seen() {
  static std::vector<Tensor> all;
  return all;
}

// What their memory held before the call.
inline std::vector<std::vector<uint8_t>>& given() {
  static std::vector<std::vector<uint8_t>> all;
  return all;
}

inline bool& some_share_memory() {
  static bool some = false;
  return some;
}

inline Tensor get_tensor(char kind) {
  Tensor tensor;
  if (kind == 'a') {
    tensor.bytes = seen()[get<int32_t>()].bytes;
    some_share_memory() = true;
  }
  tensor.type = ScalarType(get<int32_t>());
  tensor.shape.resize(get<int32_t>());
  for (int64_t& size : tensor.shape) size = get<int64_t>();
  tensor.order.resize(tensor.shape.size());
  get(tensor.order.data(), tensor.order.size());
  if (kind == 'a') return tensor;
  tensor.bytes = new std::vector<uint8_t>(tensor.nbytes());
  get(tensor.bytes->data(), tensor.bytes->size());
  seen().push_back(tensor);
  given().push_back(*tensor.bytes);
  return tensor;
}

template <typename T>
T get_many() {  // a string or a list
  T many(get<int32_t>(), {});
  get(many.data(), many.size() * sizeof many[0]);
  return many;
}

// What a call keeps of an argument; a string's characters have to outlive the view that the kernel gets.
template <typename T>
using Kept = std::conditional_t<std::is_same_v<std::decay_t<T>, std::string_view>, std::string, std::decay_t<T>>;

template <typename T>
Kept<T> argument() {
  using Value = Kept<T>;
  const char kind = get<char>();
  if constexpr (
      std::is_same_v<Value, std::vector<Tensor>> || std::is_same_v<Value, std::vector<std::optional<Tensor>>>
  ) {
    Value tensors(get<int32_t>());
    for (auto& each : tensors) each = argument<typename Value::value_type>();
    return tensors;
  } else if constexpr (std::is_same_v<Value, std::optional<Tensor>>) {
    return kind == 'n' ? Value{} : Value{get_tensor(kind)};
  } else if constexpr (std::is_same_v<Value, Tensor>) {
    return get_tensor(kind);
  } else if constexpr (std::is_same_v<Value, double>) {
    return get<double>();
  } else if constexpr (std::is_same_v<Value, std::optional<double>>) {
    return kind == 'n' ? Value{} : Value{get<double>()};
  } else if constexpr (std::is_same_v<Value, std::string> || std::is_same_v<Value, std::vector<int64_t>>) {
    return get_many<Value>();
  } else {
    return Value(get<int64_t>());
  }
}

// In the program's own file, which is compiled for any processor: keeps what the chosen instruction set offers. A call
// reads its arguments and runs; it returns the check that refused it, or null.
bool add_kernel(const char* instruction_set, const char* name, const char* (*call)());

template <typename R, typename... A>
const char* call_with_arguments(R (*kernel)(KernelRuntimeContext&, A...)) {
  KernelRuntimeContext context;
  std::tuple<Kept<A>...> values{argument<A>()...};
  std::apply([&](auto&... each) { kernel(context, each...); }, values);
  return context.refused;
}

}  // namespace hybridge

#define ET_KERNEL_CHECK(context, condition, error, result) \
  do {                                                     \
    if (!(condition)) {                                    \
      (context).refused = #error ": " #condition;          \
      return result;                                       \
    }                                                      \
  } while (false)
#define ET_KERNEL_CHECK_MSG(context, condition, error, result, ...) ET_KERNEL_CHECK(context, condition, error, result)
#define HYBRIDGE_KERNEL(NAME, FUNCTION)                                          \
  [[maybe_unused]] static const bool FUNCTION##_added = ::hybridge::add_kernel(  \
      INSTRUCTION_SET_NAME, NAME, +[] { return call_with_arguments(&FUNCTION); } \
  )
