#include "engine/session.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "engine/runtime.h"

namespace hybridge {

namespace {

constexpr size_t MUCH = 2 << 20;  // bytes of rows: to give them back and write them again took 1.3 ms on a server

Status not_whole() {
  return Status(
      HYBRIDGE_INVALID_PICTURE,
      "the text has rows of a picture that is closed, or not all of a picture's rows; open the picture "
      "again, and give all of its ids together"
  );
}

Status broken_state() {
  return Status(
      HYBRIDGE_BROKEN_STATE,
      "a call failed in the middle and left a state that is neither the old nor the new one; reset the "
      "session, or restore, resume or load a state"
  );
}

Status cancelled_status() { return Status(HYBRIDGE_CANCELLED, "it was cancelled before its first token"); }

Status changed_file() {
  return Status(
      HYBRIDGE_INVALID_ARTIFACT, "the program's file was changed after it was opened; open the artifact again"
  );
}

Status other_reader() {
  return Status(
      HYBRIDGE_UNSUPPORTED,
      "the kept text was read by another method, the delegate or the CPU's, than would read it now, and this session "
      "reuses strictly; read the text again, or open the session without strict reuse"
  );
}

Status wrong_answer(const std::string& method) {
  return Status(
      HYBRIDGE_PROGRAM_FAILED, "the program failed in '" + method +
                                   "': it refused what fits, or its answer or its state is another "
                                   "than it must be; reset the session, or open the artifact again"
  );
}

// Largest error of a delegate's logits on a first prompt, in lengths of the vector of the CPU's: weights of 4 bits have
// a third of it, and a wrong device or library more than all of it.
constexpr double FURTHEST_DELEGATE = 0.6;

bool is_near(std::span<const float> found, std::span<const float> expected) {
  double error = 0, whole = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double wanted = expected[i], difference = found[i] - wanted;
    error += difference * difference, whole += wanted * wanted;
  }
  return found.size() == expected.size() && error <= FURTHEST_DELEGATE * FURTHEST_DELEGATE * whole;
}

Numbers padded(Tokens tokens, int64_t size) {
  Numbers row(tokens.begin(), tokens.end());
  row.resize(static_cast<size_t>(size), 0);
  return row;
}

}  // namespace

template <typename Answer, typename Run>
Answer Session::with_drafter(Run run) {
  bool has_failed = false;
  Answer answer = run([&](const std::string& name, std::initializer_list<Array> inputs) {
    auto outputs = call_changing_state(name, inputs);
    has_failed = has_failed || !outputs.ok();
    return outputs;
  });
  if (!has_failed) is_broken_ = false;
  // Slots and checkpoints count rows of the drafter, of which some may be others now.
  if (is_broken_) layout_.empty_slots([](int64_t) { return true; }), checkpoints_.go_back(0);
  return answer;
}

Result<std::unique_ptr<Session>> Session::create(
    std::shared_ptr<const Model> model, int64_t max_seq_len, DelegateUse delegate_use
) {
  auto program = model->program();
  if (!program.ok()) return program.status();
  RowBuffers rows = HYBRIDGE_TRY(RowBuffers::find(**program, model->info()));
  std::unique_ptr<Session> session(
      new Session(std::move(model), std::move(*program), std::move(rows), max_seq_len, delegate_use)
  );
  if (!session->layout_.is_whole()) {
    return Status(
        HYBRIDGE_INVALID_ARTIFACT, "the program has no length, count of operations or slots; export the model again"
    );
  }
  HYBRIDGE_TRY(session->reset());  // a slot that was never filled is one that was emptied
  session->prompts_read_.delegate = session->program_->delegate();
  if (session->prompts_read_.delegate.ok() && session->info().delegate_from > 0) session->probe_delegate();
  if (session->is_broken_) HYBRIDGE_TRY(session->reset());
  return session;
}

Tokens Session::slot(int64_t number) const {
  return has_slot(number) ? Tokens(slots_[static_cast<size_t>(number)].tokens) : Tokens();
}

Result<Logits> Session::prefill(Tokens tokens, const std::atomic<bool>* cancelled, const OnRead& on_read) {
  if (is_broken_) return broken_state();
  const std::vector<Piece> parts = HYBRIDGE_TRY(to_pieces(tokens));
  if (cancelled != nullptr && *cancelled) return cancelled_status();
  for (const Piece& part : parts) HYBRIDGE_TRY(encode(part));
  const std::vector<Piece> pieces = to_chunks(parts);
  const int64_t count = static_cast<int64_t>(tokens.size());
  const bool is_part = prompt_.begin <= length() && length() + count <= prompt_.end;
  by_delegate_ = (is_part ? prompt_.end - prompt_.begin : count) >= delegate_from();
  const int64_t delegated = prompts_read_.delegate_tokens;
  auto logits = pieces.size() == 1 ? extend_or_reset(pieces.front()) : extend_all(pieces, cancelled, on_read);
  if (logits.ok()) prompts_read_.cpu_tokens += count - (prompts_read_.delegate_tokens - delegated);
  else prompts_read_.delegate_tokens = delegated;
  return logits;
}

