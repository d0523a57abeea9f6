// hybridge for C, and through it for Kotlin, Swift and whatever else calls C: the same sessions as hybridge/session.h.
//
//   hybridge_model model;
//   hybridge_session session;
//   hybridge_model_open("OUT/model.pte", &model);               // once: the weights
//   hybridge_session_open(model, &session);                     // for each conversation: a state of its own
//   hybridge_generate(session, prompt, n, NULL, show, user, NULL);
//   hybridge_snapshot(session, 0);                              // keep the state; hybridge_restore comes back to it
//   hybridge_checkpoint_make(session, &checkpoint);             // the same, any number; hybridge_resume comes back to it
//
// An app that talks in words begins at hybridge_artifact_open, near the end.
//
// Nothing throws and nothing prints; hybridge_failure says in words what is wrong, what was expected and what to do.
// A call that answers anything but HYBRIDGE_OK leaves the state as it was; a generation keeps the tokens that it had
// given, and after HYBRIDGE_NOT_FINITE tokens may be committed: hybridge_tokens says. After a call that failed in
// the middle and could not undo what it had done, most often with HYBRIDGE_PROGRAM_FAILED, it answers
// HYBRIDGE_BROKEN_STATE until it is reset, or a state is restored, resumed or loaded. Handles are numbers that are
// never used again: one that is closed, 0 or made up is answered with HYBRIDGE_INVALID_HANDLE.
//
// Threads. All functions may be called from any thread. A session that is in a call answers HYBRIDGE_BUSY to every
// other call, closing it included, but not to hybridge_cancel. Sessions of one model take turns to run its program, in
// the order in which they ask: each for one round of a generation or one chunk of a prompt, so generations of several
// sessions come on together. Functions that only read a session, a chat or a checkpoint, and those that close
// something, never wait for another session. Memory that cannot be freed while another session runs is freed at the end
// of its round. A callback may call other sessions, those of other models too: if such a call has to wait, other
// sessions may take the turns of the calls around it in the meantime.
#ifndef HYBRIDGE_H
#define HYBRIDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)  // a library with these functions hides everything else
#endif

// Version of this header; hybridge_version returns that of the linked or loaded library.
#define HYBRIDGE_VERSION "0.3.0"

typedef uint64_t hybridge_model;
typedef uint64_t hybridge_session;
typedef uint64_t hybridge_checkpoint;
typedef uint64_t hybridge_cache;
typedef uint64_t hybridge_picture;
typedef uint64_t hybridge_tokenizer;
typedef uint64_t hybridge_grammar;

typedef enum hybridge_status {
  HYBRIDGE_OK = 0,
  HYBRIDGE_INVALID_ARGUMENT = 1,  // a pointer that must not be null, or a number or option that cannot be
  HYBRIDGE_INVALID_HANDLE = 2,    // closed, of another kind, or never given out
  HYBRIDGE_BUSY = 3,              // the session is in a call of another thread, or of its own callback
  HYBRIDGE_NO_ROOM = 4,           // the tokens do not fit into what is left of max_seq_len
  HYBRIDGE_INVALID_STATE = 5,  // not now: no generation, message or call of a tool to go on from; threads that are in
                               // use
  HYBRIDGE_INVALID_ARTIFACT = 6,  // a file of an artifact that is damaged, of another format, or changed since it was
                                  // opened
  HYBRIDGE_UNREADABLE_FILE = 7,   // missing, without permission, or no regular file
  HYBRIDGE_MISSING_OPERATOR = 8,  // the app links no kernel, or no backend, for an operator of the program
  HYBRIDGE_OUT_OF_MEMORY = 9,
  HYBRIDGE_INTERNAL = 10,         // an exception: one that a callback threw, or a defect of this library
  HYBRIDGE_CANCELLED = 11,        // before the first token of a generation: nothing has changed
  HYBRIDGE_NOT_FINITE = 12,       // logits that are NaN or infinite
  HYBRIDGE_BROKEN_STATE = 13,     // a call before failed in the middle: only reset, restore, resume and load still work
  HYBRIDGE_PROGRAM_FAILED = 14,   // a method of the program failed, refused what fits, or answered in another form
  HYBRIDGE_INVALID_TOKEN = 15,    // a token outside the vocabulary, no token, or more than one block takes
  HYBRIDGE_INVALID_COMMIT = 16,   // no verified block, or of fewer tokens
  HYBRIDGE_INVALID_SLOT = 17,     // out of range, never filled, or overwritten since
  HYBRIDGE_INVALID_DRAFTER = 18,  // a drafter that the model does not have, or that does not fit it
  HYBRIDGE_INVALID_PICTURE = 19,  // of a size that the encoder does not take, not open, not whole, or for a model that
                                  // takes none
  HYBRIDGE_INVALID_GRAMMAR = 20,  // a schema, expression or list of tools that cannot be followed, or a mask that
                                  // leaves no token
  HYBRIDGE_INVALID_TEMPLATE = 21,     // a chat template with an error, or one that refuses these messages
  HYBRIDGE_INVALID_SAVED_STATE = 22,  // a saved state or checkpoint that is damaged, or of another model
  HYBRIDGE_UNWRITABLE_FILE = 23
} hybridge_status;

// Sizes of a model in tokens. draft_len: most draft tokens of the drafter inside it, 0 without one.
typedef struct hybridge_info {
  int64_t max_seq_len, vocab_size, prefill_chunk, verify_len, snapshot_slots, draft_len;
} hybridge_info;

// Source of draft tokens: none, which is plain decoding; the text so far; the drafter inside the model, which is
// HYBRIDGE_INVALID_DRAFTER if draft_len is 0; a smaller model, which is refused likewise if it has another vocab_size
// or no snapshot slot; the caller's own function; or all of these that there are, of which each round asks the one that
// promises most by what was measured, or none.
typedef enum hybridge_drafter {
  HYBRIDGE_NO_DRAFTER = 0,
  HYBRIDGE_PROMPT_LOOKUP = 1,
  HYBRIDGE_OWN_DRAFTER = 2,
  HYBRIDGE_DRAFT_MODEL = 3,
  HYBRIDGE_CALLBACK_DRAFTER = 4,
  HYBRIDGE_AUTO_DRAFTER = 5
} hybridge_drafter;

