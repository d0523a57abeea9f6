// Further functions of the core, for bindings that choose tokens or keep states by themselves, as hybridge's own for
// Python does. Apps do without: hybridge.h has what they need, and the rules that hold here too.
//
// These functions may change with each version, and with them the SOVERSION of the shared library.
#ifndef HYBRIDGE_DEV_H
#define HYBRIDGE_DEV_H

#include <hybridge/hybridge.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

// ---- Models ----

// Copies the lengths of the verify methods, ascending: a block of another length takes as long as the next longer one.
hybridge_status hybridge_model_verify_lens(hybridge_model model, int64_t* lengths, size_t capacity, size_t* count);

// Returns not 0 if a model's file, which was touched since it was mapped, still has the same bytes.
typedef int (*hybridge_is_same)(void* user);

// Sets the function that is asked in the middle of a call. Without one a touched file is HYBRIDGE_INVALID_ARTIFACT.
hybridge_status hybridge_model_ask(hybridge_model model, hybridge_is_same is_same, void* user);

// Tells a model how its pictures are prepared. hybridge_artifact_open does so.
// tokenizer: has the tokens around pictures; {0} for pictures without any.
// pictures: `pictures` of the artifact's manifest as JSON.
// HYBRIDGE_INVALID_PICTURE  they are of another model, or in a way that is not known here
hybridge_status hybridge_model_pictures(
    hybridge_model model, hybridge_tokenizer tokenizer, const char* pictures, size_t size
);

// Opens one part of a picture as it is, without tokens around it. width, height: multiples of picture_unit.
// HYBRIDGE_INVALID_PICTURE
hybridge_status hybridge_picture_open_prepared(
    hybridge_model model, const uint8_t* rgb, size_t width, size_t height, hybridge_picture* picture
);

// A part of a picture, as long as the picture is open.
typedef struct hybridge_encoded {
  const uint8_t* rgb;       // [height, width, 3], as the encoder takes it
  const float* embeddings;  // [rows, hidden]; null before it was encoded
  size_t width, height;
  size_t rows;
  size_t hidden;  // 0 before it was encoded
} hybridge_encoded;

// Gives a part of a picture. Not while a session reads the picture. HYBRIDGE_INVALID_ARGUMENT if there is no such part
hybridge_status hybridge_picture_part(hybridge_picture picture, size_t part, hybridge_encoded* encoded);

// ---- Programs of callbacks ----

typedef enum hybridge_type {
  HYBRIDGE_UINT8 = 0,
  HYBRIDGE_INT8 = 1,
  HYBRIDGE_INT64 = 2,
  HYBRIDGE_FLOAT32 = 3,
  HYBRIDGE_BOOL = 4,
  HYBRIDGE_FLOAT16 = 5
} hybridge_type;

#define HYBRIDGE_MOST_DIMENSIONS 8

// A buffer of a state, or an input or output of a call, in memory that is not the caller's own.
typedef struct hybridge_array {
  const char* name;
  hybridge_type type;
  size_t dimensions;
  int64_t shape[HYBRIDGE_MOST_DIMENSIONS];
  void* data;
} hybridge_array;

// The methods and the state that docs/artifact.md describes, as functions, which may be called from any thread in turn.
// Numbers and names are copied.
typedef struct hybridge_program {
  size_t struct_size;  // sizeof(hybridge_program)
  void* self;          // handed to the functions

  // Runs a method and describes its outputs, at most `capacity`, which last until its next call. Returns how many there
  // are, -1 if it failed, or -2 if it failed and left the state as it was.
  int (*call)(
      void* self, const char* method, const hybridge_array* inputs, size_t count, hybridge_array* outputs,
      size_t capacity
  );
  int (*buffer)(
      void* self, const char* name, hybridge_array* found
  );                          // describes a buffer; returns -1 without it, or 0
  void (*close)(void* self);  // called by any thread once nothing refers to the program; may be null

  int64_t max_seq_len, vocab_size, prefill_chunk, snapshot_slots;  // as in hybridge_info
  int64_t taps;                                                    // hidden states that are put out
  const int64_t* verify_lens;                                      // ascending
  const int64_t* eos_ids;
  const int64_t* draft_blocks;  // lengths that its drafter proposes in, the text's last token included
  const int64_t* draft_taps;    // places of the hidden states that its drafter reads, among `taps`
  size_t verify_len_count, eos_id_count, draft_block_count, draft_tap_count;
  const char* const* names;    // of all buffers
  const char* const* bounded;  // of those without which a longer text cannot be cut back
  size_t name_count, bounded_count;
  size_t row_axis;    // of buffers with a row for each position
  int draft_samples;  // not 0 if its drafter can draw
  int fixed_shapes;   // not 0 if methods take blocks of these lengths alone, padded
  uint64_t fingerprint;
  const int64_t* vision;  // of an encoder of pictures: pixels along a patch, patches along a token's square, learned
                          // positions along a side, the placeholder, and the most tokens of each method, ascending
  size_t vision_count;    // 0 without an encoder
} hybridge_program;

