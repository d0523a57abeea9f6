// hybridge/hybridge.h and hybridge_dev.h as a C program calls them.   c_api MODEL.pte STATE TOKEN ...
#include <hybridge/hybridge_dev.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

#define CHECK(call, wanted)                                                                                        \
  do {                                                                                                             \
    const hybridge_status got = (call);                                                                            \
    if (got != (wanted)) {                                                                                         \
      fprintf(stderr, "line %d: %s is %d (%s), not %d\n", __LINE__, #call, got, hybridge_status_text(got), wanted); \
      exit(1);                                                                                                     \
    }                                                                                                              \
  } while (0)
#define OK(call) CHECK(call, HYBRIDGE_OK)

enum { NEW = 20 };
typedef struct { int64_t tokens[NEW]; size_t count; size_t stop_after; hybridge_session session; } Given;

static int64_t plain_tokens[NEW];

static hybridge_generation options_of(size_t max_new_tokens, size_t block_length, hybridge_drafter drafter) {
  hybridge_generation options = hybridge_generation_defaults();
  options.max_new_tokens = max_new_tokens;
  options.block_length = block_length;
  options.drafter = drafter;
  return options;
}

#define OPTIONS(...) ((const hybridge_generation[]){options_of(__VA_ARGS__)})

static int take(int64_t token, void* user) {
  Given* given = user;
  given->tokens[given->count++] = token;
  if (given->session.id != 0) CHECK(hybridge_decode(given->session, 1, NULL), HYBRIDGE_BUSY);  // its own callback
  return given->count != given->stop_after;
}

// Lets only those tokens come that add up with the text's length to a multiple of three.
static void mask(const int64_t* text, size_t count, float* logits, size_t vocab_size, void* user) {
  (void)text;
  (void)user;
  for (size_t i = 0; i < vocab_size; ++i) logits[i] = (i + count) % 3 == 0 ? logits[i] : -INFINITY;
}

static void mask_all(const int64_t* text, size_t count, float* logits, size_t vocab_size, void* user) {
  (void)text;
  (void)count;
  (void)user;
  for (size_t i = 0; i < vocab_size; ++i) logits[i] = -INFINITY;
}

// The model as its own draft, of which every token is right; another session of it, which its callback may call; masks.
static void draft_and_mask(hybridge_model model, hybridge_session session, const int64_t* prompt, size_t count, const Given* plain) {
  hybridge_generation by_model = options_of(NEW, 4, HYBRIDGE_DRAFT_MODEL);
  by_model.draft = model;
  for (int i = 0; i < 2; ++i) {
    Given drafted = {.session = session};
    hybridge_generated done;
    OK(hybridge_reset(session));
    OK(hybridge_generate(session, prompt, count, &by_model, take, &drafted, &done));
    if (drafted.count != plain->count || memcmp(plain->tokens, drafted.tokens, sizeof drafted.tokens) != 0) exit(4);
    if (done.proposed == 0 || done.accepted < done.proposed / 2) exit(5);
  }
  Given masked = {0};
  by_model.mask = mask;
  OK(hybridge_reset(session));
  OK(hybridge_generate(session, prompt, count, &by_model, take, &masked, NULL));
  for (size_t i = 0; i < masked.count; ++i) {
    if (((size_t)masked.tokens[i] + count + i) % 3 != 0) exit(6);
  }
  by_model.mask = mask_all;
  CHECK(hybridge_generate(session, prompt, 1, &by_model, NULL, NULL, NULL), HYBRIDGE_INVALID_GRAMMAR);
  by_model.draft = (hybridge_model){session.id};
  CHECK(hybridge_generate(session, prompt, 1, &by_model, NULL, NULL, NULL), HYBRIDGE_INVALID_HANDLE);
  OK(hybridge_reset(session));
}

// Proposes what plain decoding has shown, the last of each block wrong.
static size_t propose(const hybridge_context* seen, hybridge_proposal* proposal, size_t limit, void* user) {
  const Given* given = user;
  const size_t known = given->count;
  for (size_t i = 0; i < limit; ++i) proposal->tokens[i] = known + i < NEW ? plain_tokens[known + i] : 0;
  if (seen->text[seen->count - 1] != given->tokens[known - 1] || seen->hidden != NULL || seen->rows != 0) exit(20);
  proposal->tokens[limit - 1] = 0;
  return limit;
}

static size_t propose_nonsense(const hybridge_context* seen, hybridge_proposal* proposal, size_t limit, void* user) {
  (void)seen;
  (void)user;
  proposal->tokens[0] = -7;
  proposal->confidences[0] = NAN;
  proposal->confidence_count = SIZE_MAX;
  return limit > 1 ? SIZE_MAX : 1;
}

static size_t propose_and_cancel(const hybridge_context* seen, hybridge_proposal* proposal, size_t limit, void* user) {
  const Given* given = user;
  (void)seen;
  proposal->tokens[0] = 1;
  OK(hybridge_cancel(given->session));
  return limit;
}

// The same tokens a round at a time; the end says how many of the last ones are wanted.
static void by_rounds(hybridge_session session, const int64_t* prompt, size_t count, const Given* plain) {
  const hybridge_generation options = options_of(NEW, 4, HYBRIDGE_PROMPT_LOOKUP);
  hybridge_generated done;
  int64_t tokens[512], proposed[512];
  size_t given = 0, all = 0, drafts = 0, length;
  int forced = 1;
  OK(hybridge_reset(session));
  CHECK(hybridge_next(session, tokens, 512, &given), HYBRIDGE_INVALID_STATE);
  CHECK(hybridge_begin(session, prompt, count, &options, NULL, tokens, 0, &given), HYBRIDGE_INVALID_ARGUMENT);
  OK(hybridge_begin(session, prompt, count, &options, NULL, tokens, 512, &given));
  while (given > 0 && all + given < plain->count) {
    if (memcmp(tokens, plain->tokens + all, given * sizeof *tokens) != 0) exit(30);
    all += given;
    OK(hybridge_next(session, tokens, 512, &given));
    OK(hybridge_proposed(session, proposed, 512, &drafts, &forced));
    if (forced != 0 || (drafts == 0 ? given > 1 : given > drafts + 1)) exit(31);
  }
  OK(hybridge_progress(session, &done));
  if (done.tokens != all) exit(32);
  OK(hybridge_end(session, 1, &done));
  if (done.tokens != all + (given > 0)) exit(33);
  OK(hybridge_tokens(session, NULL, 0, &length));
  if (length + 1 < count + all || length > count + all) exit(34);
  CHECK(hybridge_end(session, 1, &done), HYBRIDGE_INVALID_STATE);
  OK(hybridge_begin(session, prompt, 1, &options, NULL, tokens, 512, &given));
  OK(hybridge_reset(session));  // which ends it
  CHECK(hybridge_next(session, tokens, 512, &given), HYBRIDGE_INVALID_STATE);
  OK(hybridge_begin(session, prompt, 1, NULL, NULL, tokens, 512, &given));  // and so does closing, at the end of this program
}

static double tick(void* user) {
  (void)user;
  static double now = 0;
  return now += 0.25;
}

// The caller's own drafter, on a clock and with noise of the caller's.
static void draft_by_callback(hybridge_session session, const int64_t* prompt, size_t count, const Given* plain) {
  const uint64_t noise = 5;
  const hybridge_dev_generation ticking = {.struct_size = sizeof ticking, .clock = tick};
  const hybridge_dev_generation noisy = {.struct_size = sizeof noisy, .noise = &noise};
  hybridge_sampling heat = hybridge_sampling_defaults();
  hybridge_generation outside = options_of(NEW, 0, HYBRIDGE_CALLBACK_DRAFTER), hot = options_of(NEW, 0, HYBRIDGE_NO_DRAFTER);
  heat.temperature = 0.7;
  hot.sampling = &heat;
  hot.dev = &noisy;
  hybridge_generated done;
  size_t length, kept;
  memcpy(plain_tokens, plain->tokens, sizeof plain_tokens);
  OK(hybridge_reset(session));
  CHECK(hybridge_generate(session, prompt, count, &outside, NULL, NULL, NULL), HYBRIDGE_INVALID_DRAFTER);
  for (size_t block = 0; block < 5; block += 4) {
    Given drafted = {.session = session};
    outside.propose = propose;
    outside.block_length = block;
    outside.dev = block == 0 ? &ticking : NULL;
    OK(hybridge_reset(session));
    OK(hybridge_generate(session, prompt, count, &outside, take, &drafted, &done));
    if (drafted.count != plain->count || memcmp(plain->tokens, drafted.tokens, sizeof drafted.tokens) != 0) exit(21);
    if (done.prefill_seconds <= 0 || done.new_seconds <= 0 || (block > 0 && done.accepted < done.verifies)) exit(22);
  }
  outside.propose = propose_nonsense;
  OK(hybridge_reset(session));
  CHECK(hybridge_generate(session, prompt, count, &outside, NULL, NULL, NULL), HYBRIDGE_INVALID_TOKEN);
  Given none = {.session = session};
  outside.propose = propose_and_cancel;
  OK(hybridge_reset(session));
  OK(hybridge_generate(session, prompt, count, &outside, NULL, &none, &done));
  if (done.tokens != 1 || done.verifies + done.decodes != 0) exit(23);
  Given drawn[2] = {{.session = session}, {.session = session}};
  for (int i = 0; i < 2; ++i) {
    OK(hybridge_reset(session));
    OK(hybridge_generate(session, prompt, count, &hot, take, &drawn[i], NULL));
  }
  if (memcmp(drawn[0].tokens, drawn[1].tokens, sizeof drawn[0].tokens) != 0) exit(24);
  OK(hybridge_snapshot(session, 0));
  OK(hybridge_tokens(session, NULL, 0, &length));
  OK(hybridge_slot_tokens(session, 0, NULL, 0, &kept));
  if (kept != length) exit(25);
  CHECK(hybridge_slot_tokens(session, -1, NULL, 0, &kept), HYBRIDGE_INVALID_SLOT);
  CHECK(hybridge_slot_tokens(session, 0, NULL, 1, &kept), HYBRIDGE_INVALID_ARGUMENT);
  CHECK(hybridge_draft(session, NULL, 1, 1, prompt, 2, NULL, 0, &(hybridge_drafted){0}), HYBRIDGE_INVALID_ARGUMENT);
  OK(hybridge_reset(session));
}

static int is_text(hybridge_session session, const int64_t* text, size_t count) {
  int64_t committed[512];
  size_t length;
  OK(hybridge_tokens(session, committed, 512, &length));
  return length == count && memcmp(committed, text, count * sizeof *text) == 0;
}

// A draft model that is closed drafts on, and is let go of where another one takes its place.
static void draft_models_in_turn(
    hybridge_model model, const char* path, hybridge_session session, const int64_t* prompt, size_t count, const Given* plain) {
  hybridge_generation by_model = options_of(NEW, 4, HYBRIDGE_DRAFT_MODEL);
  hybridge_model small;
  OK(hybridge_model_open(path, &small));
  const hybridge_model drafts[] = {small, model};
  for (int i = 0; i < 2; ++i) {
    Given drafted = {0};
    by_model.draft = drafts[i];
    OK(hybridge_reset(session));
    OK(hybridge_generate(session, prompt, count, &by_model, take, &drafted, NULL));
    if (drafted.count != plain->count || memcmp(plain->tokens, drafted.tokens, sizeof drafted.tokens) != 0) exit(9);
    if (i == 0) OK(hybridge_model_close(small));
  }
}

// The parts of a checkpoint make it again, and a cache finds it by its text.
static void parts_and_caches(hybridge_model model, hybridge_session session, const int64_t* prompt, size_t count) {
  hybridge_checkpoint whole, again, found;
  hybridge_cache cache;
  hybridge_cached cached;
  uint64_t ids[16];
  size_t parts;
  OK(hybridge_reset(session));
  OK(hybridge_prefill(session, prompt, count, NULL));
  OK(hybridge_checkpoint_make(session, &whole));
  OK(hybridge_checkpoint_parts(whole, ids, 16, &parts));
  if (parts < 1 || parts > 16) exit(27);
  hybridge_part views[16];
  uint8_t* bytes[16];
  for (size_t i = 0; i < parts; ++i) {
    OK(hybridge_checkpoint_part(whole, i, NULL, 0, &views[i].size));
    views[i].bytes = bytes[i] = malloc(views[i].size);
    OK(hybridge_checkpoint_part(whole, i, bytes[i], views[i].size, &views[i].size));
  }
  CHECK(hybridge_checkpoint_read(session, (hybridge_checkpoint){0}, 0, views, parts - 1, &again), HYBRIDGE_INVALID_SAVED_STATE);
  OK(hybridge_checkpoint_read(session, (hybridge_checkpoint){0}, 0, views, parts, &again));
  for (size_t i = 0; i < parts; ++i) free(bytes[i]);

  OK(hybridge_cache_open(model, (size_t)1 << 30, &cache));
  OK(hybridge_cache_find(cache, prompt, count, &found));
  if (found.id != 0) exit(27);
  OK(hybridge_cache_add(cache, again));
  OK(hybridge_checkpoint_close(again));
  OK(hybridge_cache_info(cache, &cached));
  if (cached.checkpoints != 1 || cached.bytes == 0) exit(27);
  OK(hybridge_cache_find(cache, prompt, count, &found));
  OK(hybridge_reset(session));
  OK(hybridge_resume(session, found));
  if (!is_text(session, prompt, count)) exit(27);
  OK(hybridge_checkpoint_close(found));
  OK(hybridge_cache_clear(cache));
  OK(hybridge_cache_info(cache, &cached));
  if (cached.checkpoints != 0 || cached.bytes != 0) exit(27);
  OK(hybridge_cache_close(cache));
  CHECK(hybridge_cache_close(cache), HYBRIDGE_INVALID_HANDLE);
  OK(hybridge_checkpoint_close(whole));
}

// The buffers of a state, as many as there is room for, and none for a capacity of 0.
static void buffers(hybridge_session session) {
  hybridge_array views[512];
  size_t all, again;
  OK(hybridge_buffers(session, views, 512, &all));
  if (all == 0 || all > 512 || views[0].name == NULL || views[0].data == NULL) exit(28);
  OK(hybridge_buffers(session, NULL, 0, &again));
  if (again != all) exit(28);
}

// A program of the app's own: its text is all that there is, and after each token comes the next number.
enum { VOCABULARY = 16, CONTEXT = 64 };

typedef struct Counting {
  int64_t length, staged, operations, moved, slots[1];
  float logits[CONTEXT][VOCABULARY];
  int closed, fails_to_commit;
} Counting;

static int count_on(void* self, const char* method, const hybridge_array* inputs, size_t count, hybridge_array* outputs, size_t capacity) {
  Counting* program = self;
  if (capacity < 1 || (program->fails_to_commit && strcmp(method, "commit") == 0)) return -1;
  const int64_t first = count > 0 ? *(const int64_t*)inputs[0].data : 0;
  if (strcmp(method, "commit") == 0 || strcmp(method, "reset") == 0) {
    program->length = strcmp(method, "reset") == 0 ? 0 : program->length + first;
    program->staged = 0;
    program->moved = program->length;
    outputs[0] = (hybridge_array){.type = HYBRIDGE_INT64, .dimensions = 1, .shape = {1}, .data = &program->moved};
  } else {
    const int64_t* tokens = inputs[0].data;
    const int64_t read = count > 1 ? *(const int64_t*)inputs[1].data : inputs[0].shape[1];
    const int is_verify = strncmp(method, "verify", 6) == 0;
    const int64_t rows = is_verify ? inputs[0].shape[1] : 1;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < VOCABULARY; ++i) program->logits[row][i] = 0;
      program->logits[row][(tokens[is_verify ? row : read - 1] + 1) % VOCABULARY] = 1;
    }
    program->staged = is_verify ? read : 0;
    program->length += is_verify ? 0 : read;
    outputs[0] = (hybridge_array){
        .type = HYBRIDGE_FLOAT32, .dimensions = 3, .shape = {1, rows, VOCABULARY}, .data = program->logits};
  }
  ++program->operations;
  return 1;
}

