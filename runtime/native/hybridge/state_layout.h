// The numbers of a state that methods go by without looking again: where they lie in its bytes, and what they may be.
#ifndef HYBRIDGE_NATIVE_STATE_LAYOUT_H
#define HYBRIDGE_NATIVE_STATE_LAYOUT_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <hybridge/methods.h>
#include <hybridge/model.h>
#include <hybridge/state_file.h>

namespace hybridge {

class StateLayout {
 public:
  explicit StateLayout(Methods& methods) {
    const auto state = methods.state();
    for (const std::string& name : methods.buffer_names("decode")) {
      const auto buffer = methods.buffer("decode", name);
      if (buffer.begin() < state.begin() || buffer.end() > state.end()) continue;
      places_.emplace(name, Place{static_cast<size_t>(buffer.begin() - state.begin()), buffer.size()});
    }
  }

  // Whether the program has what a saved state is checked by.
  bool is_whole() const { return places_.contains(LENGTH) && places_.contains(SLOT_LENGTHS) && places_.contains(OPERATIONS); }

  // Where the length lies in the memory of `methods`; nowhere in a program without one.
  const uint8_t* length(const Methods& methods) const {
    const auto found = places_.find(LENGTH);
    return found == places_.end() ? nullptr : methods.state().begin() + found->second.offset;
  }

  // Gives the state a length, and empties its slots.
  void set_length(const Methods& methods, int64_t length) const {
    uint8_t* state = methods.state().begin();
    std::memcpy(state + places_.at(LENGTH).offset, &length, sizeof(length));
    const auto& slots = places_.at(SLOT_LENGTHS);
    std::memset(state + slots.offset, -1, slots.size);
  }

  // Whether a program could have left this, of as many bytes as its own state. Other numbers index nothing: wrong ones give
  // wrong logits.
  bool allows(const SavedState& saved, const Facts& facts) const {
    const auto is_text = [&](const auto& text) {
      const auto known = [&](int64_t token) { return 0 <= token && token < facts.vocab_size; };
      return text.size() <= static_cast<size_t>(facts.max_seq_len) && std::all_of(text.begin(), text.end(), known);
    };
    const std::vector<int64_t> operations = numbers<int64_t>(saved, OPERATIONS);
    return std::all_of(saved.texts.begin(), saved.texts.end(), is_text) &&
           numbers<int64_t>(saved, LENGTH) == std::vector{length_of(saved.texts.front())} && allows_slots(saved) &&
           operations.size() == 1 && 0 <= operations[0] && operations[0] < MOST_OPERATIONS && allows_drafted(saved, facts);
  }

 private:
  struct Place {
    size_t offset, size;
  };

  static constexpr const char* LENGTH = "state.cache.length";
  static constexpr const char* SLOT_LENGTHS = "state.cache.slot_length";
  static constexpr const char* OPERATIONS = "state.cache.operations";
  static constexpr const char* DRAFTED = ".drafted_length";
  static constexpr int64_t MOST_OPERATIONS = int64_t(1) << 62;

  static int64_t length_of(const std::vector<int64_t>& text) { return static_cast<int64_t>(text.size()); }

  // A slot of length -1 keeps nothing; the others keep their texts, which stand behind the state's own.
  bool allows_slots(const SavedState& saved) const {
    const std::vector<int64_t> lengths = numbers<int64_t>(saved, SLOT_LENGTHS);
    for (size_t i = 0; i < lengths.size(); ++i) {
      const bool is_kept = i + 1 < saved.texts.size() && lengths[i] == length_of(saved.texts[i + 1]);
      if (lengths[i] != -1 && !is_kept) return false;
    }
    return true;
  }

  // What a drafter has read, a number that is kept as float32; in a slot that keeps nothing it may be anything.
  bool allows_drafted(const SavedState& saved, const Facts& facts) const {
    const auto is_length = [&](float value) {
      return value >= 0 && value <= static_cast<float>(facts.max_seq_len) && std::floor(value) == value;
    };
    const std::vector<int64_t> slots = numbers<int64_t>(saved, SLOT_LENGTHS);
    for (const auto& [name, place] : places_) {
      if (!name.ends_with(DRAFTED)) continue;
      const auto own = numbers<float>(saved, name), kept = numbers<float>(saved, name + "_slots");
      if (!std::all_of(own.begin(), own.end(), is_length)) return false;
      for (size_t i = 0; i < std::min(kept.size(), slots.size()); ++i) {
        if (slots[i] != -1 && !is_length(kept[i])) return false;
      }
    }
    return true;
  }

  template <typename T>
  std::vector<T> numbers(const SavedState& saved, const std::string& name) const {
    const auto found = places_.find(name);
    if (found == places_.end()) return {};
    std::vector<T> values(found->second.size / sizeof(T));
    std::memcpy(values.data(), saved.bytes.data() + found->second.offset, values.size() * sizeof(T));
    return values;
  }

  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace hybridge

#endif