// Opens a program for one session: it has one state.
// HYBRIDGE_INVALID_ARGUMENT  a function or a name is missing, or sizes cannot be
hybridge_status hybridge_program_open(const hybridge_program* program, hybridge_model* model);

// ---- The state of a session ----

// Copies the tokens of a snapshot slot; none if it is empty. HYBRIDGE_INVALID_SLOT
hybridge_status hybridge_slot_tokens(
    hybridge_session session, int64_t slot, int64_t* tokens, size_t capacity, size_t* count
);

// Copies the note of the state that was loaded last.
hybridge_status hybridge_note(hybridge_session session, char* note, size_t capacity, size_t* size);

// Copies the instruction set that the state that was loaded last was computed by, such as "i8mm", if it is not this
// processor's: the text goes on, rounded otherwise than it would have been there.
hybridge_status hybridge_saved_elsewhere(hybridge_session session, char* set, size_t capacity, size_t* size);

// Describes the buffers of a state, to look at until the session's next call; names last as long as the session.
hybridge_status hybridge_buffers(hybridge_session session, hybridge_array* buffers, size_t capacity, size_t* count);

// Gives the hidden states that the model put out (--tap-layers, drafters) in the last call, float32 [rows, width],
// until the session's next call.
hybridge_status hybridge_hidden(hybridge_session session, const float** hidden, size_t* rows, size_t* width);

// Keeps the hidden states of all committed tokens from now on until a drafter reads them, or stops with 0.
// wanted: HYBRIDGE_OWN_DRAFTER if the program's drafter will read them, which it then does before a snapshot, a
//   checkpoint or a saved state is made. A generation that reads them ends the keeping.
// HYBRIDGE_INVALID_DRAFTER
hybridge_status hybridge_keep_hidden(hybridge_session session, int wanted);

// Draft tokens, until the session's next call.
typedef struct hybridge_drafted {
  size_t count;              // 0 if the drafter's context is full
  const int64_t* tokens;     // [count]
  const float* confidences;  // [count]: its own estimate that each is right
} hybridge_drafted;

// Lets the drafter inside the model read hidden states and propose tokens.
// hidden: float32 [rows, width] of committed tokens. following: [rows], the token after each.
// limit: most draft tokens, at least 1.
// noise: [limit] random numbers to draw by at a temperature, if the drafter can; null for its best tokens.
// HYBRIDGE_INVALID_DRAFTER  the model has no drafter, or hidden states of another width
hybridge_status hybridge_draft(
    hybridge_session session, const float* hidden, size_t rows, size_t width, const int64_t* following, size_t limit,
    const uint32_t* noise, double temperature, hybridge_drafted* drafted
);

// ---- Checkpoints in parts, and caches ----

// Copies numbers that identify the parts of a checkpoint in this process: segments of its text, which others share, the
// shortest text first, then what it alone has.
hybridge_status hybridge_checkpoint_parts(
    hybridge_checkpoint checkpoint, uint64_t* ids, size_t capacity, size_t* count
);

// Copies the bytes of a part. HYBRIDGE_INVALID_ARGUMENT if there is no such part
hybridge_status hybridge_checkpoint_part(
    hybridge_checkpoint checkpoint, size_t part, uint8_t* bytes, size_t capacity, size_t* size
);