Result<Logits> Session::extend_all(
    const std::vector<Piece>& pieces, const std::atomic<bool>* cancelled, const OnRead& on_read
) {
  const auto before = copy_bounded();
  // A caller's program may throw, and then nobody rolls back.
  struct Unfinished {
    bool &is_broken, was_left = true;
    ~Unfinished() { is_broken = is_broken || was_left; }
  } unfinished{is_broken_};
  auto logits = extend_in_order(pieces, cancelled, on_read);
  if (!logits.ok()) roll_back(before);
  unfinished.was_left = false;
  return logits;
}

Result<Logits> Session::decode(int64_t token) {
  if (is_broken_) return broken_state();
  HYBRIDGE_TRY(check({&token, 1}));
  return extend_or_reset({{&token, 1}});
}

Result<Logits> Session::verify(Tokens tokens) {
  if (is_broken_) return broken_state();
  HYBRIDGE_TRY(check(tokens));
  const int64_t count = static_cast<int64_t>(tokens.size());
  if (count > info().verify_len()) {
    return Status(
        HYBRIDGE_INVALID_TOKEN, "verify takes at most " + std::to_string(info().verify_len()) + " tokens, got " +
                                    std::to_string(count) + "; export with a larger --verify-len"
    );
  }
  return stage(tokens, false);
}

Result<int64_t> Session::commit(int64_t count) {
  if (is_broken_) return broken_state();
  if (staged_.empty()) {
    return Status(
        HYBRIDGE_INVALID_COMMIT, "there is no verified block: call verify first, and commit before anything else"
    );
  }
  if (count < 0 || count > static_cast<int64_t>(staged_.size())) {
    const std::string block = std::to_string(staged_.size());
    return Status(
        HYBRIDGE_INVALID_COMMIT,
        "the verified block has " + block + " tokens, so commit takes 0 to " + block + ", not " + std::to_string(count)
    );
  }
  HYBRIDGE_TRY(move_state("commit", count, length() + count));
  const auto block = std::exchange(staged_, {});
  text_.insert(text_.end(), block.begin(), block.begin() + count);
  hidden_.add(static_cast<size_t>(count));
  return length();
}

size_t Session::hidden_width() const {
  if (hidden_.width() > 0 || !info().has_drafter()) return hidden_.width();
  const size_t read = static_cast<size_t>(info().verify_len()) * info().draft_taps.size();
  return program_->input_count("draft", 0) / read * static_cast<size_t>(info().taps);
}

void Session::keep_hidden(bool wanted) {
  hidden_.keep(wanted && info().taps > 0 ? HiddenStates::Reader::caller : HiddenStates::Reader::nobody);
}

void Session::keep_for_drafter(bool reads_ahead) {
  hidden_.keep(info().has_drafter() ? HiddenStates::Reader::drafter : HiddenStates::Reader::nobody);
  reads_ahead_ = reads_ahead;
}

Result<Drafted> Session::draft(int64_t next, size_t limit, const std::optional<Draws>& draws) {
  if (is_broken_) return broken_state();
  const size_t pairs = hidden_.count();
  HYBRIDGE_TRY(check_drafting({&next, 1}, limit));
  if (pairs == 0) return Drafted();
  std::vector<int64_t> following(text_.end() - static_cast<ptrdiff_t>(pairs) + 1, text_.end());
  following.push_back(next);  // rows of pictures become placeholders below
  const Floats rows(hidden_.unread().begin(), hidden_.unread().end());
  hidden_.clear();
  return draft(rows, following, limit, draws);
}

Result<Drafted> Session::draft(
    std::span<const float> rows, Tokens following, size_t limit, const std::optional<Draws>& draws
) {
  if (is_broken_) return broken_state();
  const Numbers tokens = without_pictures(following);
  HYBRIDGE_TRY(check_drafting(tokens, limit));
  const size_t width = rows.size() / following.size();
  const auto taps = static_cast<size_t>(info().taps);
  const size_t wanted = hidden_width();
  const bool has_width = width > 0 && width % taps == 0 && rows.size() % following.size() == 0;
  if (!has_width || (wanted > 0 && width != wanted)) {
    return Status(
        HYBRIDGE_INVALID_DRAFTER, "the hidden states have " + std::to_string(width) +
                                      " numbers for each token, and this model's have " +
                                      (wanted > 0 ? std::to_string(wanted) : "a multiple of " + std::to_string(taps))
    );
  }
  const Floats read = HiddenStates::at(rows, width, info().draft_taps, taps);
  if (hidden_.reader() == HiddenStates::Reader::drafter) hidden_.clear();
  return with_drafter<Result<Drafted>>([&](const CallMethod& call) {
    return hybridge::draft(info(), call, read, tokens, limit, draws);
  });
}