// Input of a drafter: the whole text, whose last token is not committed yet; and, if it reads them, hidden states of
// the model, float32 [rows, width], of the last `rows` tokens before that one, those since the last call.
typedef struct hybridge_context {
  const int64_t* text;
  size_t count;
  const float* hidden;
  size_t rows, width;
} hybridge_context;

// Where it writes draft tokens. confidences: its own estimate that each is right if those before it are; one number for
// all of them if it is_cheap, otherwise one for each, or none. They must not depend on tokens that were drawn.
// probabilities, float64 [tokens, vocab_size] or null: what each was drawn from, in the drafter's own memory until it
// is called again.
typedef struct hybridge_proposal {
  int64_t* tokens;
  double* confidences;
  size_t confidence_count;
  const double* probabilities;
} hybridge_proposal;

// Proposes what may follow a text: writes at most `limit` ≥ 1 draft tokens and returns how many; 0 without an idea.
// While one generation lasts, the text only grows. A token outside the vocabulary ends it with HYBRIDGE_INVALID_TOKEN.
typedef size_t (*hybridge_propose)(
    const hybridge_context* context, hybridge_proposal* proposal, size_t limit, void* user
);

// Called between two chunks of a prompt, with the number of its tokens that are read; other sessions of the model may
// run meanwhile.
typedef void (*hybridge_on_read)(size_t count, void* user);

// Returns seconds, from wherever they are counted.
typedef double (*hybridge_clock)(void* user);

// Sampling options, as in Python: a temperature of 0 is greedy, and any other 0 leaves the option out. A seed gives the
// same text with every drafter; has_seed 0: the seed is drawn from the system, and drafters that can sample draw their
// tokens too.
typedef struct hybridge_sampling {
  double temperature, top_p, min_p, repetition_penalty;
  size_t top_k;
  uint64_t seed;
  int has_seed;
} hybridge_sampling;

// Called with a text and the logits behind it, float32 [vocab_size], of which it makes those minus infinity whose
// tokens may not come next. Once for each token, draft tokens that are verified included.
typedef void (*hybridge_mask)(const int64_t* text, size_t count, float* logits, size_t vocab_size, void* user);

// Writes the tokens, at most `limit`, that come behind a text whatever the model says, and returns how many: they are
// verified at once. And how many of `proposed` tokens, from the first on, a mask will leave: the others are not
// verified in vain.
typedef size_t (*hybridge_forced)(const int64_t* text, size_t count, int64_t* tokens, size_t limit, void* user);
typedef size_t (*hybridge_fitting)(
    const int64_t* text, size_t count, const int64_t* proposed, size_t proposals, void* user
);

// Called with each new token and the logits that it was drawn from, float32 [vocab_size], as the model gave them.
typedef void (*hybridge_watch)(int64_t token, const float* logits, size_t vocab_size, void* user);

// max_new_tokens ≥ 1; block_length: tokens that are verified at once, at most the model's verify_len; 0 for what is
// fastest by what is measured, plain decoding included. Greedily and with a seed the tokens are the same for every
// choice of it and of a drafter. sampling null: greedy; one that makes no distribution is HYBRIDGE_INVALID_ARGUMENT.
// draft: the smaller model, of which the session keeps a session of its own as long as it is given the same one. mask
// null: any token may come; one that leaves none is HYBRIDGE_INVALID_GRAMMAR. propose: the caller's own drafter;
// reads_hidden: it sees hidden states, which the model must put out; is_cheap: proposing takes next to no time, so that
// it is asked in each round; drafter_id: a number that the caller gives this drafter, by which the session remembers
// what it measured with it, or 0. grammar: what the text must fit (below), or 0; it takes the place of mask, forced and
// fitting, which are null then. In a chat it begins behind the reasoning. Where it leaves no token, which is
// HYBRIDGE_INVALID_GRAMMAR as well, hybridge_failure says why. tool_choice: in a chat with tools null or "auto" if the
// model may call them, "none" if what looks like a call is content, and "required" or the name of a tool if the answer
// is calls; null elsewhere. Calls fit the tools' schemas, but for "auto" with a grammar or a mask, or a tokenizer that
// has no tokens for bytes. What else is null is left out. All are called with the generation's `user`.
//
// For tests that repeat themselves, null in an app: clock, by which block lengths are chosen, and noise, the seed of a
// sampling that has none.
typedef struct hybridge_generation {
  size_t max_new_tokens, block_length;
  hybridge_drafter drafter;
  const hybridge_sampling* sampling;
  hybridge_model draft;
  hybridge_mask mask;
  hybridge_propose propose;
  hybridge_on_read on_read;
  hybridge_clock clock;
  const uint64_t* noise;
  hybridge_forced forced;
  hybridge_fitting fitting;
  hybridge_watch watch;
  uint64_t drafter_id;
  int reads_hidden, is_cheap;
  hybridge_grammar grammar;
  const char* tool_choice;
} hybridge_generation;

// proposed and accepted count draft tokens, of which `forced` were accepted as those that `forced` had given; verifies
// and decodes the calls of the model, rollbacks the blocks that were not accepted whole. Seconds by phase; new_seconds
// is the time of all new tokens after the first, which the prefill pays for. What on_token takes is in none of them.
typedef struct hybridge_generated {
  size_t tokens, proposed, accepted, verifies, decodes, rollbacks, forced;
  double prefill_seconds, draft_seconds, verify_seconds, commit_seconds, decode_seconds, new_seconds;
} hybridge_generated;

// Called for each token, while other sessions of the model may run; answers 0 to end the generation behind it.
typedef int (*hybridge_on_token)(int64_t token, void* user);

// "0.3.0", and a sentence for a status; never null.
const char* hybridge_version(void);
const char* hybridge_status_text(hybridge_status status);

// Returns in words why this thread's last call failed, such as which token is outside the vocabulary, with what the
// runtime logged about it, such as the names of missing operators; those of hybridge_status_text where there are no
// others. Empty after a call that did not fail. Valid until the thread's next call of a function that answers with a
// status.
const char* hybridge_failure(void);

// Switches printing of the runtime's log on, as it is at first, or off with 0, in the whole process.
void hybridge_print_log(int wanted);

// Return 1 if the app links a kernel for an operator, such as "aten::add.out", or a backend; otherwise 0, and for null.
// A program's manifest.json lists what it needs of both.
int hybridge_has_operator(const char* name);
int hybridge_has_backend(const char* name);