static int find_buffer(void* self, const char* name, hybridge_array* found) {
  Counting* program = self;
  int64_t* data = strcmp(name, "length") == 0 ? &program->length : strcmp(name, "staged") == 0 ? &program->staged
                  : strcmp(name, "operations") == 0                                            ? &program->operations
                                                                                               : NULL;
  if (data == NULL) return -1;
  *found = (hybridge_array){.type = HYBRIDGE_INT64, .dimensions = 1, .shape = {1}, .data = data};
  return 0;
}

static void close_program(void* self) { ++((Counting*)self)->closed; }

static size_t propose_what_follows(const hybridge_context* seen, hybridge_proposal* proposal, size_t limit, void* user) {
  (void)user;
  for (size_t i = 0; i < limit; ++i) proposal->tokens[i] = (seen->text[seen->count - 1] + 1 + (int64_t)i) % VOCABULARY;
  return limit;
}

// A generation whose commit failed has ended: its session lacks the tokens that were given.
static void failed_commit(hybridge_session session, Counting* program, const int64_t* prompt, size_t count) {
  hybridge_generation drafted = options_of(20, 4, HYBRIDGE_CALLBACK_DRAFTER);
  drafted.propose = propose_what_follows;
  hybridge_generated done;
  int64_t tokens[4];
  size_t given;
  OK(hybridge_reset(session));
  OK(hybridge_begin(session, prompt, count, &drafted, NULL, tokens, 4, &given));
  OK(hybridge_next(session, tokens, 4, &given));
  if (given != 4) exit(35);
  program->fails_to_commit = 1;
  CHECK(hybridge_next(session, tokens, 4, &given), HYBRIDGE_PROGRAM_FAILED);
  program->fails_to_commit = 0;
  for (int i = 0; i < 2; ++i) CHECK(hybridge_next(session, tokens, 4, &given), HYBRIDGE_INVALID_STATE);
  OK(hybridge_progress(session, &done));
  OK(hybridge_end(session, 0, &done));
  CHECK(hybridge_end(session, 0, &done), HYBRIDGE_INVALID_STATE);
  OK(hybridge_reset(session));
}

