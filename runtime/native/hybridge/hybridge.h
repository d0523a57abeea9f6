// hybridge for C, and for every language that calls C: models of one artifact, sessions over them, and chats.
//
// An app that talks in words begins at hybridge_artifact_open, near the end:
//
//   hybridge_artifact artifact;
//   hybridge_chat chat;
//   hybridge_artifact_open("OUT", &artifact);
//   hybridge_chat_open(artifact, NULL, &chat);
//   hybridge_chat_send(chat, "Hello", 5, NULL, NULL, 0, show, user, NULL);
//
// One that has tokens begins at hybridge_model_open:
//
//   hybridge_model model;
//   hybridge_session session;
//   hybridge_model_open("OUT/model.pte", &model);                  // once: the weights
//   hybridge_session_open(model, &session);                        // once a conversation: a state of its own
//   hybridge_generate(session, prompt, n, NULL, show, user, NULL);
//   hybridge_snapshot(session, 0);                                 // keeps the state
//   hybridge_restore(session, 0);                                  // goes back to it
//
// Errors. Nothing throws and nothing prints. A function that can fail returns a hybridge_status, and hybridge_failure
// says in words what is wrong, what was expected and what to do. Each function below lists the statuses of its own;
// besides them it returns:
//   HYBRIDGE_INVALID_ARGUMENT   for a null pointer that may not be null
//   HYBRIDGE_INVALID_HANDLE     for a handle that is closed, zero or made up
//   HYBRIDGE_BUSY               for a session, a chat or a text stream that is in another call
//   HYBRIDGE_OUT_OF_MEMORY and HYBRIDGE_INTERNAL
// A function that runs the program also returns HYBRIDGE_NOT_FINITE, HYBRIDGE_PROGRAM_FAILED, HYBRIDGE_BROKEN_STATE
// and, for a file that changed while it was open, HYBRIDGE_INVALID_ARTIFACT. A call that fails leaves the state as it
// was. There are two exceptions. A generation keeps the tokens that it has given. After a call that could not undo what
// it had done, every call returns HYBRIDGE_BROKEN_STATE until the session is reset, or a state is restored, resumed or
// loaded. What a callback throws in C++ ends its call with HYBRIDGE_CALLBACK_FAILED.
//
// Pointers may not be null, unless the comment says so. Texts are UTF-8; what is no UTF-8 is read as U+FFFD. A function
// copies what it is given before it returns. One that fills an array takes its capacity, writes at most as many
// elements, and always writes the number that there are; a capacity of 0 with a null array asks for the number.
//
// Handles are structs, so that a compiler refuses a handle of another kind. An id is never used twice. {0} is no
// handle.
//
// Options are structs whose first field is their size, as the caller's compiler knows it. Make them by their
// hybridge_*_defaults function and change fields; a null pointer stands for the defaults. A field that a later version
// adds has its default for callers that do not know it. A struct_size of 0, one that is smaller than the first
// version's, and a larger one with fields that are not zero are HYBRIDGE_INVALID_ARGUMENT. Structs that the library
// fills have no size: with another layout, the shared library gets another SOVERSION.
//
// Threads. All functions may be called from any thread. A session that is in a call returns HYBRIDGE_BUSY to every
// other call, closing it included, but not to hybridge_cancel. Sessions of one model take turns to run its program, in
// the order in which they ask: each for one round of a generation or one chunk of a prompt. Functions that only read a
// session, a chat or a checkpoint, and those that close something, never wait for another session. A callback may call
// other sessions; while such a call waits, other sessions may take the turns of the calls around it. Tokenizers,
// grammars and pictures do not change while they are open, and any number of threads may use one.
//
// hybridge_dev.h has further functions, for bindings that choose tokens or keep states by themselves. They may change
// with each version.
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

// ---- Versions, errors and threads ----

// Version of this header.
#define HYBRIDGE_VERSION "0.3.0"

typedef enum hybridge_status {
  HYBRIDGE_OK = 0,
  HYBRIDGE_INVALID_ARGUMENT = 1,  // an argument that no model takes: null, out of range, or of another size
  HYBRIDGE_INVALID_HANDLE = 2,    // closed, of another kind, or never given out
  HYBRIDGE_BUSY = 3,              // in use: by another call, by its own callback, or by an open session
  HYBRIDGE_NO_ROOM = 4,           // the tokens do not fit into what is left of max_seq_len
  HYBRIDGE_INVALID_STATE = 5,     // nothing to continue: no generation, message or tool call
  HYBRIDGE_INVALID_ARTIFACT = 6,  // a file of an artifact is missing, damaged, of another format, or was changed
  HYBRIDGE_UNREADABLE_FILE = 7,   // missing, without permission, or no regular file
  HYBRIDGE_MISSING_OPERATOR = 8,  // the app links no kernel, or no backend, for an operator of the program
  HYBRIDGE_OUT_OF_MEMORY = 9,
  HYBRIDGE_INTERNAL = 10,             // a defect of this library
  HYBRIDGE_CANCELLED = 11,            // before the first token of a generation: nothing has changed
  HYBRIDGE_NOT_FINITE = 12,           // logits are NaN or infinite
  HYBRIDGE_BROKEN_STATE = 13,         // an earlier call failed in the middle: reset, restore, resume or load
  HYBRIDGE_PROGRAM_FAILED = 14,       // a method of the program failed, refused what fits, or answered in another form
  HYBRIDGE_INVALID_TOKEN = 15,        // a token outside the vocabulary, no token, or more than one block takes
  HYBRIDGE_INVALID_COMMIT = 16,       // there is no verified block, or it has fewer tokens
  HYBRIDGE_INVALID_SLOT = 17,         // out of range, never filled, or overwritten since
  HYBRIDGE_INVALID_DRAFTER = 18,      // the model has no such drafter, or it does not fit the model
  HYBRIDGE_INVALID_PICTURE = 19,      // the model does not take this picture, or it is closed or not whole
  HYBRIDGE_INVALID_GRAMMAR = 20,      // a schema, expression or list of tools that cannot be followed, or no token fits
  HYBRIDGE_INVALID_TEMPLATE = 21,     // a chat template has an error, or refuses these messages
  HYBRIDGE_INVALID_SAVED_STATE = 22,  // a saved state is damaged, or of another model
  HYBRIDGE_UNWRITABLE_FILE = 23,      // no permission, no such folder, or no space
  HYBRIDGE_OTHER_MODEL = 24,          // a checkpoint, a cache or a picture of another model
  HYBRIDGE_UNSUPPORTED = 25,          // this model, its tokenizer or its chat template cannot do that
  HYBRIDGE_CALLBACK_FAILED = 26       // a callback threw a C++ exception
} hybridge_status;

