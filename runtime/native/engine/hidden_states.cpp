#include "engine/hidden_states.h"

namespace hybridge {

bool HiddenRows::fits(const ModelInfo& info, size_t length) const {
  if (floats.empty()) return true;
  const size_t most = info.has_drafter() ? std::min(length, static_cast<size_t>(info.verify_len())) : 0;
  return width > 0 && width % static_cast<size_t>(info.taps) == 0 && floats.size() % width == 0 &&
         floats.size() / width <= most;
}

void HiddenStates::keep(Reader reader) {
  const bool are_old = reader == Reader::nobody ? reader_ == Reader::caller : reader == Reader::caller && !is_kept_;
  if (are_old) unread_.clear();
  is_kept_ = reader != Reader::nobody;
  if (is_kept_) reader_ = reader;
}

Status HiddenStates::see(std::span<const Array> outputs, size_t count, bool goes_on) {
  if (!goes_on) last_.clear();
  const Array output = outputs.size() < 2 ? Array() : outputs[1];
  const float* first = output.real();
  if (first == nullptr || output.shape.size() != 3 || output.extent(1) < count) {
    return Status(
        HYBRIDGE_PROGRAM_FAILED, "the program gave no hidden states beside its logits, though it is to put them out"
    );
  }
  if (width_ != output.extent(2)) unread_.clear();
  width_ = output.extent(2);
  last_.insert(last_.end(), first, first + count * width_);
  return Status();
}

void HiddenStates::add(size_t count) {
  const size_t size = std::min(count * width_, last_.size());
  keep_after(std::span(last_).first(size));
}

void HiddenStates::add_last(size_t count) {
  const size_t size = std::min(count * width_, last_.size());
  keep_after(std::span(last_).last(size));
}

void HiddenStates::set_unread(const HiddenRows& rows) {
  unread_.clear();
  if (rows.floats.empty() || (is_kept_ && reader_ == Reader::caller) || (width_ > 0 && width_ != rows.width)) return;
  reader_ = Reader::drafter;
  unread_ = rows.floats;
  width_ = rows.width;
}

void HiddenStates::keep_last() {
  unread_.erase(unread_.begin(), unread_.end() - static_cast<ptrdiff_t>(std::min(width_, unread_.size())));
}

Floats HiddenStates::at(std::span<const float> rows, size_t row_width, std::span<const int64_t> places, size_t taps) {
  const size_t width = row_width / taps;
  Floats taken;
  taken.reserve(rows.size() / taps * places.size());
  for (size_t row = 0; row + row_width <= rows.size(); row += row_width) {
    for (const int64_t place : places) {
      const auto tapped = rows.subspan(row + static_cast<size_t>(place) * width, width);
      taken.insert(taken.end(), tapped.begin(), tapped.end());
    }
  }
  return taken;
}

void HiddenStates::keep_after(std::span<const float> rows) {
  if (is_kept_) unread_.insert(unread_.end(), rows.begin(), rows.end());
  else unread_.clear();
}

}  // namespace hybridge