Result<int64_t> Session::snapshot(int64_t slot) {
  if (is_broken_) return broken_state();
  HYBRIDGE_TRY(check_slot(slot));
  HYBRIDGE_TRY(read_ahead());
  KeptText& in_slot = slots_[static_cast<size_t>(slot)];
  KeptText text = {text_, unread(), delegated_};
  has_slots_ = true;
  const int64_t before = operations();
  auto moved = move_state("snapshot", slot, length());
  if (!moved.ok()) {
    if (!is_broken_) return moved;
    in_slot = {};  // a part of the state is in the slot
    undo(before, [slot](int64_t each) { return each == slot; });
    return moved;
  }
  in_slot = std::move(text);
  staged_.clear();
  return length();
}

Result<int64_t> Session::restore(int64_t slot) {
  HYBRIDGE_TRY(check_slot(slot));
  KeptText in_slot = slots_[static_cast<size_t>(slot)];
  HYBRIDGE_TRY(move_state("restore", slot, static_cast<int64_t>(in_slot.tokens.size())));
  const size_t longest = text_.size();
  set_text(std::move(in_slot.tokens), std::move(in_slot.delegated));
  checkpoints_.go_back(text_.size());
  staged_.clear();
  hidden_.set_unread(in_slot.unread);
  give_back(longest);
  return length();
}

Result<int64_t> Session::reset() {
  const bool was_broken = std::exchange(is_broken_, true);
  const auto outputs = program_->call("reset", {});
  if (!outputs.ok() && program_->has_changed_nothing()) {
    is_broken_ = was_broken;
    return outputs.status();
  }
  for (auto& slot : slots_) slot = {};  // a saved state is not to hold what was said before
  checkpoints_.go_back(0);
  staged_.clear();
  hidden_.clear();
  if (!outputs.ok() || !has_length(0)) {
    layout_.empty_slots([](int64_t) { return true; });
    return outputs.ok() ? wrong_answer("reset") : outputs.status();
  }
  const size_t longest = text_.size();
  set_text({}, {});
  has_slots_ = is_broken_ = false;
  give_back(longest);
  return length();
}

Result<std::shared_ptr<const Checkpoint>> Session::checkpoint() {
  if (is_broken_ || !has_length(length())) return broken_state();
  HYBRIDGE_TRY(read_ahead());
  return checkpoints_.make(model_->fingerprint(), text_, delegated_, unread());
}

Result<int64_t> Session::resume(const Checkpoint& checkpoint) {
  if (checkpoint.model != model_->fingerprint()) {
    return Status(
        HYBRIDGE_OTHER_MODEL, "this checkpoint is of another model; resume it in a session over the one that made it"
    );
  }
  std::vector<int64_t> text = checkpoint.tokens();
  Delegated delegated = checkpoint.delegated();
  HYBRIDGE_TRY(check_length(text.size()));
  if (!may_reuse(text, delegated)) return other_reader();
  if (std::exchange(is_broken_, true)) checkpoints_.go_back(0);  // the state may have lost any row
  for (auto& slot : slots_) slot = {};
  layout_.set_length(static_cast<int64_t>(text.size()));
  checkpoints_.restore(checkpoint);
  const size_t longest = text_.size();
  set_text(std::move(text), std::move(delegated));
  staged_.clear();
  hidden_.set_unread(checkpoint.unread);
  drop_staged();
  has_slots_ = is_broken_ = false;
  give_back(longest);
  return length();
}

Result<std::shared_ptr<const Checkpoint>> Session::read_checkpoint(
    const Checkpoint* like, size_t shared, std::span<const Part> parts
) const {
  std::shared_ptr<RowSegment> parent;
  if (shared > 0) {
    if (like == nullptr || like->model != model_->fingerprint()) {
      return Status(HYBRIDGE_OTHER_MODEL, "the checkpoint with the first segments is of another model");
    }
    const auto segments = chain(like->segment);
    if (shared > segments.size()) {
      return Status(
          HYBRIDGE_INVALID_ARGUMENT,
          "the other checkpoint has " + std::to_string(segments.size()) + " segments to share"
      );
    }
    parent = segments[shared - 1];
  }
  return checkpoints_.read(model_->fingerprint(), info(), std::move(parent), parts);
}

