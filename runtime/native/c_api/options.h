// Options of callers that may be compiled with another version of the header.
#ifndef HYBRIDGE_C_API_OPTIONS_H
#define HYBRIDGE_C_API_OPTIONS_H

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include <hybridge/hybridge_dev.h>

#include "engine/status.h"

namespace hybridge::c {

inline constexpr size_t USUAL_CHECKPOINT_BYTES = size_t{256} << 20;
inline constexpr size_t MOST_OPTIONS = 4096;  // bytes of a struct: a size above it is no size

// What a struct of options is: its name, its size in the first version that had one, and the defaults that are not 0.
template <typename Options>
struct OptionsOf;

template <>
struct OptionsOf<hybridge_sampling> {
  static constexpr const char* NAME = "hybridge_sampling";
  static constexpr size_t FIRST_SIZE = sizeof(hybridge_sampling);
  static void set(hybridge_sampling& options) {
    options.top_p = options.repetition_penalty = 1, options.repeat_last_n = -1;
    options.dry_base = 1.75, options.dry_allowed_length = 2;
  }
};

template <>
struct OptionsOf<hybridge_generation> {
  static constexpr const char* NAME = "hybridge_generation";
  static constexpr size_t FIRST_SIZE = sizeof(hybridge_generation);
  static void set(hybridge_generation& options) {
    options.max_new_tokens = 64, options.drafter = HYBRIDGE_AUTO_DRAFTER;
  }
};

template <>
struct OptionsOf<hybridge_dev_generation> {
  static constexpr const char* NAME = "hybridge_dev_generation";
  static constexpr size_t FIRST_SIZE = sizeof(hybridge_dev_generation);
  static void set(hybridge_dev_generation&) {}
};

template <>
struct OptionsOf<hybridge_chat_options> {
  static constexpr const char* NAME = "hybridge_chat_options";
  static constexpr size_t FIRST_SIZE = sizeof(hybridge_chat_options);
  static void set(hybridge_chat_options& options) { options.checkpoint_bytes = USUAL_CHECKPOINT_BYTES; }
};

template <>
struct OptionsOf<hybridge_program> {
  static constexpr const char* NAME = "hybridge_program";
  static constexpr size_t FIRST_SIZE = sizeof(hybridge_program);
  static void set(hybridge_program&) {}
};

template <typename Options>
Status other_size(size_t given) {
  using Of = OptionsOf<Options>;
  const std::string first = std::to_string(Of::FIRST_SIZE), known = std::to_string(sizeof(Options));
  return {
      HYBRIDGE_INVALID_ARGUMENT, std::string(Of::NAME) + " has a struct_size of " + std::to_string(given) +
                                     ", but this library knows " + (first == known ? known : first + " to " + known) +
                                     " bytes; set struct_size to sizeof(" + Of::NAME + ")"
  };
}

// Reads options: null stands for the defaults, and so does what an older struct does not have. A newer one is taken if
// what it has more is zero.
template <typename Options>
Result<Options> read_options(const Options* given) {
  Options read{};
  OptionsOf<Options>::set(read);
  read.struct_size = sizeof(Options);
  if (given == nullptr) return read;
  const size_t size = given->struct_size;
  if (size < OptionsOf<Options>::FIRST_SIZE || size > MOST_OPTIONS) return other_size<Options>(size);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  const bool has_more = size > sizeof(Options) &&
                        std::any_of(bytes + sizeof(Options), bytes + size, [](auto byte) { return byte != 0; });
  if (has_more) return other_size<Options>(size);
  std::memcpy(&read, given, std::min(size, sizeof(Options)));
  read.struct_size = sizeof(Options);
  return read;
}

// Fills a struct of the caller's with the defaults, and what it has more with zeros.
template <typename Options>
Status write_defaults(Options* options, size_t size) {
  if (size < OptionsOf<Options>::FIRST_SIZE || size > MOST_OPTIONS) return other_size<Options>(size);
  Options defaults{};
  OptionsOf<Options>::set(defaults);
  defaults.struct_size = size;
  std::memset(options, 0, size);
  std::memcpy(options, &defaults, std::min(size, sizeof(Options)));
  return {};
}

}  // namespace hybridge::c

#endif
