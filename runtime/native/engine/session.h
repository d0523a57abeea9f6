// hybridge in an app: one artifact, any number of conversations over it, each with a state that can be rolled back.
//
//   auto model = hybridge::Model::load("OUT/model.pte");        // once: the weights
//   auto created = hybridge::Session::create(model.get());      // for each conversation: a state of its own
//   hybridge::Session& session = **created;                     // where created.ok()
//   auto logits = session.prefill(prompt);                      // any number of tokens; logits->last() follow the last
//   auto checked = session.verify(proposed);                    // logits (*checked)[i] after each; commits nothing
//   session.commit(2);                                          // accepts the first two
//   session.snapshot(0), session.decode(token), session.restore(0);  // keep a state, go on, come back
//   session.prefill((*model->picture(rgb, 512, 512))->ids());   // a picture is ids, too: engine/picture.h
//   auto kept = session.checkpoint();                           // the same in memory, any number: engine/checkpoint.h
//   session.resume(**kept);
//   session.save("talk.state"), session.load("talk.state");     // in another process, too
//
// Generation with draft tokens is in engine/speculative.h. What is linked is hybridge::session (../CMakeLists.txt),
// with the backend and the operators of ExecuTorch that the artifact was exported for.
//
// Nothing throws: a call answers with a value, or with a Status (engine/status.h) and leaves the state as it was, but
// for NOT_FINITE (below). A call that failed in the middle undoes what it did where that costs nothing (a verify, a
// snapshot, a prefill of several chunks). Otherwise the state is broken, neither the old nor the new one: then all
// calls but reset, restore, resume and load answer BROKEN_STATE.
//
//   INVALID_TOKEN     a token outside the vocabulary, none or too many of them
//   INVALID_PICTURE   rows of a picture that is not open, or not all of its rows
//   INVALID_COMMIT    no verified block to commit, or one of fewer tokens
//   INVALID_SLOT      a slot out of range, never filled, or overwritten since
//   INVALID_DRAFTER   the program has no drafter, or it reads hidden states of another width
//   OTHER_MODEL       a checkpoint of another model
//   INVALID_SAVED_STATE   a saved state or checkpoint that is damaged or of another model
//   INVALID_ARTIFACT  a model.pte that was written to since it was mapped
//   NO_ROOM           the tokens do not fit into what is left of max_seq_len, or a kept text is longer than that
//   CANCELLED         a prefill that was cancelled
//   NOT_FINITE        logits that are NaN or infinite; what one call of the program had committed stays committed
//   PROGRAM_FAILED    a method failed, refused what fits by the program's own account, or answered in another form
//   BROKEN_STATE      a call failed in the middle, or the program's state is of another length than the text: reset the
//                     session, or restore, resume or load a state
//   UNREADABLE_FILE, UNWRITABLE_FILE
//
// Sessions of one model may be used in turn by one thread; two threads need a lock around their calls.
#ifndef HYBRIDGE_ENGINE_SESSION_H
#define HYBRIDGE_ENGINE_SESSION_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint.h"
#include "engine/draft.h"
#include "engine/model_info.h"
#include "engine/hidden_states.h"
#include "engine/logits.h"
#include "engine/picture.h"
#include "engine/program.h"
#include "engine/round_costs.h"
#include "engine/row_buffers.h"
#include "engine/state_file.h"
#include "engine/state_layout.h"
#include "engine/status.h"

namespace hybridge {

using OnRead = std::function<void(size_t)>;

// How a session of a model with a delegate reads prompts. from: tokens of the shortest one that the delegate reads;
// 0 for as many as the program says. strict_reuse: what is kept of a text is used only if each run of its tokens was
// read by the method that reads so many now.
struct DelegateUse {
  int64_t from = 0;
  bool strict_reuse = false;
};

class Session {
 public:
  // An empty state over the model's weights. max_seq_len: most tokens of its text, up to the model's; 0 for as many.
  // Fails where a method does not load: MISSING_OPERATOR, OUT_OF_MEMORY.
  static Result<std::unique_ptr<Session>> create(
      std::shared_ptr<const Model> model, int64_t max_seq_len = 0, DelegateUse delegate_use = {}
  );

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const ModelInfo& info() const { return model_->info(); }
  Tokens tokens() const { return text_; }  // committed
  Tokens slot(int64_t number) const;
  int64_t length() const { return static_cast<int64_t>(text_.size()); }
  int64_t max_seq_len() const { return max_seq_len_; }
  int64_t room() const { return max_seq_len() - length(); }