Status Session::save(const std::string& path, std::string note) {
  if (is_broken_) return broken_state();
  HYBRIDGE_TRY(read_ahead());
  std::vector<KeptText> texts = {{text_, unread(), delegated_}};
  texts.insert(texts.end(), slots_.begin(), slots_.end());
  const SavedState state = layout_.now(std::move(texts), std::move(note));
  if (!layout_.allows(state)) {
    return Status(HYBRIDGE_PROGRAM_FAILED, "the program's state has numbers that cannot be; reset the session");
  }
  return write_state(path, model_->fingerprint(), [&](StateWriter& out) { layout_.write(out, state); });
}

Result<int64_t> Session::load(const std::string& path, const std::function<Status(const std::string&)>& check) {
  auto file = StateReader::open(path, model_->fingerprint());
  if (!file.ok()) return file.status();
  auto saved = layout_.read(*file, slots_.size());
  if (!saved.ok()) return saved.status();
  for (const KeptText& text : saved->texts) HYBRIDGE_TRY(check_length(text.tokens.size()));
  for (const KeptText& text : saved->texts) {
    if (!may_reuse(text.tokens, text.delegated)) return other_reader();
  }
  if (check) HYBRIDGE_TRY(check(saved->note));
  return apply(*file, std::move(*saved));
}

Session::Session(
    std::shared_ptr<const Model> model, std::unique_ptr<Program> program, RowBuffers rows, int64_t max_seq_len,
    DelegateUse delegate_use
)
    : model_(std::move(model)),
      max_seq_len_(max_seq_len > 0 ? std::min(max_seq_len, info().max_seq_len) : info().max_seq_len),
      program_(std::move(program)),
      rows_(std::move(rows)),
      layout_(*program_, model_->info(), rows_),
      checkpoints_(*program_, rows_),
      slots_(static_cast<size_t>(info().snapshot_slots)),
      delegate_use_(delegate_use),
      costs_(info().verify_lens) {}

Result<int64_t> Session::apply(StateReader& file, SavedState saved) {
  is_broken_ = true;
  if (const Status failed = layout_.restore(file, saved); !failed.ok()) {
    (void)reset();
    return failed;
  }
  const size_t longest = text_.size();
  set_text(std::move(saved.texts.front().tokens), std::move(saved.texts.front().delegated));
  slots_.assign(saved.texts.begin() + 1, saved.texts.end());
  note_ = std::move(saved.note);
  const std::string_view here = instruction_set();
  saved_elsewhere_ = here.empty() || here == file.instruction_set() ? "" : file.instruction_set();
  has_slots_ = true;
  checkpoints_.go_back(0);
  staged_.clear();
  hidden_.set_unread(saved.texts.front().unread);
  drop_staged();
  is_broken_ = false;
  give_back(longest);
  return length();
}

void Session::set_text(std::vector<int64_t> text, Delegated delegated) {
  text_ = std::move(text);
  delegated_ = std::move(delegated);
  prompt_ = {};
}

bool Session::may_reuse(Tokens text, const Delegated& delegated) const {
  if (!delegate_use_.strict_reuse || !info().has_delegate()) return true;
  if (!prompts_read_.delegate.ok()) return delegated.empty();
  // A prompt of fewer tokens is read by the CPU, as are rows of pictures that a shorter method than the delegate's
  // takes.
  const int64_t shortest = std::max({delegate_from(), info().prefill_chunk / 4 + 1, info().verify_len() + 1});
  const int64_t most_rows = info().delegate_encodes ? info().encoder->second_budget() : info().max_seq_len;
  const auto is_by_cpu = [&](int64_t begin, int64_t end) {
    int64_t tokens = 0, rows = 0;
    for (int64_t i = begin; i < end; ++i) {
      if (text[static_cast<size_t>(i)] >= 0) ++tokens, rows = 0;
      else if (++rows > most_rows) return false;
    }
    return tokens < shortest;
  };
  int64_t begin = 0;
  for (size_t i = 0; i + 1 < delegated.size(); i += 2) {
    if (!is_by_cpu(begin, delegated[i])) return false;
    begin = delegated[i + 1];
  }
  return is_by_cpu(begin, static_cast<int64_t>(text.size()));
}

Status Session::read_ahead() {
  const size_t pairs = hidden_.count();
  const bool is_for_drafter = reads_ahead_ && hidden_.reader() == HiddenStates::Reader::drafter;
  if (!is_for_drafter || pairs <= static_cast<size_t>(info().verify_len())) return Status();
  const auto rows = hidden_.unread().first((pairs - 1) * hidden_.width());
  const Floats read = HiddenStates::at(rows, hidden_.width(), info().draft_taps, static_cast<size_t>(info().taps));
  const Numbers following = without_pictures(Tokens(text_).last(pairs - 1));
  const Status done = with_drafter<Status>([&](const CallMethod& call) {
    return read_pairs(info(), call, read, following);
  });
  if (done.ok()) hidden_.keep_last();
  else hidden_.clear();
  return is_broken_ ? done : Status();
}