// Returns the version of the linked or loaded library, such as "0.3.0". Never null.
const char* hybridge_version(void);

// Returns a sentence for a status, for any number. Never null.
const char* hybridge_status_text(hybridge_status status);

// Returns in words why this thread's last call failed, such as which token is outside the vocabulary, with what the
// runtime logged about it. Empty if it did not fail; never null.
// The text is valid until this thread's next call of a function that returns a status.
const char* hybridge_failure(void);

// Prints the runtime's log on stderr, or stops with 0, in the whole process. At first it is not printed.
void hybridge_print_log(int wanted);

// Returns 1 if the app links a kernel for an operator, such as "aten::add.out", or a backend; otherwise, and for null,
// 0. A program's manifest.json lists what it needs of both.
int hybridge_has_operator(const char* name);
int hybridge_has_backend(const char* name);

// Sets the number of threads that all sessions compute on, up to 1024.
// count: 0 for one for each fast core that this process and its container may use, which is the default.
// Call it before sessions are opened: with XNNPACK they keep the threads that they found. Programs with XNNPACK that an
// app loads by itself keep them as well; load those after this call.
// HYBRIDGE_INVALID_ARGUMENT  more than 1024
// HYBRIDGE_BUSY              another number while a session with XNNPACK is open; nothing changes
hybridge_status hybridge_set_threads(size_t count);

// Returns that number.
size_t hybridge_threads(void);

// ---- Models ----

typedef struct hybridge_model {
  uint64_t id;
} hybridge_model;

// Sizes of a model in tokens, and what its pictures are.
typedef struct hybridge_info {
  int64_t max_seq_len;     // of a text: the program's, or that of hybridge_model_limit
  int64_t vocab_size;      // ids are below it
  int64_t prefill_chunk;   // a prompt is read in chunks of as many
  int64_t verify_len;      // most tokens of a verified block
  int64_t snapshot_slots;  // of a session
  int64_t draft_len;       // most draft tokens of the drafter inside the model; 0 without one
  int64_t picture_unit;    // pixels along a token's square, of which a prepared picture's sides are multiples; 0 for
                           // a model without pictures
  int64_t max_picture_tokens;  // of one picture
  int64_t placeholder;         // the token that stands for a picture in a chat template's text; -1 without one
} hybridge_info;

// Opens a program file, whose weights all sessions of the model share.
// path: of a model.pte. The file must not change while the model is open.
// HYBRIDGE_UNREADABLE_FILE, HYBRIDGE_INVALID_ARTIFACT, HYBRIDGE_MISSING_OPERATOR
hybridge_status hybridge_model_open(const char* path, hybridge_model* model);

// Closes a model. Its sessions may stay open, and keep the weights as long as they need them.
hybridge_status hybridge_model_close(hybridge_model model);

// Limits the texts of the sessions and chats of a model that are opened from now on to fewer tokens than its program
// holds. Memory is taken as a text grows, so it is for an app that wants a bound on that.
// HYBRIDGE_INVALID_ARGUMENT  less than 1, or more than the program holds
hybridge_status hybridge_model_limit(hybridge_model model, int64_t max_seq_len);

// Sets from how many tokens on a prompt is read by the accelerator that the model was exported for, in sessions and
// chats that are opened from now on. hybridge_artifact_open sets what the artifact's manifest says.
// tokens: 0, the default, for as many as the program says. HYBRIDGE_INVALID_ARGUMENT  fewer than 0
hybridge_status hybridge_model_delegate_from(hybridge_model model, int64_t tokens);

// Sets whether sessions and chats that are opened from now on continue from a checkpoint or a saved state only if each
// run of its tokens was read by the method that reads so many now: the accelerator's or the CPU's. Not at first. What
// they do not continue from is read again; hybridge_resume, hybridge_load and hybridge_chat_load return
// HYBRIDGE_UNSUPPORTED for it.
hybridge_status hybridge_model_strict_reuse(hybridge_model model, int wanted);