// Sets the number of threads that all sessions compute on, up to 1024; 0: one for each fast core that this process and
// its container may use, the default. Call it before sessions are opened: with XNNPACK they keep the threads that they
// found, and while one is open another number is HYBRIDGE_INVALID_STATE and changes nothing. Programs with XNNPACK that
// an app loads by itself keep them as well and are not known here: load those after this call, or after the first model
// is opened.
hybridge_status hybridge_set_threads(size_t count);

// Returns that number.
size_t hybridge_threads(void);

// A model may be closed before its sessions, which keep the weights as long as they need them.
hybridge_status hybridge_model_open(const char* path, hybridge_model* model);
hybridge_status hybridge_model_close(hybridge_model model);

// Lets the core ask, where a model's file was touched since it was mapped, whether its bytes are still the same: not 0
// if they are. Asked in the middle of a call. Without it a file that was touched is HYBRIDGE_INVALID_ARTIFACT.
typedef int (*hybridge_is_same)(void* user);
hybridge_status hybridge_model_ask(hybridge_model model, hybridge_is_same is_same, void* user);

hybridge_status hybridge_model_info(hybridge_model model, hybridge_info* info);

// The tokens behind which a generation ends: their number in `count`, and the first `capacity` of them in `ids`, which
// is null for a capacity of 0.
hybridge_status hybridge_model_eos_ids(hybridge_model model, int64_t* ids, size_t capacity, size_t* count);

// Likewise the lengths of the verify methods, ascending: a block of another length takes as long as the next longer
// one.
hybridge_status hybridge_model_verify_lens(hybridge_model model, int64_t* lengths, size_t capacity, size_t* count);

// The buffers of a state, and the numbers of a call: named, in memory that is not the caller's own.
typedef enum hybridge_type {
  HYBRIDGE_UINT8 = 0,
  HYBRIDGE_INT8 = 1,
  HYBRIDGE_INT64 = 2,
  HYBRIDGE_FLOAT32 = 3,
  HYBRIDGE_BOOL = 4,
  HYBRIDGE_FLOAT16 = 5
} hybridge_type;

#define HYBRIDGE_MOST_DIMENSIONS 8

typedef struct hybridge_array {
  const char* name;
  hybridge_type type;
  size_t dimensions;
  int64_t shape[HYBRIDGE_MOST_DIMENSIONS];
  void* data;
} hybridge_array;

// A program of the caller's: the methods and the state that docs/artifact.md describes, as functions, which may be
// called from any thread in turn. call runs a method and describes its outputs, at most `capacity`, which last until
// its next call; it returns how many there are, -1 where it failed, or -2 where it failed and left the state as it was.
// buffer describes one of the state's, where it is now, and returns 0, or -1 without one. close is called once nothing
// refers to the program any more, by any thread.
//
// verify_lens ascend; draft_blocks are the lengths that its drafter proposes in, the text's last token included, and
// draft_taps the places of the hidden states that it reads, among `taps` that are put out. names are those of all
// buffers, bounded of those without which a longer text cannot be cut back. fixed_shapes: methods take blocks of these
// lengths alone, padded; row_axis: of buffers with a row for each position. vision: of an encoder of pictures, pixels
// along a side of a patch, patches along a side of a token's square, learned positions along a side, the placeholder,
// and the most tokens of each of its methods, ascending; none without one.
typedef struct hybridge_program {
  void* self;
  int (*call)(
      void* self, const char* method, const hybridge_array* inputs, size_t count, hybridge_array* outputs,
      size_t capacity
  );
  int (*buffer)(void* self, const char* name, hybridge_array* found);
  void (*close)(void* self);
  int64_t max_seq_len, vocab_size, prefill_chunk, snapshot_slots, taps;
  const int64_t *verify_lens, *eos_ids, *draft_blocks, *draft_taps;
  size_t verify_len_count, eos_id_count, draft_block_count, draft_tap_count;
  const char* const* names;
  const char* const* bounded;
  size_t name_count, bounded_count, row_axis;
  int draft_samples, fixed_shapes;
  uint64_t fingerprint;
  const int64_t* vision;
  size_t vision_count;
} hybridge_program;

// Opens it for one session: it has one state. A second session is HYBRIDGE_BUSY. Numbers and names are copied.
hybridge_status hybridge_program_open(const hybridge_program* program, hybridge_model* model);

// The pictures that a model takes. unit: pixels of which both sides of a picture are multiples, and along a side of the
// square that becomes one token; 0 for a model without pictures. most_tokens: of one picture. placeholder: the token
// that stands for a picture in the text of a chat template, -1 without.
typedef struct hybridge_vision {
  int64_t unit, most_tokens, placeholder;
} hybridge_vision;

hybridge_status hybridge_model_vision(hybridge_model model, hybridge_vision* vision);

// Tells a model how its pictures are prepared: `pictures` of the artifact's manifest as JSON, and the tokenizer that
// has the tokens around them, 0 for pictures without any. hybridge_artifact_open has done it. HYBRIDGE_INVALID_PICTURE
// for pictures of another model.
hybridge_status hybridge_model_pictures(
    hybridge_model model, hybridge_tokenizer tokenizer, const char* pictures, size_t size
);

// A picture for the texts of all sessions of a model. rgb: uint8 [height, width, 3], of any size: it is resized and cut
// as the model's processor does it. In a text it is a run of ids below 0, one for each token that it takes, made of the
// SHA-256 of its prepared pixels; if it is cut into tiles there are tokens before each run, and around all of them.
// Functions that read a prompt take these ids among tokens, all of a picture's together, and encode it once as long as
// it is open. hybridge_tokens returns them too. A text that was read, its checkpoints and its saved states need the
// picture no more; to read it again, the picture must be open. HYBRIDGE_INVALID_PICTURE for a picture with no pixels or
// more than 67,108,864, and one that is too long and narrow for the model.
hybridge_status hybridge_picture_open(
    hybridge_model model, const uint8_t* rgb, size_t width, size_t height, hybridge_picture* picture
);

// The same for one part whose sides are multiples of `unit`, as it is and with no tokens around it.
hybridge_status hybridge_picture_open_prepared(
    hybridge_model model, const uint8_t* rgb, size_t width, size_t height, hybridge_picture* picture
);
hybridge_status hybridge_picture_close(hybridge_picture picture);

