// Turns: sessions of one model run one after the other, in the order in which they asked.
#ifndef HYBRIDGE_C_API_TURN_H
#define HYBRIDGE_C_API_TURN_H

#include <condition_variable>
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
  bool try_lock();

  void lock();

  // Destroys what was left here, then lets the next one in.
  void unlock();

  // Destroys an object in this turn without waiting for it: at once, or when whoever has the turn unlocks it.
  void leave(std::shared_ptr<void> object);

  // The turns that this thread has.
  static std::vector<Turn*>& held();

 private:
  void take();

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

  void take(std::vector<std::shared_ptr<Turn>> turns);

  void take() override;

  void release() override;

 private:
  std::vector<std::shared_ptr<Turn>> wanted_;
  std::vector<Turn*> taken_;  // those that calls around this one do not have
};

}  // namespace hybridge::c

#endif
