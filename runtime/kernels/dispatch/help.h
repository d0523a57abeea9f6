// Decides whether other threads help with a kernel's job, by what such jobs took with and without them.
//
// Two processors of a machine may be two threads of one core, or wait for the same memory: what they share is then
// slower with both than with one. That differs between kernels and sizes and changes with the machine's other work, so
// each kind of job is measured both ways at first, and again every few thousand jobs.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace hybridge {

class HelpPolicy {
 public:
  using Piece = void (*)(void*, int64_t);

  // Jobs of one function and of about the same cost.
  struct Kind {
    Piece piece = nullptr;
    int bucket = 0;
    // By whether it was helped: nanoseconds for a unit of cost, and how many jobs were measured.
    float pace[2] = {};
    uint32_t measured[2] = {};

    bool prefers_help() const { return pace[1] <= pace[0]; }
  };

  // kind null: jobs that are not measured, because there are too many kinds.
  struct Choice {
    Kind* kind;
    bool helped;
  };

  Choice choose(Piece piece, int64_t cost) {
    Kind* kind = find(piece, cost);
    if (kind == nullptr) return {nullptr, true};
    if (std::min(kind->measured[0], kind->measured[1]) < ENOUGH) return {kind, kind->measured[1] <= kind->measured[0]};
    return {kind, kind->prefers_help() != trying_};
  }

  void done(const Choice& choice, int64_t cost, int64_t nanoseconds) {
    if (choice.kind == nullptr) return;
    const float pace = float(nanoseconds) / float(std::max<int64_t>(cost, 1));
    if (trying_) {
      tried_ += float(nanoseconds);
      expected_ += choice.kind->pace[!choice.helped] * float(cost);
    }
    learn(*choice.kind, choice.helped, pace);
    if (--left_ == 0) turn();
  }

 private:
  static constexpr uint32_t
      ENOUGH = 5;  // jobs each way before a kind's choice is made; the first each way is not counted
  static constexpr int64_t TRIAL = 64, BETWEEN = 16 * TRIAL;  // jobs of a trial, and at least as many between two
  static constexpr float LOSS = 0.01f;                        // of all time at most, for trials that turn out slower

  void learn(Kind& kind, bool helped, float pace) {
    float& known = kind.pace[helped];
    // The first job fetches its weights or wakes a thread. Later ones are cut: another process may have had the
    // processor.
    if (kind.measured[helped]++ < 2) known = pace;
    else known += (std::min(pace, 2 * known) - known) / 8;
  }

  // Begins or ends a trial, in which each kind runs the way that it does not prefer.
  void turn() {
    trying_ = !trying_;
    left_ = TRIAL;
    if (!trying_) {
      const float slower = expected_ > 0 ? tried_ / expected_ - 1 : 0;
      left_ = std::max(BETWEEN, int64_t(float(TRIAL) * std::min(slower, 100.0f) / LOSS));
    }
    tried_ = expected_ = 0;
  }

  Kind* find(Piece piece, int64_t cost) {
    const int bucket = std::bit_width(uint64_t(std::max<int64_t>(cost, 1)));
    const size_t start = (reinterpret_cast<uintptr_t>(piece) >> 4) * 31 + size_t(bucket);
    for (size_t i = 0; i < kinds_.size(); ++i) {
      Kind& kind = kinds_[(start + i) % kinds_.size()];
      if (kind.piece == nullptr) kind = {piece, bucket, {}, {}};
      if (kind.piece == piece && kind.bucket == bucket) return &kind;
    }
    return nullptr;
  }

  std::array<Kind, 256> kinds_ = {};
  bool trying_ = false;
  int64_t left_ = BETWEEN;
  float tried_ = 0, expected_ = 0;  // nanoseconds of the jobs of a trial, and what they would have taken the other way
};

}  // namespace hybridge