// parts: of a picture, 1 if it was not cut; rows, columns: of its tiles, behind which there may be a small copy of the
// whole. encodings: how often its parts were encoded, all together.
typedef struct hybridge_pictured {
  size_t parts, rows, columns, encodings;
} hybridge_pictured;

// A picture's ids, as hybridge_tokens copies those of a text; pictured may be null.
hybridge_status hybridge_picture_ids(
    hybridge_picture picture, int64_t* ids, size_t capacity, size_t* count, hybridge_pictured* pictured
);

// A part of a picture as the encoder takes it, and what it becomes. rgb: uint8 [height, width, 3]; embeddings: float32
// [rows, hidden], null and hidden 0 before it was encoded. Both stay as long as the picture is open.
typedef struct hybridge_encoded {
  const uint8_t* rgb;
  const float* embeddings;
  size_t width, height, rows, hidden;
} hybridge_encoded;

// HYBRIDGE_INVALID_ARGUMENT if the picture has no such part. Not while a session reads the picture.
hybridge_status hybridge_picture_part(hybridge_picture picture, size_t part, hybridge_encoded* encoded);

hybridge_status hybridge_session_open(hybridge_model model, hybridge_session* session);
hybridge_status hybridge_session_close(hybridge_session session);

// The committed tokens: their number in `count`, and the first `capacity` of them in `tokens`, which is null for a
// capacity of 0.
hybridge_status hybridge_tokens(hybridge_session session, int64_t* tokens, size_t capacity, size_t* count);

// Likewise the tokens of a snapshot slot; none if it is empty.
hybridge_status hybridge_slot_tokens(
    hybridge_session session, int64_t slot, int64_t* tokens, size_t capacity, size_t* count
);

// `logits` takes float32 [vocab_size] after the last token, of a verify [count, vocab_size] after each; null leaves
// them out.
hybridge_status hybridge_prefill(hybridge_session session, const int64_t* tokens, size_t count, float* logits);
hybridge_status hybridge_decode(hybridge_session session, int64_t token, float* logits);
hybridge_status hybridge_verify(hybridge_session session, const int64_t* tokens, size_t count, float* logits);
hybridge_status hybridge_commit(hybridge_session session, int64_t count);
hybridge_status hybridge_snapshot(hybridge_session session, int64_t slot);
hybridge_status hybridge_restore(hybridge_session session, int64_t slot);
hybridge_status hybridge_reset(hybridge_session session);

// Writes the state to a file with a note, which may be null; load restores it, and hybridge_note returns the note of
// the last loaded state: its bytes in `size`, of which the first `capacity` are copied.
hybridge_status hybridge_save(hybridge_session session, const char* path, const char* note);
hybridge_status hybridge_load(hybridge_session session, const char* path);
hybridge_status hybridge_note(hybridge_session session, char* note, size_t capacity, size_t* size);

// The buffers of a session's state, docs/artifact.md has them, where they are until the session's next call: their
// number in `count`, and the first `capacity` of them. To look at; names last as long as the session.
hybridge_status hybridge_buffers(hybridge_session session, hybridge_array* buffers, size_t capacity, size_t* count);

// Hidden states that a model puts out (--tap-layers, drafters), float32 [rows, width], of the last call's tokens: a
// view that lasts until the session's next call.
hybridge_status hybridge_hidden(hybridge_session session, const float** hidden, size_t* rows, size_t* width);

// Keeps the hidden states of all committed tokens from now on, or stops with 0, until a drafter reads them: that of a
// generation with HYBRIDGE_OWN_DRAFTER, after which they are no longer kept, or one that reads_hidden. wanted:
// HYBRIDGE_OWN_DRAFTER if the program's drafter will read them; then it reads them before a snapshot, a checkpoint or a
// saved state is made.
hybridge_status hybridge_keep_hidden(hybridge_session session, int wanted);

// Draft tokens, none where the drafter's context is full, and its own estimate of each. Where they were drawn: scores
// [count, width] that each was chosen by, of the candidates [count, width], or [width] for all where shared_candidates
// is not 0, or of all tokens where that is null. Views that last until the session's next call.
typedef struct hybridge_drafted {
  size_t count, width;
  const int64_t* tokens;
  const float* confidences;
  const float* scores;
  const int64_t* candidates;
  int shared_candidates;
} hybridge_drafted;

// Lets the drafter inside the model read hidden states [rows, width] of committed tokens and the token after each,
// `following`, and propose at most `limit` ≥ 1 tokens: its best, or drawn at a temperature by noise in [0, 1), `limit`
// numbers, where that is not null and it can. HYBRIDGE_INVALID_DRAFTER for hidden states of another width than the
// model's, and a model without a drafter.
hybridge_status hybridge_draft(
    hybridge_session session, const float* hidden, size_t rows, size_t width, const int64_t* following, size_t limit,
    const float* noise, double temperature, hybridge_drafted* drafted
);

// A checkpoint is a state in memory that any session of its model goes on from, whatever came since. It copies what its
// text added to the session's checkpoint before, as long as that is open; `bytes` are those of its own, `shared_bytes`
// those of the rows that it has in common with checkpoints of shorter texts. hybridge_resume empties the slots; a
// checkpoint of another file's model is HYBRIDGE_INVALID_ARGUMENT. Checkpoints may be closed in any order, and after
// their model and sessions.
typedef struct hybridge_kept {
  size_t length, bytes, shared_bytes;
} hybridge_kept;

hybridge_status hybridge_checkpoint_make(hybridge_session session, hybridge_checkpoint* checkpoint);
hybridge_status hybridge_checkpoint_info(hybridge_checkpoint checkpoint, hybridge_kept* kept);
hybridge_status hybridge_checkpoint_close(hybridge_checkpoint checkpoint);
hybridge_status hybridge_resume(hybridge_session session, hybridge_checkpoint checkpoint);

// A checkpoint in parts, to keep elsewhere: segments of its text, which others share, shortest text first, then what it
// alone has. Numbers that tell parts from all others of this process are in `ids`; a part's bytes are copied, `size`
// says how many there are.
hybridge_status hybridge_checkpoint_parts(
    hybridge_checkpoint checkpoint, uint64_t* ids, size_t capacity, size_t* count
);
hybridge_status hybridge_checkpoint_part(
    hybridge_checkpoint checkpoint, size_t part, uint8_t* bytes, size_t capacity, size_t* size
);