  // Returns whether a call failed in the middle, and no reset, restore, resume or load came since.
  bool is_broken() const { return is_broken_; }

  // Commits any number of tokens, at least one, and rows of whole pictures among them; logits [1, V] after the last.
  // cancelled: another thread may set it, and none of the tokens is committed then; looked at before each chunk.
  // on_read: called between two chunks, with the number of tokens that are read.
  Result<Logits> prefill(Tokens tokens, const std::atomic<bool>* cancelled = nullptr, const OnRead& on_read = nullptr);

  // Tells that the next calls of `prefill` read one prompt, up to `end` tokens of text.
  void expect(size_t end) { prompt_ = {length(), static_cast<int64_t>(end)}; }

  // Commits one token; logits [1, V] after it.
  Result<Logits> decode(int64_t token);

  // Logits [n, V] after each of n tokens, 1 ≤ n ≤ verify_len, of which none is committed. What runs or moves the state
  // next, unless it is a commit, drops them.
  Result<Logits> verify(Tokens tokens);

  // Accepts the first `count` tokens of the verified block, or none; the new length. Runs no forward.
  Result<int64_t> commit(int64_t count);

  // Hidden states of the last call's tokens, and of those that were committed and not read yet, where they are kept.
  const HiddenStates& hidden() const { return hidden_; }

  // Numbers of a token's hidden states; 0 where neither the program says it nor a call has shown it yet.
  size_t hidden_width() const;

  // Keeps hidden states of committed tokens from now on for a drafter of the caller's, or stops; needs a program with
  // taps.
  void keep_hidden(bool wanted);

  // Keeps them for the drafter in the program. reads_ahead: it reads them before the state is kept, in a slot, a
  // checkpoint or a file, so that whoever continues there drafts as if it had read the text.
  void keep_for_drafter(bool reads_ahead);

  // They were read.
  void forget_hidden() { hidden_.clear(); }

  // At most `limit` draft tokens after `next`, the token that follows the text, by the drafter in the program: it
  // reads the hidden states that were kept since it was last asked. None where it has nothing new to read, or its
  // context is full. draws: how a drafter that can draws them; without, they are its best.
  Result<Drafted> draft(int64_t next, size_t limit, const std::optional<Draws>& draws = std::nullopt);

  // The same, of hidden states [n, F] of committed tokens and the token after each, n ≥ 1.
  Result<Drafted> draft(
      std::span<const float> rows, Tokens following, size_t limit, const std::optional<Draws>& draws = std::nullopt
  );

  // Keeps the committed state; its length.
  Result<int64_t> snapshot(int64_t slot);

  // Goes back to what a slot keeps; the new length. INVALID_SLOT also where tokens were written below its length since.
  Result<int64_t> restore(int64_t slot);

  // Empties the state and all slots; 0.
  Result<int64_t> reset();

  // The committed state in memory of its own, valid whatever comes after, and for every session over this artifact.
  // Rows by position are copied from the last checkpoint on that this session made or resumed on its way here, if that
  // is still kept.
  Result<std::shared_ptr<const Checkpoint>> checkpoint();

  // Goes on where `checkpoint` was made, bit for bit; the length. Slots are empty then. OTHER_MODEL for one of
  // another model.
  Result<int64_t> resume(const Checkpoint& checkpoint);

  // A checkpoint of parts (engine/checkpoint.h), of which the first `shared` segments are those of `like`.
  Result<std::shared_ptr<const Checkpoint>> read_checkpoint(
      const Checkpoint* like, size_t shared, std::span<const Part> parts
  ) const;

  // Writes the state, slots included, and a note, for this artifact on a processor with the same byte order. Of rows by
  // position, those that the text and the slots have filled.
  Status save(const std::string& path, std::string note = "");

  // Continues where `save` was called, bit for bit; the length. A block that waited for commit then is dropped. check:
  // refuses a note. A file that is refused changes nothing; the session is empty if one was changed while it was read.
  Result<int64_t> load(const std::string& path, const std::function<Status(const std::string&)>& check = {});