// Gives a model's sizes.
hybridge_status hybridge_model_info(hybridge_model model, hybridge_info* info);

// Copies the tokens after which a generation ends.
hybridge_status hybridge_model_eos_ids(hybridge_model model, int64_t* ids, size_t capacity, size_t* count);

// What hybridge_validate found.
typedef struct hybridge_validation {
  size_t steps;              // that were replayed
  double worst;              // the largest error of a logit, as a share of the largest logit
  double tolerance;          // the largest that passes
  int same_bits;             // 1 if all steps answered the same bits as where the model was exported
  char instruction_set[32];  // that our kernels run by here; empty without them
  char exported_on[32];      // that they ran by there
  uint64_t bits[32];         // a hash of what each step answered
} hybridge_validation;

// Replays the steps that an export stored with the logits of the eager model, in a session of their own: prefill,
// decode, verify, commit, snapshot, restore and a drafter. path: of an artifact's golden.json HYBRIDGE_UNREADABLE_FILE
// HYBRIDGE_INVALID_ARTIFACT  the file is damaged or of another model; an error is above the tolerance; or the bits are
//                            others with the same instruction set and the same version of hybridge
hybridge_status hybridge_validate(hybridge_model model, const char* path, hybridge_validation* validation);

// ---- Pictures ----

typedef struct hybridge_picture {
  uint64_t id;
} hybridge_picture;

// What a picture was made into.
typedef struct hybridge_pictured {
  size_t parts;          // 1 if the picture was not cut
  size_t rows, columns;  // of its tiles; after them there may be a small copy of the whole
  size_t encodings;      // how often its parts were encoded, all together
} hybridge_pictured;

// Opens a picture for the texts of all sessions of a model. It is resized and cut as the model's processor does it.
// model: of hybridge_artifact_model; one that was opened by its path does not know how pictures are prepared.
// rgb: uint8 [height, width, 3].
// In a text a picture is a run of ids below 0, one for each token that it takes, made of the SHA-256 of its prepared
// pixels. If it is cut into tiles there are tokens before each run, and around all of them. Functions that read a
// prompt take all ids of a picture together, and encode it once as long as it is open. A text that was read, its
// checkpoints and its saved states need the picture no more; to read the text again, the picture must be open.
// HYBRIDGE_INVALID_PICTURE  the model takes no pictures; no pixels or more than 67,108,864; or too long and narrow
hybridge_status hybridge_picture_open(
    hybridge_model model, const uint8_t* rgb, size_t width, size_t height, hybridge_picture* picture
);

// Closes a picture. A call that reads it keeps it until its end, and a chat as long as it has the message.
hybridge_status hybridge_picture_close(hybridge_picture picture);

// Copies a picture's ids, with the tokens around them. pictured: may be null.
hybridge_status hybridge_picture_ids(
    hybridge_picture picture, int64_t* ids, size_t capacity, size_t* count, hybridge_pictured* pictured
);

// ---- Sessions ----

typedef struct hybridge_session {
  uint64_t id;
} hybridge_session;

// Opens a session: an empty state over a model's weights. It may stay open after its model was closed.
// HYBRIDGE_BUSY  the model is a program of hybridge_dev.h, which has one state, and another session has it
hybridge_status hybridge_session_open(hybridge_model model, hybridge_session* session);

// Closes a session and frees its state. HYBRIDGE_BUSY during a call, from its own callbacks too.
hybridge_status hybridge_session_close(hybridge_session session);

// Copies the committed tokens, ids of pictures included.
hybridge_status hybridge_tokens(hybridge_session session, int64_t* tokens, size_t capacity, size_t* count);

// How the prompts of a session were read, in tokens.
typedef struct hybridge_prompts_read {
  int64_t delegate_in_use;  // 1 while the accelerator that the model was exported for reads long prompts
  int64_t delegate_tokens;  // those that it has read, and rows of pictures that it has encoded
  int64_t cpu_tokens;       // those that the CPU's methods have read, chunks that the accelerator failed on among them
} hybridge_prompts_read;

// Gives how a session's prompts were read, and copies why the model's accelerator is not in use: its library is not
// installed, it has no such device, it failed, or HYBRIDGE_DELEGATE is off in the environment. Empty while it is.
// size: takes the text's number of bytes.
// HYBRIDGE_UNSUPPORTED  the model was exported for no accelerator
hybridge_status hybridge_session_prompts(
    hybridge_session session, hybridge_prompts_read* read, char* reason, size_t capacity, size_t* size
);

// Copies the places of the text at which the accelerator began and stopped to read it, in turn: an even number,
// ascending.
hybridge_status hybridge_delegated(hybridge_session session, int64_t* places, size_t capacity, size_t* count);

// Commits tokens, any number.
// logits: float32 [vocab_size], those after the last token; may be null.
// HYBRIDGE_INVALID_TOKEN, HYBRIDGE_NO_ROOM, HYBRIDGE_INVALID_PICTURE for ids of a picture that is closed or not whole
hybridge_status hybridge_prefill(hybridge_session session, const int64_t* tokens, size_t count, float* logits);

// Commits one token. logits: float32 [vocab_size]; may be null. HYBRIDGE_INVALID_TOKEN, HYBRIDGE_NO_ROOM
hybridge_status hybridge_decode(hybridge_session session, int64_t token, float* logits);