// The checkpoint of such parts, of which the first `shared` are those of another one. HYBRIDGE_INVALID_SAVED_STATE
// where a session of the model could not have made them.
typedef struct hybridge_part {
  const uint8_t* bytes;
  size_t size;
} hybridge_part;

hybridge_status hybridge_checkpoint_read(
    hybridge_session session, hybridge_checkpoint like, size_t shared, const hybridge_part* parts, size_t count,
    hybridge_checkpoint* checkpoint
);

// Checkpoints of a model by their texts, of at most `bytes` together; those that were used last stay. find returns the
// checkpoint of the longest beginning of a text, or 0.
hybridge_status hybridge_cache_open(hybridge_model model, size_t bytes, hybridge_cache* cache);
hybridge_status hybridge_cache_close(hybridge_cache cache);
hybridge_status hybridge_cache_add(hybridge_cache cache, hybridge_checkpoint checkpoint);
hybridge_status hybridge_cache_find(
    hybridge_cache cache, const int64_t* tokens, size_t count, hybridge_checkpoint* checkpoint
);
hybridge_status hybridge_cache_clear(hybridge_cache cache);

// Called with each checkpoint that is kept in a cache or found there, by chats too, in the middle of a call; it is
// closed by whoever is called. Null: nobody.
typedef void (*hybridge_on_use)(hybridge_checkpoint checkpoint, void* user);
hybridge_status hybridge_cache_watch(hybridge_cache cache, hybridge_on_use on_use, void* user);

// Number of checkpoints in a cache, and their bytes; rows that several share count once.
typedef struct hybridge_cached {
  size_t checkpoints, bytes;
} hybridge_cached;

hybridge_status hybridge_cache_info(hybridge_cache cache, hybridge_cached* cached);

// Brings the session to a text of at least one token. It reads only what neither the session nor a checkpoint of
// `cache` has; `cached_tokens`, which may be null, takes the number of tokens that were not read. Checkpoints of what
// it reads go into the cache; 0 is none, and one of another model is HYBRIDGE_INVALID_ARGUMENT. The program's drafter
// reads the text, too, unless hybridge_keep_hidden keeps hidden states for another one. If it fails, the session is at
// a beginning of the text.
hybridge_status hybridge_bring_to(
    hybridge_session session, hybridge_cache cache, const int64_t* tokens, size_t count, size_t* cached_tokens
);

// Text behind the prompt. options null: 64 tokens, the fastest length, prompt lookup, greedy. on_token and generated
// may be null.
hybridge_status hybridge_generate(
    hybridge_session session, const int64_t* prompt, size_t count, const hybridge_generation* options,
    hybridge_on_token on_token, void* user, hybridge_generated* generated
);

// The same, a round at a time, for callers that ask for tokens: begin reads the prompt and answers with the first
// token; next, where all of the last ones are wanted, with those that follow, none at the end; end, where only the
// first `taken` are, or no more. Each answers with at most verify_len tokens, and `capacity` must be no less. What the
// options name must last until the end. Tokens that end a text end nothing here: that is for the caller. Any other call
// that changes the session's text ends the generation, and so does a snapshot: tokens of a verified block are then left
// out. HYBRIDGE_INVALID_STATE is the answer from then on, as it is where none was begun. A call that fails ends the
// generation as well, because the session's text may then lack tokens: after it next answers HYBRIDGE_INVALID_STATE,
// and end closes the account.
hybridge_status hybridge_begin(
    hybridge_session session, const int64_t* prompt, size_t count, const hybridge_generation* options, void* user,
    int64_t* tokens, size_t capacity, size_t* given
);
hybridge_status hybridge_next(hybridge_session session, int64_t* tokens, size_t capacity, size_t* given);
hybridge_status hybridge_end(hybridge_session session, size_t taken, hybridge_generated* generated);

// Return the counts so far, as `generated` of end, which may be null; and the draft tokens that were verified for the
// last tokens, with `forced` 1 if a grammar forced them.
hybridge_status hybridge_progress(hybridge_session session, hybridge_generated* generated);
hybridge_status hybridge_proposed(
    hybridge_session session, int64_t* tokens, size_t capacity, size_t* count, int* forced
);

// Ends the generation that runs in this session, or waits for another session's: behind its next token, before draft
// tokens are verified, or between two chunks of its prompt, of which nothing then stays (HYBRIDGE_CANCELLED). One that
// was begun runs until its end: hybridge_next then has no more tokens. It counts as soon as the call is in the session,
// whatever that waits for, and does nothing where none is. From any thread, and from the generation's callbacks.
hybridge_status hybridge_cancel(hybridge_session session);

// A tokenizer.json: it makes tokens of a text and a text of tokens, as Hugging Face's tokenizers library does. Once it
// is open it does not change: any number of threads may use one. Texts are UTF-8 and have a length; what is none is
// read as U+FFFD.

// HYBRIDGE_INVALID_ARTIFACT for one that is damaged, or asks for parts that are not known here: hybridge_failure names
// them.
hybridge_status hybridge_tokenizer_open(const char* path, hybridge_tokenizer* tokenizer);
hybridge_status hybridge_tokenizer_read(const char* json, size_t size, hybridge_tokenizer* tokenizer);
hybridge_status hybridge_tokenizer_close(hybridge_tokenizer tokenizer);

// How a text is read, added up: with what the tokenizer puts around every text, such as bos; with texts of special
// tokens as text like any other.
typedef enum hybridge_reading { HYBRIDGE_AROUND = 1, HYBRIDGE_PLAIN = 2 } hybridge_reading;

// The part of a text that a token stands for, in bytes; an empty one for what was put around it.
typedef struct hybridge_span {
  size_t begin, end;
} hybridge_span;

// Writes the first `capacity` tokens, and their spans unless that is null; count: of all. plain: the parts of the text
// that people wrote, in any order, of which special tokens take nothing, whatever they spell; null for none.
// HYBRIDGE_INVALID_ARGUMENT for a part that is not in the text, and for a text that the vocabulary has no tokens for,
// of which no published one has any.
hybridge_status hybridge_tokenizer_encode(
    hybridge_tokenizer tokenizer, const char* text, size_t size, int reading, const hybridge_span* plain,
    size_t plain_count, int64_t* tokens, hybridge_span* spans, size_t capacity, size_t* count
);