typedef struct hybridge_part {
  const uint8_t* bytes;
  size_t size;
} hybridge_part;

// Makes a checkpoint of parts, after the first `shared` of another one, which may be {0} if `shared` is 0.
// HYBRIDGE_INVALID_SAVED_STATE  no session of the model could have made them
hybridge_status hybridge_checkpoint_read(
    hybridge_session session, hybridge_checkpoint like, size_t shared, const hybridge_part* parts, size_t count,
    hybridge_checkpoint* checkpoint
);

// Keeps a checkpoint in a cache. HYBRIDGE_OTHER_MODEL
hybridge_status hybridge_cache_add(hybridge_cache cache, hybridge_checkpoint checkpoint);

// Finds the checkpoint of the longest beginning of a text, to be closed by the caller; {0} for none.
hybridge_status hybridge_cache_find(
    hybridge_cache cache, const int64_t* tokens, size_t count, hybridge_checkpoint* checkpoint
);

// Brings the session to the longest beginning of a text that its own state or a checkpoint has, and lets the next calls
// that read the rest count as one prompt. cache: {0} for none. HYBRIDGE_OTHER_MODEL
hybridge_status hybridge_resume_prefix(
    hybridge_session session, hybridge_cache cache, const int64_t* tokens, size_t count
);

// Keeps a checkpoint of the session's text in a cache, unless that has one or the text is empty. HYBRIDGE_OTHER_MODEL
hybridge_status hybridge_keep_checkpoint(hybridge_session session, hybridge_cache cache);

// Drops all checkpoints of a cache.
hybridge_status hybridge_cache_clear(hybridge_cache cache);

// Called in the middle of a call with each checkpoint that is kept in a cache or found there, by chats too. The
// callback closes it.
typedef void (*hybridge_on_use)(hybridge_checkpoint checkpoint, void* user);

// Sets whom a cache calls; null for nobody.
hybridge_status hybridge_cache_watch(hybridge_cache cache, hybridge_on_use on_use, void* user);

typedef struct hybridge_cached {
  size_t checkpoints;
  size_t bytes;  // rows that several share count once
} hybridge_cached;

// Gives the number of checkpoints in a cache, and their bytes.
hybridge_status hybridge_cache_info(hybridge_cache cache, hybridge_cached* cached);

// ---- Generations, a round at a time ----

// Writes the tokens, at most `limit`, that follow a text whatever the model says, and returns how many. They are
// verified at once.
typedef size_t (*hybridge_forced)(const int64_t* text, size_t count, int64_t* tokens, size_t limit, void* user);

// Returns how many of `proposed` tokens, from the first on, a mask will leave: the others are not verified in vain.
typedef size_t (*hybridge_fitting)(
    const int64_t* text, size_t count, const int64_t* proposed, size_t proposals, void* user
);

// Called with each new token and the logits that it was drawn from, float32 [vocab_size], as the model gave them.
typedef void (*hybridge_watch)(int64_t token, const float* logits, size_t vocab_size, void* user);

// Returns seconds, from wherever they are counted.
typedef double (*hybridge_clock)(void* user);

// More options of a generation, for hybridge_generation's `dev`. Zeros are the defaults.
typedef struct hybridge_dev_generation {
  size_t struct_size;        // sizeof(hybridge_dev_generation)
  hybridge_forced forced;    // beside a mask; may be null
  hybridge_fitting fitting;  // beside a mask; may be null
  hybridge_watch watch;      // may be null
  hybridge_clock clock;      // by which block lengths are chosen, for tests; null for the system's
  const uint64_t* noise;     // the seed of a sampling that has none, for tests; null for the system's
} hybridge_dev_generation;

// Begins a generation: reads the prompt, and gives the first token. What the options name must last until the end.
// capacity: at least verify_len, as that of hybridge_next.
// Tokens that end a text end nothing here: that is for the caller. Any other call that changes the session's text ends
// the generation, and so do a snapshot and a call that fails. After that, hybridge_next is HYBRIDGE_INVALID_STATE.
// As hybridge_generate
hybridge_status hybridge_begin(
    hybridge_session session, const int64_t* prompt, size_t count, const hybridge_generation* options, void* user,
    int64_t* tokens, size_t capacity, size_t* given
);