// Computes the logits after each token of a block, and commits none of them.
// count: 1 to verify_len. logits: float32 [count, vocab_size]; may be null.
// HYBRIDGE_INVALID_TOKEN, HYBRIDGE_NO_ROOM
hybridge_status hybridge_verify(hybridge_session session, const int64_t* tokens, size_t count, float* logits);

// Commits the first `count` tokens of the verified block; 0 rejects all of them. HYBRIDGE_INVALID_COMMIT
hybridge_status hybridge_commit(hybridge_session session, int64_t count);

// Keeps the committed state in a slot, from 0 to snapshot_slots - 1. HYBRIDGE_INVALID_SLOT
hybridge_status hybridge_snapshot(hybridge_session session, int64_t slot);

// Goes back to the state in a slot. HYBRIDGE_INVALID_SLOT
hybridge_status hybridge_restore(hybridge_session session, int64_t slot);

// Empties the state and all slots.
hybridge_status hybridge_reset(hybridge_session session);

// Writes the state with its slots to a file, which appears whole or not at all. note: a text to keep with it; may be
// null. HYBRIDGE_UNWRITABLE_FILE
hybridge_status hybridge_save(hybridge_session session, const char* path, const char* note);

// Restores a state that was saved by a session of the same model. HYBRIDGE_UNREADABLE_FILE,
// HYBRIDGE_INVALID_SAVED_STATE
hybridge_status hybridge_load(hybridge_session session, const char* path);

// ---- Checkpoints: states in memory ----

typedef struct hybridge_checkpoint {
  uint64_t id;
} hybridge_checkpoint;

// The sizes of a checkpoint.
typedef struct hybridge_kept {
  size_t length;        // tokens
  size_t bytes;         // of its own
  size_t shared_bytes;  // of the rows that it shares with checkpoints of shorter texts
} hybridge_kept;

// Makes a checkpoint of the committed state, from which any session of the model can continue. It copies what the text
// added since the session's last checkpoint, if that is open. Close it when it is no longer needed; it may stay open
// after its session and its model.
hybridge_status hybridge_checkpoint_make(hybridge_session session, hybridge_checkpoint* checkpoint);

// Gives a checkpoint's sizes.
hybridge_status hybridge_checkpoint_info(hybridge_checkpoint checkpoint, hybridge_kept* kept);

// Closes a checkpoint, in any order with those that share rows with it.
hybridge_status hybridge_checkpoint_close(hybridge_checkpoint checkpoint);

// Goes back to a checkpoint, bit for bit, and empties the slots. HYBRIDGE_OTHER_MODEL
hybridge_status hybridge_resume(hybridge_session session, hybridge_checkpoint checkpoint);

typedef struct hybridge_cache {
  uint64_t id;
} hybridge_cache;

// Opens a cache of a model's checkpoints by their texts, of at most `bytes` together. The least recently used go first.
hybridge_status hybridge_cache_open(hybridge_model model, size_t bytes, hybridge_cache* cache);

// Closes a cache. Chats that use it keep it.
hybridge_status hybridge_cache_close(hybridge_cache cache);

// Brings the session to a text. It reads only what neither the session nor a checkpoint of the cache has, and keeps
// checkpoints of what it reads in the cache. The program's drafter reads the text too.
// cache: {0} for none.
// count: at least 1.
// cached_tokens: takes the number of tokens that were not read; may be null.
// If it fails, the session is at a beginning of the text.
// HYBRIDGE_INVALID_ARGUMENT for no tokens, HYBRIDGE_OTHER_MODEL, and as hybridge_prefill
hybridge_status hybridge_bring_to(
    hybridge_session session, hybridge_cache cache, const int64_t* tokens, size_t count, size_t* cached_tokens
);

// ---- Tokenizers ----

typedef struct hybridge_tokenizer {
  uint64_t id;
} hybridge_tokenizer;

// How a text is read; values may be added.
typedef enum hybridge_reading {
  HYBRIDGE_AROUND = 1,  // with what the tokenizer puts around every text, such as bos
  HYBRIDGE_PLAIN = 2    // texts of special tokens are text like any other
} hybridge_reading;

// A part of a text in bytes: from begin up to end.
typedef struct hybridge_span {
  size_t begin, end;
} hybridge_span;

// Opens a tokenizer.json.
// HYBRIDGE_UNREADABLE_FILE
// HYBRIDGE_INVALID_ARTIFACT  it is damaged, or has parts that are not known here, which hybridge_failure names
hybridge_status hybridge_tokenizer_open(const char* path, hybridge_tokenizer* tokenizer);

// Closes a tokenizer. What was opened of it stays.
hybridge_status hybridge_tokenizer_close(hybridge_tokenizer tokenizer);

// Copies the tokens of a text.
// reading: of hybridge_reading, or 0.
// plain: parts of the text, in any order, in which special tokens are text; may be null if plain_count is 0.
// spans: takes for each token the part of the text that it stands for, empty for what was put around the text; may be
//   null.
// HYBRIDGE_INVALID_ARGUMENT  a part is not inside the text
// HYBRIDGE_UNSUPPORTED       the vocabulary has no tokens for the text
hybridge_status hybridge_tokenizer_encode(
    hybridge_tokenizer tokenizer, const char* text, size_t size, int reading, const hybridge_span* plain,
    size_t plain_count, int64_t* tokens, hybridge_span* spans, size_t capacity, size_t* count
);