// Writes the first `capacity` bytes of the tokens' text, without special tokens if they are to be skipped; size: of all
// of it.
hybridge_status hybridge_tokenizer_decode(
    hybridge_tokenizer tokenizer, const int64_t* tokens, size_t count, int skip_special, char* text, size_t capacity,
    size_t* size
);

// The id of a token by its text, -1 for none; the text of a token as the vocabulary has it.
hybridge_status hybridge_tokenizer_id(hybridge_tokenizer tokenizer, const char* token, size_t size, int64_t* id);
hybridge_status hybridge_tokenizer_token(
    hybridge_tokenizer tokenizer, int64_t id, char* token, size_t capacity, size_t* size
);

// The bytes that a token adds to a text after other tokens: with the space before it, maybe a part of a character. A
// special token adds its text.
hybridge_status hybridge_tokenizer_bytes(
    hybridge_tokenizer tokenizer, int64_t id, char* bytes, size_t capacity, size_t* size
);

// The ids of the tokens that are cut out of a text before it is split, in ascending order: of all, or of those that are
// special.
hybridge_status hybridge_tokenizer_added(
    hybridge_tokenizer tokenizer, int special, int64_t* ids, size_t capacity, size_t* count
);

// vocab_size: one more than the largest id; longest: bytes of the longest token.
typedef struct hybridge_vocabulary {
  size_t vocab_size, longest;
} hybridge_vocabulary;
hybridge_status hybridge_tokenizer_info(hybridge_tokenizer tokenizer, hybridge_vocabulary* info);

// The text of tokens that come one after the other. push: what a token adds; a character is held back until all of it
// is there. finish: what is still held back. The piece stays until the next call of this stream, of which there is one
// at a time.
typedef uint64_t hybridge_text;
hybridge_status hybridge_text_open(hybridge_tokenizer tokenizer, int skip_special, hybridge_text* text);
hybridge_status hybridge_text_push(hybridge_text text, int64_t token, const char** piece, size_t* size);
hybridge_status hybridge_text_finish(hybridge_text text, const char** piece, size_t* size);

// Lets the text end before a string, which is not empty, and says whether it has: to the first of such strings that is
// complete. A text that may begin one is held back.
hybridge_status hybridge_text_stop(hybridge_text text, const char* stop, size_t size);
hybridge_status hybridge_text_stopped(hybridge_text text, int* stopped);
hybridge_status hybridge_text_close(hybridge_text text);

// Grammars: texts that are JSON of a schema, or that a regular expression matches as a whole. A generation follows one
// by its field `grammar`; the text ends with a token that ends texts once it is complete, and is incomplete if it ends
// for another reason, such as max_new_tokens. One grammar serves any number of generations, in any threads; what it
// finds out for one, it knows for the next.
//
// A schema's JSON is on one line, with ", " and ": ", and has the properties in the schema's order. docs/structured.md
// lists the keywords. A regular expression has the syntax of Rust's, without look-around. HYBRIDGE_INVALID_GRAMMAR for
// what cannot be followed, such as a keyword that is not supported, and for a tokenizer that is neither byte-level nor
// has tokens for bytes; hybridge_failure says why. The first grammar of a tokenizer takes longer, as it reads the
// vocabulary.
hybridge_status hybridge_grammar_json_schema(
    hybridge_tokenizer tokenizer, const char* schema, size_t size, hybridge_grammar* grammar
);
hybridge_status hybridge_grammar_regex(
    hybridge_tokenizer tokenizer, const char* pattern, size_t size, hybridge_grammar* grammar
);
hybridge_status hybridge_grammar_close(hybridge_grammar grammar);

// Calls of tools, a JSON list as in OpenAI's API, whose arguments fit the tools' schemas, as a form of answers (below)
// writes them. tool_choice: null or "auto": the text is free; once one of the form's marks opens calls outside of
// reasoning, they are of these tools, and the text is free again after the mark that closes them. "required", or the
// name of a tool: the text is calls and nothing else. single: not 0 for one call at most between two marks. Special
// tokens of the tokenizer that are marks of the form are forced as such. HYBRIDGE_INVALID_GRAMMAR for parameters that
// cannot be followed, unless `strict` of their function is false, and for a tool that is not among them;
// hybridge_failure names it.
typedef uint64_t hybridge_answer_form;
typedef uint64_t hybridge_template;
hybridge_status hybridge_grammar_calls(
    hybridge_tokenizer tokenizer, hybridge_answer_form form, const char* tools, size_t size, const char* tool_choice,
    int single, hybridge_grammar* grammar
);

// The same grammar with a beginning and an end of its own; both handles are closed. after: a text such as the end of a
// reasoning; up to it any token may come that does not end the text, after it a blank line and the grammar. Empty: the
// grammar begins at once. In a text that is free up to a call, `after` ends the reasoning that the prompt has begun.
// eos_ids: the tokens that end a text, in place of the model's; the model's if there are none.
hybridge_status hybridge_grammar_with(
    hybridge_grammar grammar, const char* after, size_t size, const int64_t* eos_ids, size_t eos_count,
    hybridge_grammar* with
);

// For callers that choose tokens themselves: what a grammar says after `text`, the tokens so far without a prompt. mask
// makes the logits, float32 [vocab_size], minus infinity of all tokens that may not come; only the grammar's own
// eos_ids end a text here. forced writes the tokens that come whatever is chosen, the first `capacity` of them; fitting
// counts the proposed tokens, from the first on, that may come. Calls for a text that grows are quick if no other text
// comes between them.
hybridge_status hybridge_grammar_mask(
    hybridge_grammar grammar, const int64_t* text, size_t count, float* logits, size_t vocab_size
);
hybridge_status hybridge_grammar_forced(
    hybridge_grammar grammar, const int64_t* text, size_t count, int64_t* tokens, size_t capacity, size_t* found
);
hybridge_status hybridge_grammar_fitting(
    hybridge_grammar grammar, const int64_t* text, size_t count, const int64_t* proposed, size_t proposals,
    size_t* fitting
);

