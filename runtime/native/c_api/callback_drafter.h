// A drafter that is the caller's function.
#ifndef HYBRIDGE_C_API_CALLBACK_DRAFTER_H
#define HYBRIDGE_C_API_CALLBACK_DRAFTER_H

#include <cstddef>
#include <cstdint>
#include <span>

#include <hybridge/hybridge.h>

#include "engine/drafter.h"
#include "engine/session.h"

#include "c_api/failure.h"

namespace hybridge::c {

class CallbackDrafter final : public Drafter {
 public:
  explicit CallbackDrafter(Session& session) : session_(session) {}

  // Calls this from now on.
  void call(const hybridge_generation& chosen, void* user) { chosen_ = chosen, user_ = user; }

  bool is_cheap() const override { return chosen_.is_cheap != 0; }

  Proposal propose(std::span<const int64_t> text, size_t limit, Sampler&) override;

 private:
  Session& session_;
  hybridge_generation chosen_{};
  void* user_ = nullptr;
};

}  // namespace hybridge::c

#endif