HiddenRows Session::unread() const {
  if (hidden_.reader() != HiddenStates::Reader::drafter || hidden_.count() > static_cast<size_t>(info().verify_len()))
    return {};
  return {Floats(hidden_.unread().begin(), hidden_.unread().end()), hidden_.width()};
}

Numbers Session::without_pictures(Tokens ids) const {
  return info().encoder ? as_tokens(ids, info().encoder->placeholder) : Numbers(ids.begin(), ids.end());
}

Session::RestoreBuffers Session::copy_bounded() {
  RestoreBuffers copies{text_.size(), hidden_.count(), operations(), {}};
  if (text_.empty() && !has_slots_) return copies;
  for (const std::string& name : program_->bounded()) {
    const Bytes bytes = program_->bytes(name);
    copies.buffers.emplace_back(bytes.begin(), bytes.end());
  }
  return copies;
}

void Session::roll_back(const RestoreBuffers& before) {
  if (before.buffers.empty()) {
    (void)reset();
    return;
  }
  is_broken_ = true;
  for (size_t i = 0; i < before.buffers.size(); ++i)
    std::ranges::copy(before.buffers[i], program_->bytes(program_->bounded()[i]).begin());
  text_.resize(before.length);
  delegated_ = between(delegated_, 0, length());
  hidden_.shorten(before.hidden);
  undo_block(before.operations);
}

bool Session::is_overwritten(int64_t slot) const {
  return has_slot(slot) && slots_[static_cast<size_t>(slot)].tokens.size() > text_.size();
}

void Session::undo_block(int64_t operations) {
  undo(operations, [this](int64_t slot) { return is_overwritten(slot); });
}

void Session::undo(int64_t operations, const std::function<bool(int64_t)>& is_gone) {
  layout_.empty_slots(is_gone);
  staged_.clear();
  drop_staged();
  if (int64_t* count = program_->number("operations")) *count = operations;
  is_broken_ = !has_length(length());
}

void Session::drop_staged() {
  if (int64_t* staged = program_->number("staged")) *staged = 0;
}

void Session::give_back(size_t longest) {
  size_t kept = text_.size();
  for (const KeptText& slot : slots_) kept = std::max(kept, slot.tokens.size());
  longest_ = std::max(longest_, longest);
  if (longest_ <= kept || (longest_ - kept) * rows_.position_bytes() < MUCH) return;
  rows_.give_back(kept);
  longest_ = kept;
}

Result<std::vector<Session::Piece>> Session::to_pieces(Tokens text) const {
  HYBRIDGE_TRY(check(text, true));
  std::vector<Piece> parts;
  for (size_t at = 0; at < text.size(); at += parts.back().ids.size()) {
    const Tokens rest = text.subspan(at);
    if (rest.front() < 0) {
      auto picture = model_->picture(rest.front());
      if (picture == nullptr || picture->ids().size() > rest.size()) return not_whole();
      const Tokens rows = rest.first(picture->ids().size());
      if (!std::ranges::equal(picture->ids(), rows)) return not_whole();
      parts.push_back({rows, std::move(picture)});
    } else {
      const auto end = std::ranges::find_if_not(rest, [this](int64_t id) { return is_token(id); });
      parts.push_back({Tokens(rest.begin(), end)});
    }
  }
  return parts;
}

int64_t Session::delegate_from() const {
  if (info().delegate_from == 0) return std::numeric_limits<int64_t>::max();
  return delegate_use_.from > 0 ? delegate_use_.from : info().delegate_from;
}

Status Session::encode(const Piece& part) {
  if (part.picture == nullptr) return Status();
  const Picture& picture = *part.picture;
  const bool by_delegate = info().delegate_encodes && prompts_read_.delegate.ok() && picture.is_longest();
  if (picture.is_encoded() && (!delegate_use_.strict_reuse || picture.is_delegated() == by_delegate)) return Status();
  if (by_delegate) {
    prompts_read_.delegate = encode_by_delegate(picture);
    if (prompts_read_.delegate.ok()) return Status();
  }
  return picture.encode([this](const std::string& name, std::initializer_list<Array> inputs) {
    return call(name, inputs);
  });
}

Status Session::encode_by_delegate(const Picture& picture) {
  if (!std::exchange(is_encoder_tried_, true)) HYBRIDGE_TRY(probe_encoder());
  const auto run = [this](const std::string&, std::initializer_list<Array> inputs) {
    return call("delegate_vision_encoder", inputs);
  };
  return picture.encode(run, true);
}