// Copies the text of tokens. skip_special: not 0 to leave special tokens out. Ids that nothing has are left out.
hybridge_status hybridge_tokenizer_decode(
    hybridge_tokenizer tokenizer, const int64_t* tokens, size_t count, int skip_special, char* text, size_t capacity,
    size_t* size
);

typedef struct hybridge_text {
  uint64_t id;
} hybridge_text;

// Opens a stream, which makes text of tokens one after another. skip_special: not 0 to leave special tokens out.
hybridge_status hybridge_text_open(hybridge_tokenizer tokenizer, int skip_special, hybridge_text* text);

// Gives what a token adds to the text; a character is held back until it is complete.
// The piece is valid until the next call with this stream.
hybridge_status hybridge_text_push(hybridge_text text, int64_t token, const char** piece, size_t* size);

// Gives what is still held back, as hybridge_text_push does.
hybridge_status hybridge_text_finish(hybridge_text text, const char** piece, size_t* size);

// Closes a stream.
hybridge_status hybridge_text_close(hybridge_text text);

// ---- Grammars ----

typedef struct hybridge_grammar {
  uint64_t id;
} hybridge_grammar;

typedef enum hybridge_grammar_kind {
  HYBRIDGE_JSON_SCHEMA = 0,  // JSON on one line, with ", " and ": ", and properties in the schema's order
  HYBRIDGE_REGEX = 1         // a whole match; the syntax of Rust's regular expressions, without look-around
} hybridge_grammar_kind;

// Opens a grammar, which a generation follows by its option `grammar`. docs/structured.md lists the keywords of
// schemas. A text that is complete ends with a token that ends texts; one that ends otherwise, as by max_new_tokens, is
// not. One grammar serves any number of generations. The first of a tokenizer takes longer, as it reads the vocabulary.
// HYBRIDGE_INVALID_GRAMMAR  what it says cannot be followed, or the tokenizer has no tokens for single bytes
hybridge_status hybridge_grammar_open(
    hybridge_tokenizer tokenizer, hybridge_grammar_kind kind, const char* text, size_t size, hybridge_grammar* grammar
);

// Closes a grammar. Generations that follow it continue.
hybridge_status hybridge_grammar_close(hybridge_grammar grammar);

// ---- Generations ----

typedef enum hybridge_drafter {
  HYBRIDGE_NO_DRAFTER = 0,        // plain decoding
  HYBRIDGE_PROMPT_LOOKUP = 1,     // the text so far
  HYBRIDGE_OWN_DRAFTER = 2,       // the drafter inside the model
  HYBRIDGE_DRAFT_MODEL = 3,       // a smaller model
  HYBRIDGE_CALLBACK_DRAFTER = 4,  // a function of the caller's
  HYBRIDGE_AUTO_DRAFTER = 5       // of all that there are the best by what is measured, or none, in each round
} hybridge_drafter;

// What a drafter sees.
typedef struct hybridge_context {
  const int64_t* text;  // the whole text, whose last token is not committed yet
  size_t count;         // of its tokens, at least 1
  const float* hidden;  // [rows, width]: hidden states of the last tokens before the last, those since the last call;
                        // null unless reads_hidden
  size_t rows, width;
} hybridge_context;

// Where a drafter writes.
typedef struct hybridge_proposal {
  int64_t* tokens;          // room for `limit` draft tokens
  double* confidences;      // room for `limit` estimates that a token is right if those before it are
  size_t confidence_count;  // 0; with is_cheap at most 1, which is for all tokens
} hybridge_proposal;

// Proposes what may follow a text: writes at most `limit` ≥ 1 draft tokens and returns how many, 0 without an idea.
// During one generation the text only grows. A token outside the vocabulary ends it with HYBRIDGE_INVALID_TOKEN.
typedef size_t (*hybridge_propose)(
    const hybridge_context* context, hybridge_proposal* proposal, size_t limit, void* user
);

// Makes those logits, float32 [vocab_size] after a text, minus infinity whose tokens may not come next. Called once a
// token, draft tokens that are verified included.
typedef void (*hybridge_mask)(const int64_t* text, size_t count, float* logits, size_t vocab_size, void* user);

// Called between two chunks of a prompt, with the number of its tokens that are read.
typedef void (*hybridge_on_read)(size_t count, void* user);

// Called with each token; returns 0 to end the generation after it. Other sessions of the model may run meanwhile.
typedef int (*hybridge_on_token)(int64_t token, void* user);

typedef struct hybridge_bias {
  int64_t token;
  double bias;  // from -100 to 100
} hybridge_bias;