// Answers: reasoning, content and calls of tools are separated while an answer comes, by the form in which the model's
// family writes them. find: by the response template that the tokenizer of an artifact's folder may have; or else the
// first form whose marks are in the chat template, or else in the tokenizer's vocabulary. Where the template reads no
// tools, or the form of the model's calls is not known, calls are JSON in <tool_call> tags, and
// hybridge_template_render tells the tools in words. describe: a form as a JSON object for callers that make prompts:
// its name, the text that leads to content, the marks of reasoning, how calls are written and what opens them, and
// looked_for, which contains the special tokens that must stay in the text. A form may be closed while answers of it
// are open.
hybridge_status hybridge_answer_form_find(
    hybridge_tokenizer tokenizer, hybridge_template chat_template, hybridge_answer_form* form
);
hybridge_status hybridge_answer_form_named(const char* name, size_t size, hybridge_answer_form* form);
hybridge_status hybridge_answer_form_describe(hybridge_answer_form form, char* text, size_t capacity, size_t* size);
hybridge_status hybridge_answer_form_close(hybridge_answer_form form);

// An answer to a rendered prompt, which may have begun its reasoning. tools: those that are offered, a JSON list as in
// OpenAI's API; without any, text that looks like a call is content. push and finish give the events of a piece and of
// the end as a JSON list of
// ["reasoning", TEXT, ""], ["content", TEXT, ""] and ["call", NAME, ARGUMENTS], in which ARGUMENTS is the text of a
// JSON object. A call comes when it is complete; one that is cut off is content, and a mark that is cut off is dropped.
// The events stay until the next call with this answer, of which there is one at a time. reasoning_end: the text that
// ends the reasoning which the prompt has begun, empty if it has begun none.
typedef uint64_t hybridge_answer_parser;
hybridge_status hybridge_answer_open(
    hybridge_answer_form form, const char* prompt, size_t size, const char* tools, size_t tools_size,
    hybridge_answer_parser* answer
);
hybridge_status hybridge_answer_reasoning_end(hybridge_answer_parser answer, char* text, size_t capacity, size_t* size);
hybridge_status hybridge_answer_push(
    hybridge_answer_parser answer, const char* piece, size_t size, const char** events, size_t* events_size
);
hybridge_status hybridge_answer_finish(hybridge_answer_parser answer, const char** events, size_t* events_size);
hybridge_status hybridge_answer_close(hybridge_answer_parser answer);

// Chat templates in Jinja, as checkpoints have them. open: HYBRIDGE_INVALID_TEMPLATE for an error in the syntax. render
// gives the text for variables, a JSON object such as {"messages": [...], "add_generation_prompt": true}, as
// transformers' sandbox does, and those parts of it that come from the variables, in which special tokens are text;
// variables whose names end with _token are the model's own words. form: of the model's answers, or 0; by one whose
// tools are told in words, the variables' tools, calls and results are in messages. now: the local time, such as
// 2026-01-31T12:00:00; null for the system's. The text and the parts stay until the next call with this template, of
// which there is one at a time. HYBRIDGE_INVALID_TEMPLATE for what the template refuses and for what exceeds the limits
// of steps, memory and text. read: those of an artifact's folder, with its special tokens, which rendering adds to the
// variables; HYBRIDGE_INVALID_ARTIFACT for one that is damaged, or has a file that is not what its manifest says.
// Rendering takes the template named tool_use where it exists and the variable `tools` is not null, or else the default
// one, and is HYBRIDGE_INVALID_TEMPLATE without any. describe gives JSON, as hybridge_note gives text: the `names` of
// the templates, the variable that is their `thinking_switch` or "", their `sources`, and a `warning` that says why the
// tokenizer's own response template is not followed, or "".
hybridge_status hybridge_template_open(const char* text, size_t size, hybridge_template* opened);
hybridge_status hybridge_template_read(const char* folder, hybridge_template* opened);
hybridge_status hybridge_template_render(
    hybridge_template opened, hybridge_answer_form form, const char* variables, size_t variables_size, const char* now,
    const char** text, size_t* size, const hybridge_span** words, size_t* word_count
);
hybridge_status hybridge_template_describe(hybridge_template opened, char* text, size_t capacity, size_t* size);
hybridge_status hybridge_template_close(hybridge_template opened);

// Chats: words in, words out. An artifact's folder has what that takes: the program, tokenizer.json, and the model's
// chat template. Opened once, it serves any number of chats.
//
//   hybridge_artifact artifact;
//   hybridge_chat chat;
//   hybridge_artifact_open("OUT", &artifact);
//   hybridge_chat_open(artifact, NULL, &chat);
//   hybridge_chat_send(chat, "Hello", 5, NULL, NULL, 0, show, user, NULL);
typedef uint64_t hybridge_artifact;
typedef uint64_t hybridge_chat;

// HYBRIDGE_INVALID_ARTIFACT for a folder that is damaged or lacks a part; hybridge_failure says which. A folder without
// tokenizer.json opens, and has no chats. Its model and tokenizer are the artifact's own: they are closed with it, and
// chats keep what they need.
hybridge_status hybridge_artifact_open(const char* folder, hybridge_artifact* artifact);
hybridge_status hybridge_artifact_close(hybridge_artifact artifact);
hybridge_status hybridge_artifact_model(hybridge_artifact artifact, hybridge_model* model);
hybridge_status hybridge_artifact_tokenizer(hybridge_artifact artifact, hybridge_tokenizer* tokenizer);

// Whether the model thinks before it answers, by the switch of its chat template; as usual: as the template does by
// itself.
typedef enum hybridge_thinking {
  HYBRIDGE_THINKING_AS_USUAL = 0,
  HYBRIDGE_THINKING_ON = 1,
  HYBRIDGE_THINKING_OFF = 2
} hybridge_thinking;

// system: what the model is told before the first message, or null. checkpoint_bytes: most memory for states to go back
// to, 0 for 256 MB; a state that had to go is read again. variables: more of them for the chat template, as a JSON
// object such as
// {"reasoning_effort": "low"}, or null. tools: those that the model may call, a list as OpenAI's API has it, such as
// [{"type": "function", "function": {"name": "weather", "parameters": {…}}}] in JSON, or null; a chat template that
// knows none is HYBRIDGE_INVALID_ARGUMENT then. cache: a cache of the session's model for these states, which may have
// those of other texts too, in place of one of checkpoint_bytes; 0 for none. now: the local time that the chat template
// sees, such as 2026-01-31T12:00:00, or null for the system's.
typedef struct hybridge_chat_options {
  const char* system;
  hybridge_thinking thinking;
  size_t checkpoint_bytes;
  const char* variables;
  const char* tools;
  hybridge_cache cache;
  const char* now;
} hybridge_chat_options;