Status Session::probe_encoder() {
  Encoder whole = *info().encoder;
  if (whole.second_budget() == 0 || whole.is_square) return Status();
  const auto side = static_cast<size_t>(whole.unit());
  std::vector<uint8_t> rgb(side * side * 3);
  for (size_t i = 0; i < rgb.size(); ++i) rgb[i] = static_cast<uint8_t>(37 * i);
  const auto encoded = [&](const Encoder& encoder, const std::string& prefix) -> Result<Floats> {
    const auto picture = HYBRIDGE_TRY(Picture::create(encoder, rgb, side, side));
    HYBRIDGE_TRY(picture->encode([&](const std::string& name, std::initializer_list<Array> inputs) {
      return call(prefix + name, inputs);
    }));
    const auto rows = picture->rows(0, 1);
    return Floats(rows.begin(), rows.end());
  };
  const Floats expected = HYBRIDGE_TRY(encoded(whole, ""));
  whole.budgets = {whole.budgets.back()};
  if (is_near(HYBRIDGE_TRY(encoded(whole, "delegate_")), expected)) return Status();
  return Status(HYBRIDGE_PROGRAM_FAILED, "the delegate encodes a first picture otherwise than the CPU's own method");
}

std::vector<Session::Piece> Session::to_chunks(const std::vector<Piece>& parts) const {
  const auto block = static_cast<size_t>(info().verify_len());
  std::vector<Piece> pieces;
  for (Piece part : parts) {
    const auto chunk = static_cast<size_t>(
        part.picture == nullptr ? info().prefill_chunk : info().encoder->rows(info().prefill_chunk)
    );
    const size_t rest = part.ids.size() % chunk;
    // A padded chunk takes as long as a full one. Up to three eighths of it, verifies never take longer.
    const bool by_verify = part.picture == nullptr && info().fixed_shapes && block > 1 && 8 * rest <= 3 * chunk;
    const size_t last = by_verify ? block : chunk;
    while (!part.ids.empty()) {
      pieces.push_back(part.first(std::min(part.ids.size(), part.ids.size() >= chunk ? chunk : last)));
      part = part.after(pieces.back().ids.size());
    }
  }
  return pieces;
}

Result<Logits> Session::extend_in_order(
    const std::vector<Piece>& pieces, const std::atomic<bool>* cancelled, const OnRead& on_read
) {
  size_t read = 0;
  for (size_t i = 0; i + 1 < pieces.size(); ++i) {
    HYBRIDGE_TRY(extend(pieces[i], i > 0));
    read += pieces[i].ids.size();
    if (on_read != nullptr) on_read(read);
    if (cancelled != nullptr && *cancelled) return cancelled_status();
  }
  return extend(pieces.back(), pieces.size() > 1);
}

Status Session::check(Tokens tokens, bool pictures) const {
  if (tokens.empty()) return Status(HYBRIDGE_INVALID_TOKEN, "there are no tokens; give at least one");
  HYBRIDGE_TRY(check_known(tokens, pictures));
  if (static_cast<int64_t>(tokens.size()) <= room()) return Status();
  return Status(
      HYBRIDGE_NO_ROOM, std::to_string(tokens.size()) + " tokens do not fit: " + std::to_string(length()) +
                            " of max_seq_len = " + std::to_string(max_seq_len()) + " are used. Reset the session, or " +
                            longer_context(info(), max_seq_len())
  );
}

Status Session::check_length(size_t tokens) const {
  if (static_cast<int64_t>(tokens) <= max_seq_len()) return Status();
  return Status(
      HYBRIDGE_NO_ROOM, "its text has " + std::to_string(tokens) + " tokens, and max_seq_len is " +
                            std::to_string(max_seq_len()) + ": open the model with a larger context"
  );
}

Status Session::check_known(Tokens tokens, bool pictures) const {
  const auto unknown = std::ranges::find_if_not(tokens, [&](int64_t id) {
    return pictures ? info().is_id(id) : is_token(id);
  });
  if (unknown == tokens.end()) return Status();
  return Status(
      HYBRIDGE_INVALID_TOKEN, "token id " + std::to_string(*unknown) + " is outside the vocabulary, 0 to " +
                                  std::to_string(info().vocab_size - 1)
  );
}

Status Session::check_drafting(Tokens following, size_t limit) const {
  if (!info().has_drafter()) {
    return Status(
        HYBRIDGE_INVALID_DRAFTER, "this artifact has no drafter of its own; export it again with --drafter or --mtp"
    );
  }
  if (limit == 0)
    return Status(HYBRIDGE_INVALID_ARGUMENT, "a limit of 0 leaves no room for draft tokens; give 1 or more");
  if (following.empty())
    return Status(HYBRIDGE_INVALID_TOKEN, "there are no tokens; give the one after each hidden state");
  return check_known(following);
}

Status Session::check_slot(int64_t slot) const {
  if (has_slot(slot)) return Status();
  const int64_t slots = info().snapshot_slots;
  if (slots == 0)
    return Status(HYBRIDGE_INVALID_SLOT, "this artifact has no snapshot slots; export with --snapshot-slots");
  return Status(
      HYBRIDGE_INVALID_SLOT,
      "slot " + std::to_string(slot) + " does not exist; this artifact has slots 0 to " + std::to_string(slots - 1)
  );
}