// How tokens are drawn: biases, penalties, temperature, top_n_sigma, top_k, top_p, min_p, in transformers' order where
// it has them.
typedef struct hybridge_sampling {
  size_t struct_size;         // sizeof(hybridge_sampling)
  double temperature;         // 0, the default: greedy
  double top_p;               // above 0; 1, the default, for all tokens
  double min_p;               // 0, the default, for all tokens
  double repetition_penalty;  // 1, the default: none
  size_t top_k;               // 0, the default, for all tokens
  uint64_t seed;              // gives the same text with every drafter
  int has_seed;               // 0, the default: the seed is drawn from the system
  double presence_penalty;    // from -2 to 2; subtracted from the logit of each token that the generation has written
  double frequency_penalty;   // from -2 to 2; the same for each time that it has written the token
  int64_t repeat_last_n;      // latest tokens of the text that penalties see; -1, the default, for all
  double top_n_sigma;         // standard deviations of the logits that a token may be below the best; 0, the default,
                              // for all tokens
  double dry_multiplier;      // 0, the default: none. DRY subtracts dry_multiplier * dry_base^(n - dry_allowed_length)
  double dry_base;            // 1.75 by default                    from the logit of a token that would continue a
  size_t dry_allowed_length;  // 2 by default                       repetition of the text's last n tokens
  const int64_t* dry_breakers;  // tokens across which no repetition goes; may be null if there are none
  size_t dry_breaker_count;
  const hybridge_bias* logit_bias;  // added to logits; may be null if there are none
  size_t bias_count;
} hybridge_sampling;

// The options of a generation. Callbacks are called with the generation's `user`.
typedef struct hybridge_generation {
  size_t struct_size;        // sizeof(hybridge_generation)
  size_t max_new_tokens;     // at least 1; 64 by default
  size_t block_length;       // tokens that are verified at once, at most verify_len; 0, the default, for what is
                             // measured to be fastest, plain decoding included
  hybridge_drafter drafter;  // HYBRIDGE_AUTO_DRAFTER by default
  hybridge_model draft;      // the smaller model, with the same vocab_size and a snapshot slot; {0} for none
  const hybridge_sampling* sampling;  // null, the default: greedy
  hybridge_grammar grammar;           // what the text must be, in place of `mask`; {0} for none
  hybridge_mask mask;                 // null, the default: any token may come
  const char* tool_choice;            // in a chat with tools: null or "auto" if the model may call them, "none" if what
                                      // looks like a call is content, "required" or the name of a tool if the answer is
                                      // calls; otherwise null
  hybridge_on_read on_read;           // may be null
  hybridge_propose propose;           // the caller's own drafter; null for none
  uint64_t drafter_id;  // a number of the caller's for this drafter, by which the session remembers what it
                        // measured with it; 0 for none
  int reads_hidden;     // not 0 if `propose` reads hidden states, which the model must put out
  int is_cheap;         // not 0 if `propose` takes next to no time, so that it is asked in each round
  const struct hybridge_dev_generation* dev;  // of hybridge_dev.h; null, the default, in an app
  int stop_after_reasoning;  // not 0 if a chat's stop strings end its answers, but not the reasoning before them; 0,
                             // the default, if they end both
} hybridge_generation;

// The counts and seconds of a generation. What on_token takes is in none of them.
typedef struct hybridge_generated {
  size_t tokens;     // new ones
  size_t proposed;   // draft tokens
  size_t accepted;   // of them
  size_t verifies;   // calls of the model with a block
  size_t decodes;    // calls of the model with one token
  size_t rollbacks;  // blocks that were not accepted whole
  size_t forced;     // accepted tokens that the grammar left no choice for
  double prefill_seconds;
  double draft_seconds;
  double verify_seconds;
  double commit_seconds;
  double decode_seconds;
  double new_seconds;  // of all new tokens after the first, which the prefill pays for
} hybridge_generated;

// Fill the first `struct_size` bytes of a struct with the defaults, for languages that cannot call the functions below.
// HYBRIDGE_INVALID_ARGUMENT  a size that hybridge_generate would refuse
hybridge_status hybridge_sampling_init(hybridge_sampling* sampling, size_t struct_size);
hybridge_status hybridge_generation_init(hybridge_generation* options, size_t struct_size);

// Return the defaults.
static inline hybridge_sampling hybridge_sampling_defaults(void) {
  hybridge_sampling sampling;
  hybridge_sampling_init(&sampling, sizeof sampling);
  return sampling;
}

static inline hybridge_generation hybridge_generation_defaults(void) {
  hybridge_generation options;
  hybridge_generation_init(&options, sizeof options);
  return options;
}

// Continues a prompt. Greedily and with a seed the tokens are the same for every drafter and block_length.
// It ends after a token of hybridge_model_eos_ids, after max_new_tokens, where the context is full, after a token for
// which on_token returns 0, and by hybridge_cancel.
// options: null for the defaults; what they point to must last as long as the call. on_token, generated: may be null.
// HYBRIDGE_INVALID_ARGUMENT  options out of range
// HYBRIDGE_INVALID_TOKEN     the logit_bias of a token outside the vocabulary
// HYBRIDGE_INVALID_DRAFTER   the drafter that is asked for is not there or does not fit
// HYBRIDGE_INVALID_GRAMMAR   the mask or the grammar leaves no token
// HYBRIDGE_CANCELLED         before the first token; nothing has changed
// HYBRIDGE_CALLBACK_FAILED, and as hybridge_prefill
hybridge_status hybridge_generate(
    hybridge_session session, const int64_t* prompt, size_t count, const hybridge_generation* options,
    hybridge_on_token on_token, void* user, hybridge_generated* generated
);

// Ends the generation that runs in this session, or waits for another session's: after its next token, before draft
// tokens are verified, or between two chunks of its prompt. It does nothing if no call is in the session.
// From any thread, and from the generation's callbacks. It never waits, and never returns HYBRIDGE_BUSY.
hybridge_status hybridge_cancel(hybridge_session session);

