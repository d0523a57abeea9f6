#include "c_api/open_session.h"

namespace hybridge::c {

std::shared_ptr<Turn> turn_of(uint64_t fingerprint) {
  static auto& mutex = *new std::mutex;
  static auto& turns = *new std::map<uint64_t, std::weak_ptr<Turn>>;
  const std::lock_guard lock(mutex);
  std::erase_if(turns, [](const auto& each) { return each.second.expired(); });
  auto turn = turns[fingerprint].lock();
  if (turn == nullptr) turns[fingerprint] = turn = std::make_shared<Turn>();
  return turn;
}

OpenModel::OpenModel(std::shared_ptr<const Model> opened)
    : model(std::move(opened)), turn(turn_of(model->fingerprint())), max_seq_len(model->info().max_seq_len) {}

Result<std::unique_ptr<Session>> OpenModel::session() const {
  return Session::create(model, max_seq_len, {delegate_from, strict_reuse});
}

std::shared_ptr<const PictureProcessor> OpenModel::pictures() const {
  const std::lock_guard lock(mutex_);
  return pictures_;
}

void OpenModel::prepare_by(std::shared_ptr<const PictureProcessor> pictures) {
  const std::lock_guard lock(mutex_);
  pictures_ = std::move(pictures);
}

OpenSession::~OpenSession() {
  generator.reset();
  own_drafter.reset();
  callback_drafters.clear();
  drop_draft_model();
  model->turn->leave(std::move(session));
}

hybridge_status OpenSession::enter(bool changes) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return refused(HYBRIDGE_INVALID_HANDLE);
  if (is_busy_) return refused(HYBRIDGE_BUSY, "the session is in another call; use it from one thread at a time");
  is_busy_ = true;
  if (changes || generator == nullptr) cancelled = false;
  return HYBRIDGE_OK;
}

void OpenSession::leave() {
  turn.release();
  const std::lock_guard lock(mutex_);
  is_busy_ = false;
}

void OpenSession::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled = true;
}

void OpenSession::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
}

void OpenSession::stop_generation() {
  if (generator == nullptr) return;
  generator.reset();
  if (own_drafter) own_drafter->listen(false);
}

void OpenSession::drop_draft_model() {
  if (model_drafter != nullptr) draft_model->turn->leave(std::move(model_drafter));
}

}  // namespace hybridge::c