Result<Logits> Session::extend(const Piece& part, bool goes_on) {
  const Tokens tokens = part.ids;
  const auto count = static_cast<int64_t>(tokens.size());
  const bool is_few = count > 1 && count <= info().verify_len() && info().verify_len() < info().prefill_chunk;
  if (is_few && info().fixed_shapes && part.picture == nullptr) return extend_by_verify(tokens, goes_on);
  auto logits = part.picture != nullptr ? run_rows(part, goes_on) : run_tokens(tokens, goes_on);
  if (logits.ok() || logits.status().code() == HYBRIDGE_NOT_FINITE) {
    if (part.picture != nullptr && part.picture->is_delegated()) count_delegated(tokens.size());
    text_.insert(text_.end(), tokens.begin(), tokens.end());
  }
  if (logits.ok()) hidden_.add_last(tokens.size());
  if (logits.status().code() == HYBRIDGE_NOT_FINITE) hidden_.clear();  // rows are those of the text's last tokens
  if (is_broken_) layout_.empty_slots([this](int64_t slot) { return is_overwritten(slot); });
  return logits;
}

Result<Logits> Session::run_tokens(Tokens tokens, bool goes_on) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t size = count == 1 ? 1 : info().prefill_chunk;
  const Numbers row = padded(tokens, size);
  if (count == 1) return run("decode", 1, tokens.size(), goes_on, {input(row, {1, size})});
  if (by_delegate_ && prompts_read_.delegate.ok()) {
    auto logits = run_delegate({input(row, {1, size}), number(count)}, tokens.size(), goes_on);
    if (logits.ok()) return logits;
  }
  return run("prefill", 1, tokens.size(), goes_on, {input(row, {1, size}), number(count)});
}

Result<Logits> Session::run_delegate(std::initializer_list<Array> inputs, size_t tokens, bool goes_on) {
  const auto before = copy_bounded();
  auto logits = run("delegate_prefill", 1, tokens, goes_on, inputs);
  if (logits.ok()) return count_delegated(tokens), logits;
  prompts_read_.delegate = logits.status();
  roll_back(before);
  return logits;
}

void Session::count_delegated(size_t tokens) {
  prompts_read_.delegate_tokens += static_cast<int64_t>(tokens);
  add_run(delegated_, length(), length() + static_cast<int64_t>(tokens));
}

void Session::probe_delegate() {
  const int64_t size = info().prefill_chunk, count = std::min(size, max_seq_len());
  Numbers row(static_cast<size_t>(size));
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<int64_t>(i) % info().vocab_size;
  const auto read = [&](const char* method) -> Result<Floats> {
    const auto logits = run(method, 1, static_cast<size_t>(count), false, {input(row, {1, size}), number(count)});
    Floats numbers;
    if (logits.ok()) numbers.assign(logits->last().begin(), logits->last().end());
    HYBRIDGE_TRY(reset());
    if (!logits.ok()) return logits.status();
    return numbers;
  };
  const auto expected = read("prefill");
  if (!expected.ok()) return;  // a prompt will say why
  const auto found = read("delegate_prefill");
  if (!found.ok()) {
    prompts_read_.delegate = found.status();
    return;
  }
  if (is_near(*found, *expected)) return;
  prompts_read_.delegate = Status(
      HYBRIDGE_PROGRAM_FAILED, "the delegate answers a first prompt with other logits than the CPU's own method"
  );
}

Result<Logits> Session::run_rows(const Piece& part, bool goes_on) {
  const auto count = static_cast<int64_t>(part.ids.size()), width = static_cast<int64_t>(part.picture->hidden());
  const int64_t chunk = info().encoder->rows(info().prefill_chunk);
  const auto rows = part.picture->rows(part.begin, part.ids.size());
  Floats row(rows.begin(), rows.end());
  row.resize(static_cast<size_t>(chunk * width), 0.0f);
  const Array embeddings = input(row, {1, chunk, width});
  const int64_t axes = info().encoder->axes;
  if (axes == 1) return run("prefill_embeddings", 1, part.ids.size(), goes_on, {embeddings, number(count)});
  // The text's next rope position stays at the picture's first row until its last one was read.
  const bool is_last = part.begin + part.ids.size() == part.picture->ids().size();
  const int64_t advance = is_last ? part.picture->advance() : 0;
  const Numbers grid = part.picture->grid(part.begin, part.ids.size(), static_cast<size_t>(chunk));
  return run(
      "prefill_embeddings", 1, part.ids.size(), goes_on,
      {embeddings, input(grid, {axes, chunk}), number(advance), number(count)}
  );
}