// ---- Artifacts and chats: words in, words out ----

typedef struct hybridge_artifact {
  uint64_t id;
} hybridge_artifact;

// Opens the folder of an artifact: its program, tokenizer and chat template, for any number of chats. Without a
// tokenizer.json it opens, and has no chats.
// HYBRIDGE_INVALID_ARTIFACT  a part is damaged or missing; hybridge_failure says which
// HYBRIDGE_MISSING_OPERATOR
hybridge_status hybridge_artifact_open(const char* folder, hybridge_artifact* artifact);

// Closes an artifact, with its model and its tokenizer. Chats and sessions keep what they need.
hybridge_status hybridge_artifact_close(hybridge_artifact artifact);

// Gives the artifact's own model and tokenizer, which hybridge_artifact_close closes: do not close them.
// HYBRIDGE_INVALID_ARTIFACT  there is no tokenizer.json
hybridge_status hybridge_artifact_model(hybridge_artifact artifact, hybridge_model* model);
hybridge_status hybridge_artifact_tokenizer(hybridge_artifact artifact, hybridge_tokenizer* tokenizer);

// Gives how the artifact's model is meant to be sampled, by its generation_config.json: what its chats do if they are
// given no sampling. Greedy if the file is missing or does not say.
hybridge_status hybridge_artifact_sampling(hybridge_artifact artifact, hybridge_sampling* sampling);

typedef struct hybridge_chat {
  uint64_t id;
} hybridge_chat;

// Sets whether the model thinks before it answers, by the switch of its chat template.
typedef enum hybridge_thinking {
  HYBRIDGE_THINKING_AS_USUAL = 0,  // as the template does by itself
  HYBRIDGE_THINKING_ON = 1,
  HYBRIDGE_THINKING_OFF = 2
} hybridge_thinking;

typedef struct hybridge_chat_options {
  size_t struct_size;          // sizeof(hybridge_chat_options)
  const char* system;          // what the model is told before the first message; null, the default, for nothing
  hybridge_thinking thinking;  // HYBRIDGE_THINKING_AS_USUAL by default
  size_t checkpoint_bytes;     // most memory for states to go back to; 256 MB by default. What had to go is read again
  const char* variables;       // more of them for the chat template, a JSON object such as {"reasoning_effort": "low"};
                               // null, the default, for none
  const char* tools;           // that the model may call, a JSON list as in OpenAI's API, such as [{"type": "function",
                               // "function": {"name": "weather", "parameters": {…}}}]; null, the default, for none
  hybridge_cache cache;        // of the session's model, for these states in place of checkpoint_bytes; {0} for none
  const char* now;             // the local time that the chat template sees, such as 2026-01-31T12:00:00; null, the
                               // default, for the system's
} hybridge_chat_options;

// Fills the first `struct_size` bytes with the defaults, for languages that cannot call the function below.
// HYBRIDGE_INVALID_ARGUMENT  a size that hybridge_chat_open would refuse
hybridge_status hybridge_chat_options_init(hybridge_chat_options* options, size_t struct_size);

// Returns the defaults.
static inline hybridge_chat_options hybridge_chat_options_defaults(void) {
  hybridge_chat_options options;
  hybridge_chat_options_init(&options, sizeof options);
  return options;
}

// A call of a tool.
typedef struct hybridge_call {
  const char* id;  // of nine letters and digits
  const char* name;
  size_t name_size;
  const char* arguments;  // a JSON object
  size_t arguments_size;
} hybridge_call;

typedef struct hybridge_message {
  const char* role;  // "system", "user", "assistant" or "tool"
  const char* content;
  size_t content_size;
  const char* reasoning;  // before an answer; empty in other messages
  size_t reasoning_size;
  size_t pictures;             // the number of those before its content
  const hybridge_call* calls;  // of an answer; of a tool's message the call whose result it is, without arguments
  size_t call_count;
} hybridge_message;

// What a token adds to an answer, in whole characters. Any of it may be empty.
typedef struct hybridge_piece {
  const char* content;  // of the answer
  size_t content_size;
  const char* reasoning;  // before it
  size_t reasoning_size;
  const hybridge_call* calls;  // of tools, each once it is complete
  size_t call_count;
} hybridge_piece;

// Called with each token of an answer, and once at its end; returns 0 to end the answer. Other sessions of the model
// may run meanwhile. The piece is valid during the call.
typedef int (*hybridge_on_piece)(const hybridge_piece* piece, void* user);

typedef enum hybridge_ending {
  HYBRIDGE_ENDED_BY_MODEL = 0,
  HYBRIDGE_ENDED_BY_STOP = 1,    // a stop string
  HYBRIDGE_ENDED_BY_LENGTH = 2,  // max_new_tokens, or a full context
  HYBRIDGE_ENDED_BY_CALLER = 3   // on_piece or hybridge_chat_cancel
} hybridge_ending;

typedef struct hybridge_answer {
  hybridge_ending ending;
  size_t prompt_tokens;  // that were read for the answer
  size_t cached_tokens;  // that did not have to be read
  hybridge_generated generated;
  size_t dropped_messages;  // the oldest ones, which left no room for the answer and are forgotten; 0 as a rule
} hybridge_answer;

// Result of a tool.
typedef struct hybridge_result {
  const char* content;
  size_t size;
} hybridge_result;