static void own_program(hybridge_session other) {
  static const char* const names[] = {"length", "staged", "operations"};
  static const int64_t lengths[] = {4};
  Counting counting = {0};
  hybridge_program described = {
      .struct_size = sizeof described, .self = &counting, .call = count_on, .buffer = find_buffer, .close = close_program, .max_seq_len = CONTEXT,
      .vocab_size = VOCABULARY, .prefill_chunk = 8, .verify_lens = lengths, .verify_len_count = 1, .names = names,
      .bounded = names, .name_count = 3, .bounded_count = 1, .row_axis = 1, .fingerprint = 7};
  hybridge_model model;
  hybridge_session session, second;
  const int64_t prompt[] = {3, 4, 5};
  Given given = {0};
  OK(hybridge_program_open(&described, &model));
  OK(hybridge_session_open(model, &session));
  CHECK(hybridge_session_open(model, &second), HYBRIDGE_BUSY);
  OK(hybridge_generate(session, prompt, 3, OPTIONS(20, 0, HYBRIDGE_NO_DRAFTER), take, &given, NULL));
  if (given.count != 20) exit(29);
  hybridge_checkpoint foreign;
  OK(hybridge_checkpoint_make(session, &foreign));
  CHECK(hybridge_resume(other, foreign), HYBRIDGE_OTHER_MODEL);
  OK(hybridge_checkpoint_close(foreign));
  for (size_t i = 0; i < given.count; ++i) {
    if (given.tokens[i] != (int64_t)(6 + i) % VOCABULARY) exit(29);
  }
  failed_commit(session, &counting, prompt, 3);
  OK(hybridge_session_close(session));
  OK(hybridge_model_close(model));
  if (counting.closed != 1) exit(29);
  described.vocab_size = 0;
  CHECK(hybridge_program_open(&described, &model), HYBRIDGE_INVALID_ARGUMENT);
  described.vocab_size = VOCABULARY;
  described.struct_size = 0;
  CHECK(hybridge_program_open(&described, &model), HYBRIDGE_INVALID_ARGUMENT);
}