// Accepts all of the last tokens, and gives those that follow, none at the end.
// HYBRIDGE_INVALID_STATE  no generation runs; and as hybridge_generate
hybridge_status hybridge_next(hybridge_session session, int64_t* tokens, size_t capacity, size_t* given);

// Ends the generation with the first `taken` of the last tokens. generated: may be null. HYBRIDGE_INVALID_STATE
hybridge_status hybridge_end(hybridge_session session, size_t taken, hybridge_generated* generated);

// Gives the counts so far. HYBRIDGE_INVALID_STATE
hybridge_status hybridge_progress(hybridge_session session, hybridge_generated* generated);

// Copies the draft tokens that were verified for the last tokens. forced: takes 1 if a grammar forced them; may be
// null. HYBRIDGE_INVALID_STATE
hybridge_status hybridge_proposed(
    hybridge_session session, int64_t* tokens, size_t capacity, size_t* count, int* forced
);

// ---- Tokenizers ----

// Opens the content of a tokenizer.json. As hybridge_tokenizer_open
hybridge_status hybridge_tokenizer_read(const char* json, size_t size, hybridge_tokenizer* tokenizer);

typedef struct hybridge_vocabulary {
  size_t vocab_size;  // one more than the largest id
  size_t longest;     // bytes of the longest token
} hybridge_vocabulary;

// Reads how a model is meant to be sampled from the text of its generation_config.json. It sets fields of a sampling
// that has the defaults: those that the text names with a value that they can have, and a temperature of 1 if the text
// wants sampling and names none. HYBRIDGE_INVALID_ARTIFACT  no JSON object
hybridge_status hybridge_sampling_read(const char* json, size_t size, hybridge_sampling* sampling);

// Copies the ids of the usual dry_breakers: tokens with a line break, a colon, a quotation mark or an asterisk.
hybridge_status hybridge_tokenizer_dry_breakers(
    hybridge_tokenizer tokenizer, int64_t* ids, size_t capacity, size_t* count
);

// Gives the sizes of a vocabulary.
hybridge_status hybridge_tokenizer_info(hybridge_tokenizer tokenizer, hybridge_vocabulary* info);

// Gives the id of a token by its text; -1 without one.
hybridge_status hybridge_tokenizer_id(hybridge_tokenizer tokenizer, const char* token, size_t size, int64_t* id);

// Copies the text of a token as the vocabulary has it.
hybridge_status hybridge_tokenizer_token(
    hybridge_tokenizer tokenizer, int64_t id, char* token, size_t capacity, size_t* size
);

// Copies the bytes that a token adds to a text after other tokens: with the space before it, maybe a part of a
// character. A special token adds its text.
hybridge_status hybridge_tokenizer_bytes(
    hybridge_tokenizer tokenizer, int64_t id, char* bytes, size_t capacity, size_t* size
);

// Copies the ids of the tokens that are cut out of a text before it is split, ascending: of all, or, if `special` is
// not 0, of special ones.
hybridge_status hybridge_tokenizer_added(
    hybridge_tokenizer tokenizer, int special, int64_t* ids, size_t capacity, size_t* count
);

// Lets a stream's text end before a string, which is not empty: before the first of such strings that is complete. What
// may begin one is held back.
hybridge_status hybridge_text_stop(hybridge_text text, const char* stop, size_t size);

// Gives 1 if the text has ended by such a string, or 0.
hybridge_status hybridge_text_stopped(hybridge_text text, int* stopped);

// ---- Chat templates ----

typedef struct hybridge_template {
  uint64_t id;
} hybridge_template;

typedef struct hybridge_answer_form {
  uint64_t id;
} hybridge_answer_form;

// Opens a chat template in Jinja. HYBRIDGE_INVALID_TEMPLATE for an error in the syntax
hybridge_status hybridge_template_open(const char* text, size_t size, hybridge_template* opened);

