#include "c_api/turn.h"

#include <algorithm>
#include <cstddef>

namespace hybridge::c {

bool Turn::try_lock() {
  const std::lock_guard lock(mutex_);
  if (is_taken_ || served_ != asked_) return false;
  take();
  return true;
}

void Turn::lock() {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = asked_++;
  changed_.wait(lock, [&] { return !is_taken_ && served_ == ticket; });
  ++served_;
  take();
}

void Turn::unlock() {
  std::unique_lock lock(mutex_);
  while (!left_.empty()) {
    auto objects = std::exchange(left_, {});
    lock.unlock();
    objects.clear();
    lock.lock();
  }
  is_taken_ = false;
  std::erase(held(), this);
  if (served_ != asked_) changed_.notify_all();
}

void Turn::leave(std::shared_ptr<void> object) {
  {
    const std::lock_guard lock(mutex_);
    left_.push_back(std::move(object));
  }
  if (try_lock()) unlock();
}

std::vector<Turn*>& Turn::held() {
  thread_local std::vector<Turn*> turns;
  return turns;
}

void Turn::take() {
  is_taken_ = true;
  held().push_back(this);
}

void InTurn::take(std::vector<std::shared_ptr<Turn>> turns) {
  release();
  wanted_ = std::move(turns);
  taken_.reserve(wanted_.size());
  take();
}

void InTurn::take() {
  if (!taken_.empty()) return;
  std::vector<Turn*>& held = Turn::held();
  std::vector<Turn*> all = held;
  for (const auto& each : wanted_) {
    if (std::ranges::find(all, each.get()) != all.end()) continue;
    all.push_back(each.get());
    taken_.push_back(each.get());
  }
  held.reserve(all.size());
  size_t count = 0;
  while (count < taken_.size() && taken_[count]->try_lock()) ++count;
  if (count == taken_.size()) return;
  while (!held.empty()) held.back()->unlock();
  std::ranges::sort(all);
  for (Turn* each : all) each->lock();
}

void InTurn::release() {
  for (Turn* each : taken_) each->unlock();
  taken_.clear();
}

}  // namespace hybridge::c
