#include "engine/program.h"

namespace hybridge {

Bytes Program::bytes(const std::string& name) {
  const auto found = buffer(name);
  return found.ok() ? found->bytes() : Bytes();
}

int64_t* Program::number(const std::string& name) {
  const auto found = buffer(name);
  return found.ok() && found->count() == 1 ? found->integer() : nullptr;
}

Result<std::shared_ptr<const Picture>> Model::picture(std::span<const uint8_t> rgb, size_t width, size_t height) const {
  if (!info_.encoder) {
    return Status(HYBRIDGE_INVALID_PICTURE, "this model takes no pictures: its artifact has the text model alone");
  }
  return pictures_.add(HYBRIDGE_TRY(Picture::create(*info_.encoder, rgb, width, height)));
}

Names Model::methods() const {
  Names names = {"prefill", "decode", "verify", "commit", "reset"};
  for (const int64_t length : info_.verify_lens) {
    if (length < info_.verify_len()) names.push_back("verify_" + std::to_string(length));
  }
  for (const int64_t block : info_.draft_blocks) {
    names.push_back(block < info_.draft_blocks.back() ? "draft_" + std::to_string(block) : "draft");
  }
  if (info_.has_drafter()) names.push_back("draft_prefill");
  if (info_.snapshot_slots > 0) names.insert(names.end(), {"snapshot", "restore"});
  if (info_.encoder) {
    for (const int64_t tokens : info_.encoder->budgets) names.push_back(Picture::encoding(*info_.encoder, tokens));
    names.push_back("prefill_embeddings");
  }
  return names;
}

}  // namespace hybridge