// Opens the chat templates of an artifact's folder, with its special tokens, which rendering adds to the variables.
// HYBRIDGE_INVALID_ARTIFACT  one is damaged, or a file is not what its manifest says
hybridge_status hybridge_template_read(const char* folder, hybridge_template* opened);

// Renders a template as transformers' sandbox does. Of several, the one named tool_use if the variable `tools` is not
// null, or else the default one.
// form: of the model's answers, {0} for none. By one whose tools are told in words, the variables' tools, calls and
//   results are in messages.
// variables: a JSON object such as {"messages": [...], "add_generation_prompt": true}. Variables whose names end with
//   _token are the model's own words.
// now: the local time, such as 2026-01-31T12:00:00; null for the system's.
// words: takes the parts of the text that come from the variables, in which special tokens are text.
// The text and the parts are valid until the next call with this template.
// HYBRIDGE_INVALID_TEMPLATE  there is none, it refuses the variables, or exceeds the limits of steps, memory and text
hybridge_status hybridge_template_render(
    hybridge_template opened, hybridge_answer_form form, const char* variables, size_t variables_size, const char* now,
    const char** text, size_t* size, const hybridge_span** words, size_t* word_count
);

// Copies a JSON object: the `names` of the templates, the variable that is their `thinking_switch` or "", their
// `sources`, and a `warning` that says why the tokenizer's own response template is not followed, or "".
hybridge_status hybridge_template_describe(hybridge_template opened, char* text, size_t capacity, size_t* size);

// Closes a template. Chats over it continue.
hybridge_status hybridge_template_close(hybridge_template opened);

// ---- Answers: reasoning, content and calls of tools ----

// Finds the form in which a model's family writes answers: by the response template that the tokenizer of an artifact's
// folder may have, or else the first form whose marks are in the chat template, or else in the vocabulary. If the
// template reads no tools, or the form of the model's calls is not known, calls are JSON in <tool_call> tags, and
// hybridge_template_render tells the tools in words.
hybridge_status hybridge_answer_form_find(
    hybridge_tokenizer tokenizer, hybridge_template chat_template, hybridge_answer_form* form
);

// Gives a form by its name. HYBRIDGE_INVALID_ARGUMENT if there is none
hybridge_status hybridge_answer_form_named(const char* name, size_t size, hybridge_answer_form* form);

// Copies a JSON object for callers that make prompts: the form's name, the text that leads to content, the marks of
// reasoning, how calls are written and what opens them, and looked_for, which contains the special tokens that must
// stay in the text.
hybridge_status hybridge_answer_form_describe(hybridge_answer_form form, char* text, size_t capacity, size_t* size);

// Closes a form. Answers of it may stay open.
hybridge_status hybridge_answer_form_close(hybridge_answer_form form);

typedef struct hybridge_answer_parser {
  uint64_t id;
} hybridge_answer_parser;

// Opens the answer to a rendered prompt, which may have begun its reasoning.
// tools: that are offered, a JSON list as in OpenAI's API; null without any: what looks like a call is then content.
hybridge_status hybridge_answer_open(
    hybridge_answer_form form, const char* prompt, size_t size, const char* tools, size_t tools_size,
    hybridge_answer_parser* answer
);

// Copies the text that ends the reasoning which the prompt has begun; empty if it has begun none.
hybridge_status hybridge_answer_reasoning_end(hybridge_answer_parser answer, char* text, size_t capacity, size_t* size);

// Lets the answer's content end before a string, which is not empty: before the first of such strings that is complete.
// What comes then is left out. Reasoning may have it.
hybridge_status hybridge_answer_stop(hybridge_answer_parser answer, const char* stop, size_t size);

// Gives 1 if the content has ended by such a string, or 0.
hybridge_status hybridge_answer_stopped(hybridge_answer_parser answer, int* stopped);

// Give the events of a piece and of the end as a JSON list of ["reasoning", TEXT, ""], ["content", TEXT, ""] and
// ["call", NAME, ARGUMENTS], in which ARGUMENTS is the text of a JSON object. A call comes when it is complete; one
// that is cut off is content, and a mark that is cut off is dropped. The events are valid until the next call with this
// answer.
hybridge_status hybridge_answer_push(
    hybridge_answer_parser answer, const char* piece, size_t size, const char** events, size_t* events_size
);
hybridge_status hybridge_answer_finish(hybridge_answer_parser answer, const char** events, size_t* events_size);