// Begins a chat, with a session of its own.
// options: null for the defaults.
// HYBRIDGE_INVALID_ARTIFACT  the folder has no tokenizer, or no chat template that can be read
// HYBRIDGE_INVALID_TEMPLATE  the template refuses the system's message
// HYBRIDGE_INVALID_ARGUMENT  variables, tools or now are not what they must be, or a variable is one that chats set
// HYBRIDGE_UNSUPPORTED       the template has no switch for thinking
// HYBRIDGE_OTHER_MODEL       the cache is of another model
hybridge_status hybridge_chat_open(
    hybridge_artifact artifact, const hybridge_chat_options* options, hybridge_chat* chat
);

// Closes a chat, and a session of its own. HYBRIDGE_BUSY while an answer is generated, from its callbacks too.
hybridge_status hybridge_chat_close(hybridge_chat chat);

// Puts pictures before the chat's next message, in the place of those that wait. They stay if the message fails.
// The chat keeps the pictures of its messages open, so each is encoded once; a saved conversation has their pixels, up
// to 60 MB. A message with pictures is HYBRIDGE_INVALID_PICTURE if the chat template has no place for them. pictures:
// may be null if count is 0. HYBRIDGE_OTHER_MODEL
hybridge_status hybridge_chat_show(hybridge_chat chat, const hybridge_picture* pictures, size_t count);

// Answers a message. Special tokens in it are text.
// If the context leaves no room for the answer, the oldest messages are dropped, down to half of it: those of the user
// with all that followed, never a call without its result, and not the system's. hybridge_answer has their number.
// options: null for the defaults without a limit of tokens: until the model ends its answer, or the context is full. If
// they have no sampling, it is that of hybridge_artifact_sampling.
// stops: stop_count texts before the first of which the answer ends; may be null if there are none.
// on_piece, answer: may be null.
// If it fails before the answer's first token, nothing has changed; after it, what was said stays.
// HYBRIDGE_INVALID_TEMPLATE  the chat template refuses the message
// HYBRIDGE_NO_ROOM           the message by itself leaves no room for an answer
// HYBRIDGE_INVALID_GRAMMAR   the parameters of a tool cannot be followed, or tool_choice names none of them
// HYBRIDGE_UNSUPPORTED       calls are required, and the chat has no tools, or the tokenizer no tokens for single bytes
// and as hybridge_generate
hybridge_status hybridge_chat_send(
    hybridge_chat chat, const char* message, size_t size, const hybridge_generation* options, const char* const* stops,
    size_t stop_count, hybridge_on_piece on_piece, void* user, hybridge_answer* answer
);

// Answers the results of the tools that the last answer called: one for each of its calls, in their order.
// HYBRIDGE_INVALID_STATE     the last answer called no tool
// HYBRIDGE_INVALID_ARGUMENT  another number of results
// and as hybridge_chat_send
hybridge_status hybridge_chat_give_results(
    hybridge_chat chat, const hybridge_result* results, size_t count, const hybridge_generation* options,
    const char* const* stops, size_t stop_count, hybridge_on_piece on_piece, void* user, hybridge_answer* answer
);

// Answers the last message or results again. HYBRIDGE_INVALID_STATE without one, and as hybridge_chat_send
hybridge_status hybridge_chat_retry(
    hybridge_chat chat, const hybridge_generation* options, const char* const* stops, size_t stop_count,
    hybridge_on_piece on_piece, void* user, hybridge_answer* answer
);

// Goes on with the last answer, such as one that ended by its length, as if it had not ended: on_piece gets what is
// new, and hybridge_answer counts it alone. HYBRIDGE_INVALID_STATE     there is no answer, or it calls tools or ended
// at a stop string HYBRIDGE_INVALID_ARGUMENT  a grammar or a tool_choice that calls: both begin with an answer and as
// hybridge_chat_send
hybridge_status hybridge_chat_continue(
    hybridge_chat chat, const hybridge_generation* options, const char* const* stops, size_t stop_count,
    hybridge_on_piece on_piece, void* user, hybridge_answer* answer
);

// Tells the model something else before the first message, or nothing for a size of 0. The messages stay; the next
// answer reads them anew. HYBRIDGE_INVALID_TEMPLATE  the template refuses it
hybridge_status hybridge_chat_set_system(hybridge_chat chat, const char* text, size_t size);

// Takes the user's last message and all after it back. HYBRIDGE_INVALID_STATE without one
hybridge_status hybridge_chat_undo(hybridge_chat chat);

// Begins again after the system's message.
hybridge_status hybridge_chat_reset(hybridge_chat chat);

// Ends the answer that runs, as hybridge_cancel does: from any thread, and from on_piece.
hybridge_status hybridge_chat_cancel(hybridge_chat chat);

// Writes the conversation and the model's state to one file, which appears whole or not at all.
// HYBRIDGE_UNWRITABLE_FILE
hybridge_status hybridge_chat_save(hybridge_chat chat, const char* path);

// Continues a saved conversation of this artifact, also one of `hybridge chat`.
// HYBRIDGE_UNREADABLE_FILE, HYBRIDGE_INVALID_SAVED_STATE
hybridge_status hybridge_chat_load(hybridge_chat chat, const char* path);

// Copies the messages, which are valid until the chat's next call ends. room: takes the number of tokens that still
// fit; may be null.
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