// Two ways on from one checkpoint, in two sessions; the second shares the first one's rows, and survives it and its session.
static void checkpoints(
    hybridge_model model, const char* path, hybridge_session session, const int64_t* prompt, size_t count, const Given* plain) {
  const hybridge_generation greedy = options_of(NEW, 0, HYBRIDGE_NO_DRAFTER);
  hybridge_checkpoint empty, first, second, foreign;
  hybridge_kept short_one, long_one, alone;
  hybridge_session other, third;
  hybridge_model again;
  OK(hybridge_session_open(model, &other));
  OK(hybridge_reset(session));
  OK(hybridge_checkpoint_make(session, &empty));
  OK(hybridge_prefill(session, prompt, count - 1, NULL));
  OK(hybridge_checkpoint_make(session, &first));
  OK(hybridge_decode(session, prompt[count - 1], NULL));
  OK(hybridge_checkpoint_make(session, &second));
  OK(hybridge_checkpoint_info(first, &short_one));
  OK(hybridge_checkpoint_info(second, &long_one));
  if (short_one.length != count - 1 || long_one.length != count || long_one.bytes >= short_one.bytes) exit(7);
  const hybridge_session sessions[] = {other, session};
  for (int i = 0; i < 2; ++i) {
    Given given = {0};
    OK(hybridge_prefill(sessions[i], plain->tokens, 3, NULL));
    OK(hybridge_resume(sessions[i], first));
    if (!is_text(sessions[i], prompt, count - 1)) exit(7);
    OK(hybridge_generate(sessions[i], prompt + count - 1, 1, &greedy, take, &given, NULL));
    if (given.count != plain->count || memcmp(plain->tokens, given.tokens, sizeof given.tokens) != 0) exit(7);
  }
  OK(hybridge_checkpoint_close(first));
  OK(hybridge_session_close(other));
  OK(hybridge_resume(session, empty));
  OK(hybridge_resume(session, second));
  if (!is_text(session, prompt, count)) exit(7);

  // The same file opened again has the same model. What is refused changes nothing.
  OK(hybridge_model_open(path, &again));
  OK(hybridge_session_open(again, &third));
  OK(hybridge_checkpoint_make(third, &foreign));
  OK(hybridge_resume(session, foreign));
  if (!is_text(session, prompt, 0)) exit(7);
  OK(hybridge_resume(session, second));
  CHECK(hybridge_resume(session, first), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_resume(session, (hybridge_checkpoint){session.id}), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_resume((hybridge_session){second.id}, second), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_checkpoint_make(session, NULL), HYBRIDGE_INVALID_ARGUMENT);
  CHECK(hybridge_checkpoint_info(second, NULL), HYBRIDGE_INVALID_ARGUMENT);
  CHECK(hybridge_checkpoint_info(first, &alone), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_checkpoint_close(first), HYBRIDGE_INVALID_HANDLE);
  if (!is_text(session, prompt, count)) exit(7);

  // A checkpoint outlives its session and its model.
  OK(hybridge_session_close(third));
  OK(hybridge_model_close(again));
  OK(hybridge_checkpoint_info(foreign, &alone));
  OK(hybridge_checkpoint_close(foreign));
  OK(hybridge_checkpoint_close(second));
  OK(hybridge_checkpoint_close(empty));
}

