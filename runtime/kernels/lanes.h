// Vectors of sixteen lanes, on processors whose registers have fewer too.
//
// g++ keeps a vector in registers only where one register holds all of it. Wider ones lie in memory, which every
// operation reads and writes, and it compares them number by number: attention with AVX2 took twelve times as long as
// with AVX-512. So a vector is one register, or two halves, each of which is a vector.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "instruction_set.h"

namespace hybridge::inline INSTRUCTION_SET {

// A loop whose index has to be a constant: arrays stay in registers only where each element has a name, so to speak.
// For a function's arguments and members to stay there the function has to be INLINE.
#define UNROLLED _Pragma("GCC unroll 16")
#define INLINE [[gnu::always_inline]] inline

constexpr int LANES = 16;

// Bytes of a register, and how many there are.
#if defined(__AVX512F__)
constexpr int REGISTER = 64, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int REGISTER = 32, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int REGISTER = 16, REGISTERS = 32;
#else
constexpr int REGISTER = 16, REGISTERS = 16;
#endif

template <typename Half>
struct Halves {
  Half low, high;

  // The same bits as numbers of another type.
  template <typename Other>
  INLINE explicit operator Halves<Other>() const {
    return {(Other)low, (Other)high};
  }
};

// `LANE` lanes of EACH numbers. Types are cut by lanes, not by bytes, so that the halves of all of them belong
// together.
template <typename T, int EACH, int LANE, bool IS_REGISTER = (LANE * sizeof(float) <= REGISTER)>
struct Vector {
  using type = Halves<typename Vector<T, EACH, LANE / 2>::type>;
};

template <typename T, int EACH, int LANE>
struct Vector<T, EACH, LANE, true> {
  typedef T type __attribute__((vector_size(LANE * EACH * sizeof(T))));
};

#if defined(__aarch64__)
using half = __fp16;
#else
using half = _Float16;
#endif

using f32x16 = Vector<float, 1, LANES>::type;
using i32x16 = Vector<int32_t, 1, LANES>::type;
using u32x16 = Vector<uint32_t, 1, LANES>::type;
using f16x16 = Vector<half, 1, LANES>::type;
using u8x64 = Vector<uint8_t, 4, LANES>::type;

// One register of each: for tiles of as many sums as there are registers.
constexpr int REGISTER_LANES = REGISTER / sizeof(float);
using f32xr = Vector<float, 1, REGISTER_LANES>::type;
using i32xr = Vector<int32_t, 1, REGISTER_LANES>::type;
using u32xr = Vector<uint32_t, 1, REGISTER_LANES>::type;
using f16xr = Vector<half, 1, REGISTER_LANES>::type;
using u8xr = Vector<uint8_t, 4, REGISTER_LANES>::type;
using u16x16 = Vector<uint16_t, 1, LANES>::type;

template <typename V>
constexpr bool IS_REGISTER = true;
template <typename H>
constexpr bool IS_REGISTER<Halves<H>> = false;

template <typename V>
struct NumberOf {
  using type = std::remove_cvref_t<decltype(V{}[0])>;
};
template <typename H>
struct NumberOf<Halves<H>> : NumberOf<H> {};

// f over registers: of the halves of some vectors, as halves.
template <typename F, typename V, typename... Others>
INLINE auto by_register(const F& f, V v, Others... others) {
  if constexpr (IS_REGISTER<V>) {
    return f(v, others...);
  } else {
    using Half = decltype(by_register(f, v.low, others.low...));
    return Halves<Half>{by_register(f, v.low, others.low...), by_register(f, v.high, others.high...)};
  }
}

#define HYBRIDGE_OPERATOR(op)                                                             \
  template <typename A, typename B>                                                       \
  INLINE auto operator op(const Halves<A>& a, const Halves<B>& b) {                       \
    return Halves<decltype(a.low op b.low)>{a.low op b.low, a.high op b.high};            \
  }                                                                                       \
  template <typename A, typename S, typename = std::enable_if_t<std::is_arithmetic_v<S>>> \
  INLINE auto operator op(const Halves<A>& a, S scalar) {                                 \
    const auto number = typename NumberOf<A>::type(scalar);                               \
    return Halves<decltype(a.low op number)>{a.low op number, a.high op number};          \
  }                                                                                       \
  template <typename A, typename S, typename = std::enable_if_t<std::is_arithmetic_v<S>>> \
  INLINE auto operator op(S scalar, const Halves<A>& a) {                                 \
    const auto number = typename NumberOf<A>::type(scalar);                               \
    return Halves<decltype(number op a.low)>{number op a.low, number op a.high};          \
  }
#define HYBRIDGE_ASSIGNMENT(op)                                   \
  template <typename A, typename B>                               \
  INLINE Halves<A>& operator op## = (Halves<A> & a, const B& b) { \
    return a = a op b;                                            \
  }
HYBRIDGE_OPERATOR(+)
HYBRIDGE_OPERATOR(-)
HYBRIDGE_OPERATOR(*)
HYBRIDGE_OPERATOR(/)
HYBRIDGE_OPERATOR(&)
HYBRIDGE_OPERATOR(^)
HYBRIDGE_OPERATOR(|)
HYBRIDGE_OPERATOR(<<)
HYBRIDGE_OPERATOR(>>)
HYBRIDGE_OPERATOR(<)
HYBRIDGE_OPERATOR(>)
HYBRIDGE_OPERATOR(>=)
HYBRIDGE_OPERATOR(==)
HYBRIDGE_ASSIGNMENT(+)
HYBRIDGE_ASSIGNMENT(-)
HYBRIDGE_ASSIGNMENT(*)
#undef HYBRIDGE_OPERATOR
#undef HYBRIDGE_ASSIGNMENT

template <typename H>
INLINE Halves<H> operator-(const Halves<H>& v) {
  return {-v.low, -v.high};
}

// By lanes: a where the mask, which a comparison makes, is set, else b.
template <typename M, typename V>
INLINE V select(M mask, V a, V b) {
  if constexpr (IS_REGISTER<V>) {
    return mask ? a : b;
  } else {
    return {select(mask.low, a.low, b.low), select(mask.high, a.high, b.high)};
  }
}

// Each number as one of another type.
template <typename To, typename V>
INLINE To convert(V v) {
  if constexpr (IS_REGISTER<V>) {
    return __builtin_convertvector(v, To);
  } else {
    return {convert<decltype(To::low)>(v.low), convert<decltype(To::high)>(v.high)};
  }
}

template <typename V, typename T>
INLINE V load(const T* from) {
  if constexpr (IS_REGISTER<V>) {
    V v;
    std::memcpy(&v, from, sizeof(V));
    return v;
  } else {
    using Half = decltype(V::low);
    return {load<Half>(from), load<Half>(reinterpret_cast<const uint8_t*>(from) + sizeof(Half))};
  }
}

template <typename V, typename T>
INLINE void store(T* to, V v) {
  if constexpr (IS_REGISTER<V>) {
    std::memcpy(to, &v, sizeof(V));
  } else {
    store(to, v.low);
    store(reinterpret_cast<uint8_t*>(to) + sizeof(v.low), v.high);
  }
}

template <typename V = f32x16>
INLINE V splat(float x) {
  return x - V{};  // not V{} + x, which is another number for a zero below zero: compilers would add
}

}  // namespace hybridge::inline INSTRUCTION_SET