  // The note of the state that was loaded last.
  const std::string& note() const { return note_; }

  // The instruction set that the state that was loaded last was computed by, if it is not this processor's: what
  // follows is rounded otherwise than it would have been there.
  const std::string& saved_elsewhere() const { return saved_elsewhere_; }

  // How prompts were read: by the delegate that the model was exported for, and by the CPU's own methods.
  struct PromptsRead {
    Status delegate;  // OK while it is used, otherwise why it is not
    int64_t delegate_tokens = 0, cpu_tokens = 0;
  };
  const PromptsRead& prompts_read() const { return prompts_read_; }

  // The runs of the text that the delegate has read.
  const Delegated& delegated() const { return delegated_; }

  // Returns whether the session may go on from a kept text of which a delegate has read these runs.
  bool may_reuse(Tokens text, const Delegated& delegated) const;

  // What rounds of generations over this session took so far.
  RoundCosts& costs() { return costs_; }

  // The buffers of the state by name, where they are now: to look at.
  const Names& buffer_names() const { return program_->names(); }
  Result<Array> buffer(const std::string& name) { return program_->buffer(name); }

 private:
  Session(
      std::shared_ptr<const Model> model, std::unique_ptr<Program> program, RowBuffers rows, int64_t max_seq_len,
      DelegateUse delegate_use
  );

  // Tokens of the shortest prompt that the delegate reads; more than any has if it only encodes pictures.
  int64_t delegate_from() const;

  Result<int64_t> apply(StateReader& file, SavedState saved);

  // Lets the drafter read what it would not read with its next proposal, so that what is kept of the state has its
  // rows. Fails only if that left a broken state: nothing else needs the drafter.
  Status read_ahead();

  // Returns run(call), in which methods of the drafter run: if one fails in the middle, the state is broken.
  template <typename Answer, typename Run>
  Answer with_drafter(Run run);

  // Hidden states of the text's last tokens that the drafter has yet to read; none if these are more than a proposal
  // reads.
  HiddenRows unread() const;

  Numbers without_pictures(Tokens ids) const;

  // Copies of the bounded buffers, to roll back a prefill of several chunks. Rows past the length do not count, and an
  // empty state needs none: a reset restores it.
  struct RestoreBuffers {
    size_t length, hidden;
    int64_t operations;
    std::vector<std::vector<uint8_t>> buffers;
  };

  RestoreBuffers copy_bounded();

  void roll_back(const RestoreBuffers& before);

  // Returns whether a slot counts rows past the length, which a call that failed may have written.
  bool is_overwritten(int64_t slot) const;

  // Takes back a call that wrote rows past the length, staged tokens, and nothing else that counts.
  void undo_block(int64_t operations);

  // Takes back what a call that failed did besides: slots for which `is_gone` is true are lost, as is what waited for
  // commit.
  void undo(int64_t operations, const std::function<bool(int64_t)>& is_gone);

  void drop_staged();

  // Gives the memory of rows back that neither the text nor a slot has, if there is much of it. longest: tokens of the
  // text before.
  void give_back(size_t longest);

  // Tokens, or rows of a picture from `begin` on.
  struct Piece {
    Tokens ids;
    std::shared_ptr<const Picture> picture = nullptr;
    size_t begin = 0;

    Piece first(size_t count) const { return {ids.first(count), picture, begin}; }
    Piece after(size_t count) const { return {ids.subspan(count), picture, begin + count}; }
  };

  // A text as tokens and whole open pictures, in order. INVALID_TOKEN for no text and an id that is none,
  // INVALID_PICTURE for a picture of which not all rows are there.
  Result<std::vector<Piece>> to_pieces(Tokens text) const;

  Status encode(const Piece& part);

  // The same by the delegate, which is used no more if it fails.
  Status encode_by_delegate(const Picture& picture);

  // Replaces the text, and ends the prompt that is read.
  void set_text(std::vector<int64_t> text, Delegated delegated);

  // Parts in pieces that `extend` takes: prefill's, and after tokens verify's if they are a quarter of one at most. A
  // prefill takes at least half of its time, however few tokens it is given, and a verify that many in less.
  std::vector<Piece> to_chunks(const std::vector<Piece>& parts) const;