// A text that begins like an earlier one is read from there on; and from what the session has where no checkpoint is kept.
static void brought(hybridge_model model, hybridge_session session, const int64_t* prompt, size_t count) {
  size_t known = 99;
  hybridge_cache cache;
  OK(hybridge_cache_open(model, 64 << 20, &cache));
  const hybridge_cache caches[] = {{0}, cache};
  for (int kept = 0; kept < 2; ++kept) {
    OK(hybridge_reset(session));
    OK(hybridge_bring_to(session, caches[kept], prompt, count - 4, &known));
    if (known != 0) exit(8);
    OK(hybridge_bring_to(session, caches[kept], prompt, count, &known));
    if (known != count - 4 || !is_text(session, prompt, count)) exit(8);
    OK(hybridge_bring_to(session, caches[kept], prompt, count - 2, &known));
    if (known != (kept ? count - 4 : 0) || !is_text(session, prompt, count - 2)) exit(8);
  }
  const int64_t wrong = -1;
  CHECK(hybridge_bring_to(session, (hybridge_cache){0}, &wrong, 1, NULL), HYBRIDGE_INVALID_TOKEN);
  OK(hybridge_bring_to(session, cache, prompt, count, NULL));
  CHECK(hybridge_bring_to(session, cache, NULL, 3, &known), HYBRIDGE_INVALID_ARGUMENT);
  CHECK(hybridge_bring_to(session, cache, prompt, 0, &known), HYBRIDGE_INVALID_ARGUMENT);
  OK(hybridge_cache_close(cache));
  CHECK(hybridge_bring_to(session, cache, prompt, count, &known), HYBRIDGE_INVALID_HANDLE);
  if (!is_text(session, prompt, count)) exit(8);
}

