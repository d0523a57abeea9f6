// The numbers of a state that methods go by without looking again: where they lie in its bytes, and what they may be.
#ifndef HYBRIDGE_NATIVE_STATE_LAYOUT_H
#define HYBRIDGE_NATIVE_STATE_LAYOUT_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <hybridge/program.h>
#include <hybridge/state_file.h>

namespace hybridge {

class StateLayout {
 public:
  StateLayout(Program& program, const Facts& facts) : facts_(facts) {
    const auto memory = program.memory();
    for (const std::string& name : program.names()) {
      const auto bytes = program.bytes(name);
      size_t before = 0;
      for (const Bytes& piece : memory) {
        const bool is_in = piece.data() <= bytes.data() && bytes.data() + bytes.size() <= piece.data() + piece.size();
        if (is_in && !bytes.empty()) places_.emplace(name, Place{before + static_cast<size_t>(bytes.data() - piece.data()), bytes.size()});
        before += piece.size();
      }
      size_ = before;
    }
  }

  // Bytes of the whole state.
  size_t size() const { return size_; }

  // Returns whether the program has the buffers that a saved state is checked by.
  bool is_whole() const {
    const auto slots = slot_names();
    const auto has = [this](const std::string& name) { return places_.contains(name); };
    return has(LENGTH) && has(OPERATIONS) && std::all_of(slots.begin(), slots.end(), has);
  }

  // Gives the state a length, and empties its slots.
  void set_length(Program& program, int64_t length) const {
    if (int64_t* own = program.number(LENGTH)) *own = length;
    for (const std::string& name : slot_names()) {
      const auto bytes = program.bytes(name);
      std::memset(bytes.data(), -1, bytes.size());
    }
  }

  // Returns whether a program could have left this state. Other numbers index nothing: wrong ones give wrong logits.
  bool allows(const SavedState& saved) const {
    const auto is_text = [&](const auto& text) {
      const auto known = [&](int64_t id) { return facts_.is_id(id); };
      return text.size() <= static_cast<size_t>(facts_.max_seq_len) && std::all_of(text.begin(), text.end(), known);
    };
    const std::vector<int64_t> operations = numbers<int64_t>(saved, OPERATIONS);
    return std::all_of(saved.texts.begin(), saved.texts.end(), is_text) &&
           numbers<int64_t>(saved, LENGTH) == std::vector{length_of(saved.texts.front())} && allows_slots(saved) &&
           operations.size() == 1 && 0 <= operations[0] && operations[0] < MOST_OPERATIONS && allows_drafted(saved) &&
           allows_rope_deltas(saved);
  }

  // Returns whether a drafter can have read this number of tokens, stored as float32, of a text of at most `longest`.
  static bool is_drafted(float value, size_t longest) {
    return value >= 0 && value <= static_cast<float>(longest) && std::floor(value) == value;
  }

  // Returns whether the buffer of this name counts how far rope positions are behind the length.
  static bool is_rope_delta(std::string_view name) { return name.ends_with(".rope_delta"); }

 private:
  struct Place {
    size_t offset, size;
  };

  static constexpr const char* LENGTH = "length";
  static constexpr const char* SLOT_LENGTHS = "slot_length";
  static constexpr const char* OPERATIONS = "operations";
  static constexpr const char* DRAFTED = ".drafted_length";
  static constexpr int64_t MOST_OPERATIONS = int64_t(1) << 62;

  static int64_t length_of(const std::vector<int64_t>& text) { return static_cast<int64_t>(text.size()); }

  // The buffers that have the slots' lengths: one for all of them, or one for each; none without slots.
  Names slot_names() const {
    if (places_.contains(SLOT_LENGTHS)) return {SLOT_LENGTHS};
    Names names;
    for (int64_t slot = 0; slot < facts_.snapshot_slots; ++slot) names.push_back("slots." + std::to_string(slot) + ".length");
    return names;
  }

  std::vector<int64_t> slot_lengths(const SavedState& saved) const {
    std::vector<int64_t> lengths;
    for (const std::string& name : slot_names()) {
      const auto own = numbers<int64_t>(saved, name);
      lengths.insert(lengths.end(), own.begin(), own.end());
    }
    return lengths;
  }

  // A slot of length -1 keeps nothing; the others keep their texts, which stand behind the state's own.
  bool allows_slots(const SavedState& saved) const {
    const std::vector<int64_t> lengths = slot_lengths(saved);
    for (size_t i = 0; i < lengths.size(); ++i) {
      const bool is_kept = i + 1 < saved.texts.size() && lengths[i] == length_of(saved.texts[i + 1]);
      if (lengths[i] != -1 && !is_kept) return false;
    }
    return true;
  }

  // In a slot that keeps nothing it may be anything.
  bool allows_drafted(const SavedState& saved) const {
    const auto is_length = [&](float value) { return is_drafted(value, static_cast<size_t>(facts_.max_seq_len)); };
    const std::vector<int64_t> slots = slot_lengths(saved);
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

  // Rope positions are behind the length, and never before the text.
  bool allows_rope_deltas(const SavedState& saved) const {
    const std::vector<int64_t> slots = slot_lengths(saved);
    for (const auto& [name, place] : places_) {
      if (!is_rope_delta(name)) continue;
      const auto own = numbers<float>(saved, name), kept = numbers<float>(saved, name + "_slots");
      if (own.size() != 1 || !is_drafted(-own[0], saved.texts.front().size())) return false;
      for (size_t i = 0; i < std::min(kept.size(), slots.size()); ++i) {
        if (slots[i] != -1 && !is_drafted(-kept[i], static_cast<size_t>(slots[i]))) return false;
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

  const Facts& facts_;
  size_t size_ = 0;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace hybridge

#endif