  // Commits several chunks, or none of them.
  Result<Logits> extend_all(
      const std::vector<Piece>& pieces, const std::atomic<bool>* cancelled, const OnRead& on_read
  );

  Result<Logits> extend_in_order(
      const std::vector<Piece>& pieces, const std::atomic<bool>* cancelled, const OnRead& on_read
  );

  bool is_token(int64_t token) const { return 0 <= token && token < info().vocab_size; }

  // Refuses no tokens, those outside the vocabulary, and more than there is room for. pictures: ids of their rows may
  // be there.
  Status check(Tokens tokens, bool pictures = false) const;

  // Refuses a kept text that is longer than max_seq_len.
  Status check_length(size_t tokens) const;

  Status check_known(Tokens tokens, bool pictures = false) const;

  // Refuses what the drafter in the program cannot propose after.
  Status check_drafting(Tokens following, size_t limit) const;

  Status check_slot(int64_t slot) const;

  bool has_slot(int64_t slot) const { return 0 <= slot && slot < info().snapshot_slots; }

  // Commits at most one chunk of a checked part; goes_on: it is not the first of its call.
  Result<Logits> extend(const Piece& part, bool goes_on = false);

  Result<Logits> run_tokens(Tokens tokens, bool goes_on);

  // The same of a chunk by the delegate. If it fails, it is used no more, and the state is that of before.
  Result<Logits> run_delegate(std::initializer_list<Array> inputs, size_t tokens, bool goes_on);

  // Counts the next tokens of the text as the delegate's.
  void count_delegated(size_t tokens);

  // Reads a chunk of an empty state by the CPU and by the delegate, which is not used if it fails or answers otherwise.
  void probe_delegate();

  // Encodes a picture of one token by the CPU and by the delegate's method for the largest. One that has no shorter
  // method beside it is not tried: on a CPU it takes seconds.
  Status probe_encoder();

  Result<Logits> run_rows(const Piece& part, bool goes_on);

  // The same; if nothing was committed before, rolling back NaN logits costs nothing.
  Result<Logits> extend_or_reset(const Piece& part);

  // A few tokens need no whole chunk.
  Result<Logits> extend_by_verify(Tokens tokens, bool goes_on);

  // Verifies at most `verify_len` checked tokens.
  Result<Logits> stage(Tokens tokens, bool goes_on);

  // A method that answers with float32 logits, of which the first `rows` mean something, and hidden states of `tokens`.
  Result<Logits> run(
      const std::string& name, size_t rows, size_t tokens, bool goes_on, std::initializer_list<Array> inputs
  );

  // Returns the number of calls that changed the state, by its own count.
  int64_t operations();

  // A method over a program that is still the one that was opened.
  Result<std::span<const Array>> call(const std::string& name, std::initializer_list<Array> inputs);

  // A method that changes the state, which is broken until the caller has seen that all of it was done.
  Result<std::span<const Array>> call_changing_state(const std::string& name, std::initializer_list<Array> inputs);

  // A method that answers with the length that it leaves, or with -1 where it refuses.
  Result<int64_t> move_state(const char* name, int64_t argument, int64_t wanted);

  // Returns whether the program's state has this length. A caller's program that answers wrongly may leave another one.
  bool has_length(int64_t length);

  std::shared_ptr<const Model> model_;  // outlives the program
  const int64_t max_seq_len_;
  std::unique_ptr<Program> program_;
  RowBuffers rows_;
  StateLayout layout_;
  Checkpoints checkpoints_;
  std::vector<int64_t> text_, staged_;
  bool has_slots_ = false, reads_ahead_ = false, is_broken_ = false;
  std::vector<KeptText> slots_;
  std::string note_, saved_elsewhere_;
  Floats last_;
  PromptsRead prompts_read_;
  const DelegateUse delegate_use_;
  bool by_delegate_ = false;       // the prompt that is being read is long enough for it
  bool is_encoder_tried_ = false;  // the delegate's
  Delegated delegated_;            // runs of the text
  struct {
    int64_t begin = 0, end = 0;
  } prompt_;  // that is read in several calls
  HiddenStates hidden_;
  RoundCosts costs_;
  size_t longest_ = 0;  // text since memory was given back
};

}  // namespace hybridge

#endif