static int cancel_it(int64_t token, void* user) {
  Given* given = user;
  OK(hybridge_cancel(given->session));
  return take(token, user);
}

typedef struct { hybridge_session session; const int64_t* prompt; size_t count; int calls, busy, wrong; } Caller;

static int call_often(void* user) {
  Caller* caller = user;
  for (int i = 0; i < caller->calls; ++i) {
    const hybridge_status got = hybridge_prefill(caller->session, caller->prompt, caller->count, NULL);
    const hybridge_status after = got == HYBRIDGE_OK ? hybridge_reset(caller->session) : got;
    caller->busy += after == HYBRIDGE_BUSY;
    caller->wrong += after != HYBRIDGE_OK && after != HYBRIDGE_BUSY && after != HYBRIDGE_NO_ROOM;
  }
  return 0;
}

static int cancel_after(void* user) {
  const Given* given = user;
  thrd_sleep(&(struct timespec){.tv_nsec = (long)given->stop_after * 20000}, NULL);
  OK(hybridge_cancel(given->session));
  return 0;
}

static void cancel_here(size_t count, void* user) {
  if (count == 0) exit(28);
  OK(hybridge_cancel(*(const hybridge_session*)user));
}

// A generation that is cancelled anywhere in its prompt or after it has given tokens, or has left the text alone.
static void cancel_anywhere(hybridge_session session, const int64_t* prompt, size_t count, size_t room) {
  int64_t* text = malloc(room * sizeof *text);
  for (size_t i = 0; i < room; ++i) text[i] = prompt[i % count];
  OK(hybridge_reset(session));
  OK(hybridge_prefill(session, prompt, 2, NULL));
  OK(hybridge_snapshot(session, 0));
  for (size_t i = 0; i < 40; ++i) {
    Given given = {.session = session, .stop_after = i};
    hybridge_generated done = {0};
    size_t length;
    thrd_t thread;
    thrd_create(&thread, cancel_after, &given);
    const hybridge_status got = hybridge_generate(session, text, room - 3, NULL, NULL, NULL, &done);
    thrd_join(thread, NULL);
    OK(hybridge_tokens(session, NULL, 0, &length));
    const int whole = got == HYBRIDGE_OK && done.tokens > 0 && length >= room - 1;
    if (!whole && !(got == HYBRIDGE_CANCELLED && length == 2)) exit(3);
    OK(hybridge_restore(session, 0));
  }
  hybridge_generation watched = options_of(4, 0, HYBRIDGE_NO_DRAFTER);
  size_t length;
  watched.on_read = cancel_here;
  CHECK(hybridge_generate(session, text, room - 3, &watched, NULL, &session, NULL), HYBRIDGE_CANCELLED);
  OK(hybridge_tokens(session, NULL, 0, &length));
  if (length != 2) exit(29);
  free(text);
}

