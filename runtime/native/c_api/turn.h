// Turns: sessions of one model run one after the other, in the order in which they asked.
#ifndef HYBRIDGE_NATIVE_C_API_TURN_H
#define HYBRIDGE_NATIVE_C_API_TURN_H

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/speculative.h"

namespace hybridge::c {

// A lock that goes to whoever has waited longest. A thread locks it once: `InTurn` knows which ones it has.
class Turn {
 public:
  bool try_lock() {
    const std::lock_guard lock(mutex_);
    if (is_taken_ || served_ != asked_) return false;
    take();
    return true;
  }

  void lock() {
    std::unique_lock lock(mutex_);
    const uint64_t ticket = asked_++;
    changed_.wait(lock, [&] { return !is_taken_ && served_ == ticket; });
    ++served_;
    take();
  }

  // Destroys what was left here, then lets the next one in.
  void unlock() {
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

  // Destroys an object in this turn without waiting for it: at once, or when whoever has the turn unlocks it.
  void leave(std::shared_ptr<void> object) {
    {
      const std::lock_guard lock(mutex_);
      left_.push_back(std::move(object));
    }
    if (try_lock()) unlock();
  }

  // The turns that this thread has.
  static std::vector<Turn*>& held() {
    thread_local std::vector<Turn*> turns;
    return turns;
  }

 private:
  void take() {
    is_taken_ = true;
    held().push_back(this);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_taken_ = false;
  uint64_t asked_ = 0, served_ = 0;  // tickets given to those who wait, and those that came
  std::vector<std::shared_ptr<void>> left_;
};

// The turns of one call: of its model and of its draft model.
//
// A call that is made in another call's callback may need further turns. Two threads that each have one and wait for
// the other's would wait for ever, so a thread that must wait gives away all turns that it has, and takes them again in
// one order for all.
class InTurn final : public Turns {
 public:
  InTurn() = default;
  explicit InTurn(std::vector<std::shared_ptr<Turn>> turns) { take(std::move(turns)); }
  ~InTurn() override { release(); }

  InTurn(const InTurn&) = delete;
  InTurn& operator=(const InTurn&) = delete;

  void take(std::vector<std::shared_ptr<Turn>> turns) {
    release();
    wanted_ = std::move(turns);
    taken_.reserve(wanted_.size());
    take();
  }

  void take() override {
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

  void release() override {
    for (Turn* each : taken_) each->unlock();
    taken_.clear();
  }

 private:
  std::vector<std::shared_ptr<Turn>> wanted_;
  std::vector<Turn*> taken_;  // those that calls around this one do not have
};

}  // namespace hybridge::c

#endif
