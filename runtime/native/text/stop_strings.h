// Ends a text before the first of some strings.
#ifndef HYBRIDGE_NATIVE_TEXT_STOP_STRINGS_H
#define HYBRIDGE_NATIVE_TEXT_STOP_STRINGS_H

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hybridge::text {

// Holds back a text that may begin one of the strings, until more has come.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings = {}) : strings_(std::move(strings)) {}

  // Adds a string, which is not empty.
  void add(std::string_view string) { strings_.emplace_back(string); }

  // Whether one of them was complete: what comes then is left out.
  bool is_complete() const { return is_complete_; }

  // Returns what is certain to be in the text, of what was held back and of a further piece.
  std::string push(std::string_view piece) {
    if (is_complete_) return "";
    held_ += piece;
    // The string that is complete first wins, however the text is cut into pieces.
    size_t first_end = held_.npos, begin = held_.npos;
    for (const std::string& each : strings_) {
      const size_t at = held_.find(each);
      if (at == held_.npos || std::pair(at + each.size(), at) >= std::pair(first_end, begin)) continue;
      first_end = at + each.size();
      begin = at;
    }
    is_complete_ = begin != held_.npos;
    const size_t certain = is_complete_ ? begin : held_.size() - begun();
    const std::string released = held_.substr(0, certain);
    held_.erase(0, certain);
    return released;
  }

  // What is held back: once a string is complete, all from it on.
  std::string_view held() const { return held_; }

  // Returns what is still held back: it ends the text, or begins no string because of what comes next.
  std::string finish() { return is_complete_ ? "" : std::exchange(held_, ""); }

 private:
  // The number of bytes at the end that may begin one of the strings.
  size_t begun() const {
    size_t longest = 0;
    for (const std::string& each : strings_) {
      for (size_t size = std::min(each.size() - 1, held_.size()); size > longest; size--) {
        if (each.starts_with(std::string_view(held_).substr(held_.size() - size))) longest = size;
      }
    }
    return longest;
  }

  std::vector<std::string> strings_;
  std::string held_;
  bool is_complete_ = false;
};

}  // namespace hybridge::text

#endif