static void refusals(hybridge_model model, hybridge_session session, const char* state) {
  int64_t token = -1;
  size_t count;
  hybridge_model other;
  hybridge_session opened;
  hybridge_info info;
  CHECK(hybridge_model_open(NULL, &other), HYBRIDGE_INVALID_ARGUMENT);
  CHECK(hybridge_model_open(state, NULL), HYBRIDGE_INVALID_ARGUMENT);
  CHECK(hybridge_model_open("no such file", &other), HYBRIDGE_UNREADABLE_FILE);
  CHECK(hybridge_model_info(model, NULL), HYBRIDGE_INVALID_ARGUMENT);
  // A compiler refuses a handle of another kind, the core its number.
  const hybridge_model no_model = {session.id};
  const hybridge_session no_session = {model.id}, none = {0};
  CHECK(hybridge_model_info(no_model, &info), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_session_open(no_model, &opened), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_session_close(no_session), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_decode(none, 1, NULL), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_prefill(session, NULL, 3, NULL), HYBRIDGE_INVALID_TOKEN);
  CHECK(hybridge_prefill(session, &token, 1, NULL), HYBRIDGE_INVALID_TOKEN);
  CHECK(hybridge_prefill(session, &token, 0, NULL), HYBRIDGE_INVALID_TOKEN);
  CHECK(hybridge_commit(session, 1), HYBRIDGE_INVALID_COMMIT);
  CHECK(hybridge_snapshot(session, 99), HYBRIDGE_INVALID_SLOT);
  CHECK(hybridge_restore(session, 1), HYBRIDGE_INVALID_SLOT);
  CHECK(hybridge_tokens(session, NULL, 1, &count), HYBRIDGE_INVALID_ARGUMENT);
  CHECK(hybridge_tokens(session, NULL, 0, NULL), HYBRIDGE_INVALID_ARGUMENT);
  CHECK(hybridge_save(session, NULL, NULL), HYBRIDGE_INVALID_ARGUMENT);
  CHECK(hybridge_load(session, "no such file"), HYBRIDGE_UNREADABLE_FILE);
  CHECK(hybridge_generate(session, NULL, 0, NULL, NULL, NULL, NULL), HYBRIDGE_INVALID_TOKEN);
  CHECK(hybridge_cancel(no_session), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_model_eos_ids(no_model, NULL, 0, &count), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_model_eos_ids(model, NULL, 1, &count), HYBRIDGE_INVALID_ARGUMENT);
  CHECK(hybridge_model_eos_ids(model, NULL, 0, NULL), HYBRIDGE_INVALID_ARGUMENT);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const size_t count = (size_t)argc - 3;
  int64_t* prompt = malloc(count * sizeof *prompt);
  for (size_t i = 0; i < count; ++i) prompt[i] = atoll(argv[3 + i]);

  hybridge_model model;
  hybridge_session session, other;
  hybridge_info info;
  CHECK(hybridge_set_threads(1025), HYBRIDGE_INVALID_ARGUMENT);
  OK(hybridge_set_threads(2));
  OK(hybridge_set_threads(0));
  OK(hybridge_model_open(argv[1], &model));
  OK(hybridge_model_info(model, &info));
  OK(hybridge_session_open(model, &session));
  OK(hybridge_session_open(model, &other));
  int64_t eos[8];
  size_t ids;
  OK(hybridge_model_eos_ids(model, eos, 8, &ids));
  int64_t lengths[64];
  size_t verifies;
  OK(hybridge_model_verify_lens(model, lengths, 64, &verifies));
  if (verifies == 0 || lengths[verifies - 1] != info.verify_len) exit(26);
  CHECK(hybridge_model_open("/nowhere/model.pte", &model), HYBRIDGE_UNREADABLE_FILE);
  if (hybridge_failure() == NULL) exit(27);
  hybridge_print_log(1);
  refusals(model, session, argv[2]);

  // Plain, speculative, cancelled and ended by the callback: the same tokens.
  Given plain = {.session = session}, looked_up = {.session = session}, cancelled = {.session = other}, ended = {.stop_after = 3};
  hybridge_generated done;
  OK(hybridge_generate(session, prompt, count, OPTIONS(NEW, 0, HYBRIDGE_NO_DRAFTER), take, &plain, &done));
  if (done.tokens != plain.count || done.verifies != 0) return 1;
  OK(hybridge_reset(session));
  OK(hybridge_generate(session, prompt, count, OPTIONS(NEW, 0, HYBRIDGE_PROMPT_LOOKUP), take, &looked_up, &done));
  // The drafter inside the model, where it has one.
  const hybridge_generation own = options_of(NEW, 0, HYBRIDGE_OWN_DRAFTER);
  Given drafted = {.session = session};
  OK(hybridge_reset(session));
  const hybridge_status by_own = hybridge_generate(session, prompt, count, &own, take, &drafted, NULL);
  if (by_own != (info.draft_len > 0 ? HYBRIDGE_OK : HYBRIDGE_INVALID_DRAFTER)) return 1;
  if (by_own == HYBRIDGE_OK && memcmp(plain.tokens, drafted.tokens, plain.count * sizeof *prompt) != 0) return 1;
  if (by_own == HYBRIDGE_OK && drafted.count != plain.count) return 1;
  OK(hybridge_generate(other, prompt, count, OPTIONS(NEW, 0, HYBRIDGE_NO_DRAFTER), cancel_it, &cancelled, NULL));
  OK(hybridge_reset(other));
  OK(hybridge_generate(other, prompt, count, OPTIONS(NEW, 0, HYBRIDGE_PROMPT_LOOKUP), take, &ended, NULL));
  if (cancelled.count != 1 || ended.count != 3 || looked_up.count != plain.count) return 1;
  if (memcmp(plain.tokens, looked_up.tokens, plain.count * sizeof *prompt) != 0) return 1;
  if (memcmp(plain.tokens, ended.tokens, 3 * sizeof *prompt) != 0) return 1;

  // Drawn by a seed: the same tokens with prompt lookup and without, which are Python's.
  hybridge_sampling heat = hybridge_sampling_defaults(), wrong = heat, free_draw = heat;
  heat.temperature = 0.9, heat.top_p = 0.95, heat.top_k = 30, heat.repetition_penalty = 1.2, heat.seed = 11, heat.has_seed = 1;
  wrong.temperature = -1;
  free_draw.temperature = 0.5, free_draw.min_p = 0.1;
  hybridge_generation drawing = options_of(NEW, 0, HYBRIDGE_NO_DRAFTER), looking = options_of(NEW, 4, HYBRIDGE_PROMPT_LOOKUP);
  drawing.sampling = looking.sampling = &heat;
  Given drawn = {0}, drawn_again = {0}, drawn_freely = {0};
  OK(hybridge_reset(session));
  OK(hybridge_generate(session, prompt, count, &drawing, take, &drawn, NULL));
  OK(hybridge_reset(session));
  OK(hybridge_generate(session, prompt, count, &looking, take, &drawn_again, NULL));
  if (drawn.count != drawn_again.count || memcmp(drawn.tokens, drawn_again.tokens, sizeof drawn.tokens) != 0) return 1;
  OK(hybridge_reset(session));
  looking.sampling = &free_draw;
  OK(hybridge_generate(session, prompt, count, &looking, take, &drawn_freely, NULL));
  OK(hybridge_reset(session));
  drawing.sampling = &wrong;
  CHECK(hybridge_generate(session, prompt, count, &drawing, NULL, NULL, NULL), HYBRIDGE_INVALID_ARGUMENT);

  draft_and_mask(model, session, prompt, count, &plain);
  draft_by_callback(session, prompt, count, &plain);
  by_rounds(session, prompt, count, &plain);
  draft_models_in_turn(model, argv[1], session, prompt, count, &plain);
  checkpoints(model, argv[1], session, prompt, count, &plain);
  parts_and_caches(model, session, prompt, count);
  buffers(session);
  own_program(session);
  if (hybridge_threads() < 1 || hybridge_has_operator("nobody::knows.out") || hybridge_has_backend("Nobody")) return 1;
  brought(model, session, prompt, count);

  // Verify, commit and rollback; the state in a file, and in another session.
  float* logits = malloc((size_t)(info.vocab_size * info.verify_len) * sizeof *logits);
  OK(hybridge_reset(session));
  OK(hybridge_prefill(session, prompt, count, logits));
  OK(hybridge_snapshot(session, 0));
  OK(hybridge_verify(session, plain.tokens, 2, logits));
  OK(hybridge_commit(session, 1));
  OK(hybridge_save(session, argv[2], "noted"));
  OK(hybridge_restore(session, 0));
  OK(hybridge_load(other, argv[2]));
  int64_t text[512];
  size_t length;
  OK(hybridge_tokens(other, text, 512, &length));
  if (length != count + 1 || text[count] != plain.tokens[0]) return 1;
  char note[8];
  size_t noted;
  OK(hybridge_note(other, note, sizeof note, &noted));
  if (noted != 5 || memcmp(note, "noted", noted) != 0) return 1;
  OK(hybridge_decode(other, plain.tokens[1], logits));
  int64_t best = 0;
  for (int64_t i = 1; i < info.vocab_size; ++i) best = logits[i] > logits[best] ? i : best;
  if (best != plain.tokens[2]) return 1;

  // Two threads in one session: one is told to wait, nothing breaks. Two in two sessions: both are served.
  Caller callers[3] = {{session, prompt, count, 50, 0, 0}, {session, prompt, count, 50, 0, 0}, {other, prompt, count, 50, 0, 0}};
  thrd_t threads[3];
  OK(hybridge_reset(other));
  for (int i = 0; i < 3; ++i) thrd_create(&threads[i], call_often, &callers[i]);
  for (int i = 0; i < 3; ++i) thrd_join(threads[i], NULL);
  if (callers[0].wrong + callers[1].wrong + callers[2].wrong + callers[2].busy != 0) return 1;

  // A generation that is cancelled in its prompt leaves nothing behind.
  OK(hybridge_reset(other));
  cancel_anywhere(other, prompt, count, (size_t)info.max_seq_len - 2);
  OK(hybridge_generate(other, plain.tokens, 2, NULL, NULL, NULL, &done));

  // Sessions outlive their model; what is closed stays closed.
  OK(hybridge_model_close(model));
  CHECK(hybridge_model_close(model), HYBRIDGE_INVALID_HANDLE);
  OK(hybridge_reset(session));
  OK(hybridge_prefill(session, prompt, count, NULL));
  OK(hybridge_session_close(session));
  CHECK(hybridge_session_close(session), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_decode(session, 1, NULL), HYBRIDGE_INVALID_HANDLE);
  OK(hybridge_session_close(other));

  printf("version %s\neos", hybridge_version());
  for (size_t i = 0; i < ids; ++i) printf(" %lld", (long long)eos[i]);
  printf("\n");
  for (size_t i = 0; i < plain.count; ++i) printf("%lld ", (long long)plain.tokens[i]);
  printf("\n");
  for (size_t i = 0; i < drawn.count; ++i) printf("%lld ", (long long)drawn.tokens[i]);
  printf("\n");
  free(logits);
  free(prompt);
  return 0;
}