// Closes an answer.
hybridge_status hybridge_answer_close(hybridge_answer_parser answer);

// ---- Grammars ----

// Opens a grammar of calls of tools, whose arguments fit the tools' schemas, as a form of answers writes them.
// tools: a JSON list as in OpenAI's API.
// tool_choice: null or "auto": the text is free; once a mark of the form opens calls outside of reasoning, they are of
//   these tools, and the text is free again after the mark that closes them. "required", or the name of a tool: the text
//   is calls and nothing else.
// single: not 0 for one call at most between two marks.
// HYBRIDGE_INVALID_GRAMMAR  parameters cannot be followed, unless `strict` of their function is false, or a tool is not
//                           among them
hybridge_status hybridge_grammar_calls(
    hybridge_tokenizer tokenizer, hybridge_answer_form form, const char* tools, size_t size, const char* tool_choice,
    int single, hybridge_grammar* grammar
);

// Opens the same grammar with a beginning and an end of its own; both handles are to be closed.
// after: a text such as the end of a reasoning. Up to it any token may come that does not end the text; after it come a
//   blank line and the grammar. In a text that is free up to a call, it ends the reasoning that the prompt has begun.
//   Empty, and then it may be null: the grammar begins at once.
// eos_ids: end a text in place of the model's; may be null if eos_count is 0, for the model's.
hybridge_status hybridge_grammar_with(
    hybridge_grammar grammar, const char* after, size_t size, const int64_t* eos_ids, size_t eos_count,
    hybridge_grammar* with
);

// For callers that choose tokens themselves: what a grammar says after `text`, the tokens so far without a prompt.
// Calls for a text that grows are quick if no other text comes between them. HYBRIDGE_INVALID_GRAMMAR  the grammar has
// become too large to follow

// Makes those logits, float32 [vocab_size], minus infinity whose tokens may not come. Only the grammar's own eos_ids
// end a text.
hybridge_status hybridge_grammar_mask(
    hybridge_grammar grammar, const int64_t* text, size_t count, float* logits, size_t vocab_size
);

// Copies the tokens that come whatever is chosen.
hybridge_status hybridge_grammar_forced(
    hybridge_grammar grammar, const int64_t* text, size_t count, int64_t* tokens, size_t capacity, size_t* found
);

// Counts the proposed tokens, from the first on, that may come.
hybridge_status hybridge_grammar_fitting(
    hybridge_grammar grammar, const int64_t* text, size_t count, const int64_t* proposed, size_t proposals,
    size_t* fitting
);

// ---- Chats ----

// Begins a chat over a session, a tokenizer and a chat template of the caller's. The session must stay open, and its
// text is the chat's from the first answer on. As hybridge_chat_open
hybridge_status hybridge_chat_over(
    hybridge_session session, hybridge_tokenizer tokenizer, hybridge_template chat_template,
    const hybridge_chat_options* options, hybridge_chat* chat
);

// Copies the note of a saved conversation, JSON: its messages, its tokens, and where each message and answer begins.
hybridge_status hybridge_chat_note(hybridge_chat chat, char* note, size_t capacity, size_t* size);

// Continues the conversation of a note without a saved state: the next answer reads its tokens.
// HYBRIDGE_INVALID_SAVED_STATE
hybridge_status hybridge_chat_restore(hybridge_chat chat, const char* note, size_t size);

// ---- Weights ----

// Finds for each group of numbers the scale and the minimum that whole numbers of `bits` bits stand for it by, with the
// least weighted squared error of a few: the same bits on every processor.
// values, weights: [groups, size]. scales, minima: [groups]. HYBRIDGE_INVALID_ARGUMENT  bits are not 1 to 8
hybridge_status hybridge_fit_lines(
    const float* values, const float* weights, size_t groups, size_t size, int bits, float* scales, float* minima
);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