// A chat with a session of its own. options may be null. HYBRIDGE_INVALID_ARTIFACT where the folder has no tokenizer or
// no chat template that can be read; HYBRIDGE_INVALID_TEMPLATE for a system's message that it refuses;
// HYBRIDGE_INVALID_ARGUMENT for a switch for thinking that it does not have, and variables that are no JSON object or
// that a conversation sets itself. hybridge_failure says why.
hybridge_status hybridge_chat_open(
    hybridge_artifact artifact, const hybridge_chat_options* options, hybridge_chat* chat
);

// The same over a session, a tokenizer and a chat template of the caller's; the session must stay open, and its text is
// the chat's from the first answer on.
hybridge_status hybridge_chat_over(
    hybridge_session session, hybridge_tokenizer tokenizer, hybridge_template chat_template,
    const hybridge_chat_options* options, hybridge_chat* chat
);

// A call of a tool, in UTF-8, whose arguments are a JSON object. id: of nine letters and digits.
typedef struct hybridge_call {
  const char* id;
  const char* name;
  size_t name_size;
  const char* arguments;
  size_t arguments_size;
} hybridge_call;

// A message, as long as the chat's next call does not end: role is "system", "user", "assistant" or "tool"; the
// reasoning of most is empty. pictures: the number of those before its content. calls: of an answer; of a tool's
// message the call whose result it is, without arguments.
typedef struct hybridge_message {
  const char* role;
  const char* content;
  size_t content_size;
  const char* reasoning;
  size_t reasoning_size;
  size_t pictures;
  const hybridge_call* calls;
  size_t call_count;
} hybridge_message;

// What a token adds to an answer, in whole characters of UTF-8: to what is said, or to the reasoning before it. Either
// may be empty. calls: of tools, each once it is complete; most pieces have none.
typedef struct hybridge_piece {
  const char* content;
  size_t content_size;
  const char* reasoning;
  size_t reasoning_size;
  const hybridge_call* calls;
  size_t call_count;
} hybridge_piece;

// Closes a chat, and a session of its own. HYBRIDGE_BUSY while an answer is generated, from its callbacks too.
hybridge_status hybridge_chat_close(hybridge_chat chat);

// Puts pictures before the chat's next message, in the place of those that wait; they wait on where the message fails.
// The chat keeps them open as long as it has the message, so each is encoded once, and a saved conversation has their
// pixels, with at most 60 MB. A message with pictures is HYBRIDGE_INVALID_PICTURE if the chat template has no place for
// them.
hybridge_status hybridge_chat_show(hybridge_chat chat, const hybridge_picture* pictures, size_t count);

// Called for each token of an answer, and once at its end, while other sessions of the model may run; answers 0 to end
// it.
typedef int (*hybridge_on_piece)(const hybridge_piece* piece, void* user);

// What ended an answer: the model, a stop string, max_new_tokens or a full context, or the caller.
typedef enum hybridge_ending {
  HYBRIDGE_ENDED_BY_MODEL = 0,
  HYBRIDGE_ENDED_BY_STOP = 1,
  HYBRIDGE_ENDED_BY_LENGTH = 2,
  HYBRIDGE_ENDED_BY_CALLER = 3
} hybridge_ending;

// prompt_tokens were read for the answer, cached_tokens were known from before.
typedef struct hybridge_answer {
  hybridge_ending ending;
  size_t prompt_tokens, cached_tokens;
  hybridge_generated generated;
} hybridge_answer;

// Answers a message. options null: 512 tokens, prompt lookup, greedy. stops: texts in UTF-8 before the first of which
// the answer ends. on_piece and answer may be null. Where it fails before the answer's first token, HYBRIDGE_CANCELLED
// included, nothing has changed; behind that, what was said stays. HYBRIDGE_NO_ROOM for a message that leaves no room
// for an answer; HYBRIDGE_INVALID_TEMPLATE for what the chat template refuses. Special tokens in a message are text,
// and what is no UTF-8 is read as U+FFFD.
hybridge_status hybridge_chat_send(
    hybridge_chat chat, const char* message, size_t size, const hybridge_generation* options, const char* const* stops,
    size_t stop_count, hybridge_on_piece on_piece, void* user, hybridge_answer* answer
);

// Answers the results of the tools that the last answer called: one for each of its calls, in their order, in UTF-8.
// Otherwise like hybridge_chat_send. HYBRIDGE_INVALID_STATE where the last answer called none,
// HYBRIDGE_INVALID_ARGUMENT for another number of results.
typedef struct hybridge_result {
  const char* content;
  size_t size;
} hybridge_result;

hybridge_status hybridge_chat_give_results(
    hybridge_chat chat, const hybridge_result* results, size_t count, const hybridge_generation* options,
    const char* const* stops, size_t stop_count, hybridge_on_piece on_piece, void* user, hybridge_answer* answer
);

// Another answer to the last message or results; and the user's last message and all after it taken back.
// HYBRIDGE_INVALID_STATE without one. Neither reads anything again as long as the checkpoints are there.
hybridge_status hybridge_chat_retry(
    hybridge_chat chat, const hybridge_generation* options, const char* const* stops, size_t stop_count,
    hybridge_on_piece on_piece, void* user, hybridge_answer* answer
);
hybridge_status hybridge_chat_undo(hybridge_chat chat);

// Begins anew, behind the system's message.
hybridge_status hybridge_chat_reset(hybridge_chat chat);

// Ends the answer that runs, as hybridge_cancel does: from any thread, and from on_piece.
hybridge_status hybridge_chat_cancel(hybridge_chat chat);

// Writes the conversation and the model's state to one file, and goes on with one, of `hybridge chat` as well. A file
// that is no conversation of this artifact's, as one with a state alone, is HYBRIDGE_INVALID_SAVED_STATE and changes
// nothing.
hybridge_status hybridge_chat_save(hybridge_chat chat, const char* path);
hybridge_status hybridge_chat_load(hybridge_chat chat, const char* path);

// The note of a saved conversation, JSON: its messages, its tokens, and where each message and answer begins. The first
// `capacity` bytes are copied; size: of all.
hybridge_status hybridge_chat_note(hybridge_chat chat, char* note, size_t capacity, size_t* size);

// Writes the first `capacity` messages; count: of all. room: tokens that still fit, or null.
hybridge_status hybridge_chat_messages(
    hybridge_chat chat, hybridge_message* messages, size_t capacity, size_t* count, int64_t* room
);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