Result<Logits> Session::extend_or_reset(const Piece& part) {
  const bool is_empty = text_.empty() && !has_slots_;
  auto logits = extend(part);
  if (is_empty && !logits.ok()) (void)reset();
  return logits;
}

Result<Logits> Session::extend_by_verify(Tokens tokens, bool goes_on) {
  const Logits logits = HYBRIDGE_TRY(stage(tokens, goes_on));
  last_.assign(logits.last().begin(), logits.last().end());  // the commit reuses the runtime's memory
  HYBRIDGE_TRY(
      move_state("commit", static_cast<int64_t>(tokens.size()), length() + static_cast<int64_t>(tokens.size()))
  );
  const auto block = std::exchange(staged_, {});
  text_.insert(text_.end(), block.begin(), block.end());
  hidden_.add_last(tokens.size());
  return Logits(last_.data(), 1, last_.size());
}

Result<Logits> Session::stage(Tokens tokens, bool goes_on) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t length = *std::lower_bound(info().verify_lens.begin(), info().verify_lens.end(), count);
  const std::string name = length == info().verify_len() ? "verify" : "verify_" + std::to_string(length);
  const int64_t size = info().fixed_shapes ? length : count;
  const Numbers row = padded(tokens, size);
  const int64_t before = operations();
  auto logits = run(name, tokens.size(), tokens.size(), goes_on, {input(row, {1, size})});
  if (logits.ok()) staged_.assign(tokens.begin(), tokens.end());
  else if (is_broken_) undo_block(before);
  return logits;
}

Result<Logits> Session::run(
    const std::string& name, size_t rows, size_t tokens, bool goes_on, std::initializer_list<Array> inputs
) {
  staged_.clear();
  if (!has_length(length())) return is_broken_ = true, broken_state();
  const int64_t before = operations();
  const auto outputs = HYBRIDGE_TRY(call_changing_state(name, inputs));
  if (before < 0 || operations() != before + 1) {  // NaN is the program's refusal, and no result
    is_broken_ = operations() != before || !has_length(length());
    return wrong_answer(name);
  }
  const auto width = static_cast<size_t>(info().vocab_size);
  const float* first = outputs.empty() ? nullptr : outputs[0].real();
  if (first == nullptr || outputs[0].count() < rows * width) return wrong_answer(name);
  const Logits logits(first, rows, width);
  const bool are_numbers = are_finite(logits.all());
  if (are_numbers && info().taps > 0) HYBRIDGE_TRY(hidden_.see(outputs, tokens, goes_on));
  is_broken_ = false;
  if (are_numbers) return logits;
  return Status(
      HYBRIDGE_NOT_FINITE, "the program gave logits in '" + name +
                               "' that are NaN or infinite; reset the session, or restore or load a state"
  );
}

int64_t Session::operations() {
  const int64_t* count = program_->number("operations");
  return count != nullptr ? *count : -1;
}

Result<std::span<const Array>> Session::call(const std::string& name, std::initializer_list<Array> inputs) {
  if (!program_->is_unchanged()) return changed_file();
  const auto outputs = HYBRIDGE_TRY(program_->call(name, inputs));
  if (!program_->is_unchanged()) return changed_file();
  return outputs;
}

Result<std::span<const Array>> Session::call_changing_state(
    const std::string& name, std::initializer_list<Array> inputs
) {
  if (!program_->is_unchanged()) return changed_file();
  const int64_t before = operations();
  const bool was_broken = std::exchange(is_broken_, true);
  auto outputs = program_->call(name, inputs);
  if (!outputs.ok() && program_->has_changed_nothing())
    is_broken_ = was_broken || operations() != before || !has_length(length());
  if (outputs.ok() && !program_->is_unchanged()) return changed_file();
  return outputs;
}

Result<int64_t> Session::move_state(const char* name, int64_t argument, int64_t wanted) {
  const bool was_broken = is_broken_;
  const auto outputs = HYBRIDGE_TRY(call_changing_state(name, {number(argument)}));
  const int64_t* length = outputs.empty() ? nullptr : outputs[0].integer();
  if (length == nullptr) return wrong_answer(name);
  if (*length < 0) {
    is_broken_ = was_broken;
    if (std::string_view(name) != "restore") return wrong_answer(name);
    return Status(
        HYBRIDGE_INVALID_SLOT,
        "this slot keeps nothing to restore: it was never filled, or tokens were written below its length since "
        "(an earlier snapshot was restored and another way taken)"
    );
  }
  if (*length != wanted || !has_length(wanted)) return wrong_answer(name);
  is_broken_ = false;
  return wanted;
}

bool Session::has_length(int64_t length) {
  const int64_t* own_length = program_->number("length");
  return own_length != nullptr && *own_length == length;
}

}  // namespace hybridge
