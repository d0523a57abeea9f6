// dev.hybridge.Native over hybridge/hybridge.h: one function each, which answers with its status.
//
// Results go into arrays of the caller's. The only Java exceptions are the virtual machine's own (an index out of an array's
// bounds, no memory) and one that a token's callback or a mask throws: after it no more Java is called, and it goes on in Kotlin.
// Paths are bytes, because JNI's strings are in modified UTF-8, which is no path of the system's.

#include <jni.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <hybridge/hybridge.h>

namespace {

static_assert(sizeof(jlong) == sizeof(int64_t));

// Runs `call`, out of which nothing is thrown into the virtual machine. Its status also where an exception is pending: Kotlin
// sees the exception, and no status.
template <typename Call>
jint guarded(Call&& call) {
  try {
    return static_cast<jint>(call());
  } catch (const std::bad_alloc&) {
    return HYBRIDGE_OUT_OF_MEMORY;
  } catch (...) {
    return HYBRIDGE_INTERNAL;
  }
}

std::vector<int64_t> tokens(JNIEnv* env, jlongArray array) {
  if (array == nullptr) return {};  // which the C functions refuse
  const jsize count = env->GetArrayLength(array);
  std::vector<int64_t> values(static_cast<size_t>(count));
  env->GetLongArrayRegion(array, 0, count, reinterpret_cast<jlong*>(values.data()));
  return values;
}

// UTF-8. Kotlin refuses a NUL in a text that a C function reads without its length.
std::string text(JNIEnv* env, jbyteArray array) {
  const jsize count = env->GetArrayLength(array);
  std::string bytes(static_cast<size_t>(count), '\0');
  env->GetByteArrayRegion(array, 0, count, reinterpret_cast<jbyte*>(bytes.data()));
  return bytes;
}

// Fills `array` as far as it reaches; one that is too short has the virtual machine throw.
void put(JNIEnv* env, jlongArray array, const std::vector<int64_t>& values) {
  env->SetLongArrayRegion(array, 0, static_cast<jsize>(values.size()), reinterpret_cast<const jlong*>(values.data()));
}

// Java's bytes; null where an exception is pending.
jbyteArray bytes(JNIEnv* env, const char* from, size_t size) {
  const auto count = static_cast<jsize>(size);
  const jbyteArray made = env->NewByteArray(count);
  if (made != nullptr) env->SetByteArrayRegion(made, 0, count, reinterpret_cast<const jbyte*>(from));
  return made;
}

// Puts bytes into a place of an array.
void put(JNIEnv* env, jobjectArray array, const char* from, size_t size, jsize place = 0) {
  const jbyteArray made = bytes(env, from, size);
  if (made == nullptr) return;
  env->SetObjectArrayElement(array, place, made);
  env->DeleteLocalRef(made);
}

// Texts in UTF-8 out of an array of bytes.
std::vector<std::string> texts(JNIEnv* env, jobjectArray array) {
  std::vector<std::string> found;
  for (jsize i = 0; i < env->GetArrayLength(array); ++i) {
    const auto each = static_cast<jbyteArray>(env->GetObjectArrayElement(array, i));
    found.push_back(text(env, each));
    env->DeleteLocalRef(each);
  }
  return found;
}

// An array of bytes for texts; null where an exception is pending.
jobjectArray words(JNIEnv* env, const std::vector<std::string_view>& from) {
  const jclass its_class = env->FindClass("[B");
  const jobjectArray made = its_class == nullptr ? nullptr : env->NewObjectArray(static_cast<jsize>(from.size()), its_class, nullptr);
  env->DeleteLocalRef(its_class);
  for (size_t i = 0; i < from.size() && !env->ExceptionCheck(); ++i) {
    put(env, made, from[i].data(), from[i].size(), static_cast<jsize>(i));
  }
  return env->ExceptionCheck() ? nullptr : made;
}

void put(JNIEnv* env, jfloatArray array, const std::vector<float>& values) {
  if (array != nullptr) env->SetFloatArrayRegion(array, 0, static_cast<jsize>(values.size()), values.data());
}

// Memory for the logits that go into `array`, which may be null; the C functions write `count` of them.
std::vector<float> logits(JNIEnv* env, jfloatArray array) {
  return std::vector<float>(array == nullptr ? 0 : static_cast<size_t>(env->GetArrayLength(array)));
}

// Copies numbers into an array by `copy`, and their number; the array may be null.
template <typename Copy>
jint copied(JNIEnv* env, jlongArray array, jlongArray count, Copy copy) {
  return guarded([&] {
    std::vector<int64_t> found = tokens(env, array);
    size_t number = 0;
    const hybridge_status status = copy(found.data(), found.size(), &number);
    if (status == HYBRIDGE_OK && array != nullptr) put(env, array, found);
    if (status == HYBRIDGE_OK) put(env, count, {static_cast<int64_t>(number)});
    return status;
  });
}

// Calls `call` with where logits are to go.
template <typename Call>
jint with_logits(JNIEnv* env, jfloatArray array, Call&& call) {
  return guarded([&] {
    std::vector<float> values = logits(env, array);
    const hybridge_status status = call(array == nullptr ? nullptr : values.data());
    if (status == HYBRIDGE_OK) put(env, array, values);
    return status;
  });
}

// A method of an object; its id lasts as long as its class, which the object keeps.
struct Method {
  Method(JNIEnv* env, jobject object, const char* name, const char* signature) : of(object) {
    if (object == nullptr) return;
    const jclass its_class = env->GetObjectClass(object);
    id = env->GetMethodID(its_class, name, signature);
    env->DeleteLocalRef(its_class);
  }

  jobject of;
  jmethodID id = nullptr;
};

// dev.hybridge.OnToken and dev.hybridge.Mask, either of which may be null. logits: an array for all calls of the mask.
struct Callbacks {
  JNIEnv* env;
  Method take, apply;
  jfloatArray logits = nullptr;
};

int on_token(int64_t token, void* user) {
  const auto* callbacks = static_cast<const Callbacks*>(user);
  JNIEnv* env = callbacks->env;
  if (env->ExceptionCheck()) return 0;  // the mask's
  if (callbacks->take.of == nullptr) return 1;
  const jboolean more = env->CallBooleanMethod(callbacks->take.of, callbacks->take.id, static_cast<jlong>(token));
  return more != JNI_FALSE && !env->ExceptionCheck();
}

// Lets the mask change the logits; where it throws, no token may come, and nothing more does.
void mask(const int64_t* text, size_t count, float* logits, size_t vocab_size, void* user) {
  auto* callbacks = static_cast<Callbacks*>(user);
  JNIEnv* env = callbacks->env;
  const auto size = static_cast<jsize>(vocab_size), length = static_cast<jsize>(count);
  if (!env->ExceptionCheck() && callbacks->logits == nullptr) callbacks->logits = env->NewFloatArray(size);
  const jlongArray tokens = env->ExceptionCheck() ? nullptr : env->NewLongArray(length);
  if (tokens != nullptr) {
    env->SetLongArrayRegion(tokens, 0, length, reinterpret_cast<const jlong*>(text));
    env->SetFloatArrayRegion(callbacks->logits, 0, size, logits);
    env->CallVoidMethod(callbacks->apply.of, callbacks->apply.id, tokens, callbacks->logits);
    if (!env->ExceptionCheck()) env->GetFloatArrayRegion(callbacks->logits, 0, size, logits);
    env->DeleteLocalRef(tokens);
  }
  if (env->ExceptionCheck()) std::fill_n(logits, vocab_size, -std::numeric_limits<float>::infinity());
}

// A handle of whatever kind a function takes: in Kotlin it is a number, and the core refuses one of another kind.
struct AnyHandle {
  uint64_t id;

  template <typename Handle>
  operator Handle() const {
    return {id};
  }
};

AnyHandle handle(jlong number) { return {static_cast<uint64_t>(number)}; }

}  // namespace

#define NATIVE(result, name) extern "C" JNIEXPORT result JNICALL Java_dev_hybridge_Native_##name

NATIVE(jstring, version)(JNIEnv* env, jclass) { return env->NewStringUTF(hybridge_version()); }

NATIVE(jbyteArray, failure)(JNIEnv* env, jclass) {
  const std::string words = hybridge_failure();
  return bytes(env, words.data(), words.size());
}

NATIVE(jint, setThreads)(JNIEnv*, jclass, jint count) {
  return count < 0 ? HYBRIDGE_INVALID_ARGUMENT : hybridge_set_threads(static_cast<size_t>(count));
}

NATIVE(jint, modelOpen)(JNIEnv* env, jclass, jbyteArray path, jlongArray model) {
  return guarded([&] {
    hybridge_model opened{};
    const hybridge_status status = hybridge_model_open(text(env, path).c_str(), &opened);
    if (status == HYBRIDGE_OK) put(env, model, {static_cast<int64_t>(opened.id)});
    return status;
  });
}

NATIVE(jint, modelClose)(JNIEnv*, jclass, jlong model) { return hybridge_model_close(handle(model)); }

NATIVE(jint, modelLimit)(JNIEnv*, jclass, jlong model, jlong maxSeqLen) {
  return hybridge_model_limit(handle(model), maxSeqLen);
}

NATIVE(jint, delegateFrom)(JNIEnv*, jclass, jlong model, jlong tokens) {
  return hybridge_model_delegate_from(handle(model), tokens);
}

NATIVE(jint, strictReuse)(JNIEnv*, jclass, jlong model, jboolean wanted) {
  return hybridge_model_strict_reuse(handle(model), wanted);
}

NATIVE(jint, modelInfo)(JNIEnv* env, jclass, jlong model, jlongArray info) {
  return guarded([&] {
    hybridge_info found{};
    const hybridge_status status = hybridge_model_info(handle(model), &found);
    if (status == HYBRIDGE_OK) {
      put(env, info, {found.max_seq_len, found.vocab_size, found.prefill_chunk, found.verify_len, found.snapshot_slots,
                      found.draft_len});
    }
    return status;
  });
}

NATIVE(jint, validate)
(JNIEnv* env, jclass, jlong model, jbyteArray path, jlongArray counts, jdoubleArray errors) {
  return guarded([&] {
    hybridge_validation found{};
    const hybridge_status status = hybridge_validate(handle(model), text(env, path).c_str(), &found);
    if (status != HYBRIDGE_OK) return status;
    put(env, counts, {static_cast<int64_t>(found.steps), found.same_bits});
    const double shares[] = {found.worst, found.tolerance};
    env->SetDoubleArrayRegion(errors, 0, 2, shares);
    return status;
  });
}

NATIVE(jint, modelEosIds)(JNIEnv* env, jclass, jlong model, jlongArray ids, jlongArray count) {
  return copied(env, ids, count, [=](auto... to) { return hybridge_model_eos_ids(handle(model), to...); });
}

NATIVE(jint, cacheOpen)(JNIEnv* env, jclass, jlong model, jlong bytes, jlongArray cache) {
  return guarded([&] {
    hybridge_cache opened{};
    const hybridge_status status =
        bytes < 0 ? HYBRIDGE_INVALID_ARGUMENT : hybridge_cache_open(handle(model), static_cast<size_t>(bytes), &opened);
    if (status == HYBRIDGE_OK) put(env, cache, {static_cast<int64_t>(opened.id)});
    return status;
  });
}

NATIVE(jint, cacheClose)(JNIEnv*, jclass, jlong cache) { return hybridge_cache_close(handle(cache)); }

// Pixels are copied twice, here and in the core: a critical section would keep the collector waiting while it resizes.
NATIVE(jint, pictureOpen)(JNIEnv* env, jclass, jlong model, jbyteArray rgb, jint width, jint height, jlongArray picture) {
  return guarded([&] {
    const jsize size = env->GetArrayLength(rgb);
    if (width < 0 || height < 0 || int64_t{3} * width * height != size) return HYBRIDGE_INVALID_ARGUMENT;
    std::vector<uint8_t> pixels(static_cast<size_t>(std::max(size, 1)));
    env->GetByteArrayRegion(rgb, 0, size, reinterpret_cast<jbyte*>(pixels.data()));
    hybridge_picture opened{};
    const hybridge_status status =
        hybridge_picture_open(handle(model), pixels.data(), static_cast<size_t>(width), static_cast<size_t>(height), &opened);
    if (status == HYBRIDGE_OK) put(env, picture, {static_cast<int64_t>(opened.id)});
    return status;
  });
}

NATIVE(jint, pictureClose)(JNIEnv*, jclass, jlong picture) { return hybridge_picture_close(handle(picture)); }

// count: of the ids, and where there is room for a second number how often the picture's parts were encoded.
NATIVE(jint, pictureIds)(JNIEnv* env, jclass, jlong picture, jlongArray ids, jlongArray count) {
  return guarded([&] {
    std::vector<int64_t> found = tokens(env, ids);
    size_t number = 0;
    hybridge_pictured pictured{};
    const hybridge_status status = hybridge_picture_ids(handle(picture), found.data(), found.size(), &number, &pictured);
    if (status == HYBRIDGE_OK && ids != nullptr) put(env, ids, found);
    std::vector<int64_t> counts = {static_cast<int64_t>(number), static_cast<int64_t>(pictured.encodings)};
    counts.resize(std::min(counts.size(), static_cast<size_t>(env->GetArrayLength(count))));
    if (status == HYBRIDGE_OK) put(env, count, counts);
    return status;
  });
}

NATIVE(jint, sessionOpen)(JNIEnv* env, jclass, jlong model, jlongArray session) {
  return guarded([&] {
    hybridge_session opened{};
    const hybridge_status status = hybridge_session_open(handle(model), &opened);
    if (status == HYBRIDGE_OK) put(env, session, {static_cast<int64_t>(opened.id)});
    return status;
  });
}

NATIVE(jint, sessionClose)(JNIEnv*, jclass, jlong session) { return hybridge_session_close(handle(session)); }

NATIVE(jint, tokens)(JNIEnv* env, jclass, jlong session, jlongArray text, jlongArray count) {
  return copied(env, text, count, [=](auto... to) { return hybridge_tokens(handle(session), to...); });
}

NATIVE(jint, delegated)(JNIEnv* env, jclass, jlong session, jlongArray places, jlongArray count) {
  return copied(env, places, count, [=](auto... to) { return hybridge_delegated(handle(session), to...); });
}

// counts: whether the delegate is in use, its tokens, the CPU's.
NATIVE(jint, promptsRead)(JNIEnv* env, jclass, jlong session, jlongArray counts, jobjectArray reason) {
  return guarded([&] {
    hybridge_prompts_read read{};
    size_t size = 0;
    hybridge_status status = hybridge_session_prompts(handle(session), &read, nullptr, 0, &size);
    std::string words(size, '\0');
    if (status == HYBRIDGE_OK) status = hybridge_session_prompts(handle(session), &read, words.data(), size, &size);
    if (status != HYBRIDGE_OK) return status;
    put(env, counts, {read.delegate_in_use, read.delegate_tokens, read.cpu_tokens});
    put(env, reason, words.data(), words.size());
    return status;
  });
}

// The caller's array has as many floats as logits come: `Session` in Kotlin sees to that, and the C function writes no more.
NATIVE(jint, prefill)(JNIEnv* env, jclass, jlong session, jlongArray prompt, jfloatArray out) {
  return with_logits(env, out, [&](float* to) {
    const std::vector<int64_t> ids = tokens(env, prompt);
    return hybridge_prefill(handle(session), ids.data(), ids.size(), to);
  });
}

NATIVE(jint, decode)(JNIEnv* env, jclass, jlong session, jlong token, jfloatArray out) {
  return with_logits(env, out, [&](float* to) { return hybridge_decode(handle(session), token, to); });
}

NATIVE(jint, verify)(JNIEnv* env, jclass, jlong session, jlongArray block, jfloatArray out) {
  return with_logits(env, out, [&](float* to) {
    const std::vector<int64_t> ids = tokens(env, block);
    return hybridge_verify(handle(session), ids.data(), ids.size(), to);
  });
}

NATIVE(jint, commit)(JNIEnv*, jclass, jlong session, jlong count) { return hybridge_commit(handle(session), count); }

NATIVE(jint, snapshot)(JNIEnv*, jclass, jlong session, jlong slot) { return hybridge_snapshot(handle(session), slot); }

NATIVE(jint, restore)(JNIEnv*, jclass, jlong session, jlong slot) { return hybridge_restore(handle(session), slot); }

NATIVE(jint, reset)(JNIEnv*, jclass, jlong session) { return hybridge_reset(handle(session)); }

NATIVE(jint, save)(JNIEnv* env, jclass, jlong session, jbyteArray path) {
  return guarded([&] { return hybridge_save(handle(session), text(env, path).c_str(), nullptr); });
}

NATIVE(jint, load)(JNIEnv* env, jclass, jlong session, jbyteArray path) {
  return guarded([&] { return hybridge_load(handle(session), text(env, path).c_str()); });
}

NATIVE(jint, checkpointMake)(JNIEnv* env, jclass, jlong session, jlongArray checkpoint) {
  return guarded([&] {
    hybridge_checkpoint made{};
    const hybridge_status status = hybridge_checkpoint_make(handle(session), &made);
    if (status == HYBRIDGE_OK) put(env, checkpoint, {static_cast<int64_t>(made.id)});
    return status;
  });
}

NATIVE(jint, checkpointInfo)(JNIEnv* env, jclass, jlong checkpoint, jlongArray kept) {
  return guarded([&] {
    hybridge_kept found{};
    const hybridge_status status = hybridge_checkpoint_info(handle(checkpoint), &found);
    if (status == HYBRIDGE_OK) put(env, kept, {static_cast<int64_t>(found.length), static_cast<int64_t>(found.bytes)});
    return status;
  });
}

NATIVE(jint, checkpointClose)(JNIEnv*, jclass, jlong checkpoint) { return hybridge_checkpoint_close(handle(checkpoint)); }

NATIVE(jint, resume)(JNIEnv*, jclass, jlong session, jlong checkpoint) {
  return hybridge_resume(handle(session), handle(checkpoint));
}

NATIVE(jint, bringTo)(JNIEnv* env, jclass, jlong session, jlong cache, jlongArray text, jlongArray known) {
  return guarded([&] {
    const std::vector<int64_t> ids = tokens(env, text);
    size_t found = 0;
    const hybridge_status status = hybridge_bring_to(handle(session), handle(cache), ids.data(), ids.size(), &found);
    if (status == HYBRIDGE_OK) put(env, known, {static_cast<int64_t>(found)});
    return status;
  });
}

namespace {

// The wishes of a generation that Kotlin puts into arrays. options: max_new_tokens, block_length, drafter, draft, a grammar or 0,
// stop_after_reasoning, whether there is a sampling, and of it top_k, seed, has_seed, repeat_last_n, dry_allowed_length, the number
// of dry_breakers, these, and the tokens of logit_bias. sampling: the rest of it, then the biases.
struct Wishes {
  Wishes(JNIEnv* env, jlongArray options, jdoubleArray sampling) {
    constexpr size_t WHOLE = 13, REAL = 9;
    chosen = tokens(env, options);
    std::vector<double> real(static_cast<size_t>(env->GetArrayLength(sampling)));
    env->GetDoubleArrayRegion(sampling, 0, static_cast<jsize>(real.size()), real.data());
    if (env->ExceptionCheck() || chosen.size() < WHOLE || real.size() < REAL || chosen[12] < 0) return;
    const size_t breakers = static_cast<size_t>(chosen[12]), rest = chosen.size() - WHOLE;
    fit = chosen[0] >= 0 && chosen[1] >= 0 && chosen[7] >= 0 && chosen[11] >= 0 && breakers <= rest &&
          rest - breakers == real.size() - REAL;
    if (!fit) return;
    for (size_t i = 0; i < rest - breakers; i++) biases.push_back({chosen[WHOLE + breakers + i], real[REAL + i]});
    draws.temperature = real[0];
    draws.top_p = real[1];
    draws.min_p = real[2];
    draws.repetition_penalty = real[3];
    draws.presence_penalty = real[4];
    draws.frequency_penalty = real[5];
    draws.top_n_sigma = real[6];
    draws.dry_multiplier = real[7];
    draws.dry_base = real[8];
    draws.top_k = static_cast<size_t>(chosen[7]);
    draws.seed = static_cast<uint64_t>(chosen[8]);
    draws.has_seed = chosen[9] != 0;
    draws.repeat_last_n = chosen[10];
    draws.dry_allowed_length = static_cast<size_t>(chosen[11]);
    draws.dry_breakers = chosen.data() + WHOLE;
    draws.dry_breaker_count = breakers;
    draws.logit_bias = biases.data();
    draws.bias_count = biases.size();
    generation.max_new_tokens = static_cast<size_t>(chosen[0]);
    generation.block_length = static_cast<size_t>(chosen[1]);
    generation.drafter = static_cast<hybridge_drafter>(chosen[2]);
    generation.draft = handle(chosen[3]);
    generation.grammar = handle(chosen[4]);
    generation.stop_after_reasoning = chosen[5] != 0;
    generation.sampling = chosen[6] != 0 ? &draws : nullptr;
  }
  Wishes(const Wishes&) = delete;

  bool fit = false;
  std::vector<int64_t> chosen;
  std::vector<hybridge_bias> biases;
  hybridge_sampling draws = hybridge_sampling_defaults();
  hybridge_generation generation = hybridge_generation_defaults();
};

// tokens, proposed, accepted, verifies, rollbacks.
std::vector<int64_t> counts(const hybridge_generated& done) {
  std::vector<int64_t> all;
  for (size_t count : {done.tokens, done.proposed, done.accepted, done.verifies, done.rollbacks}) all.push_back(static_cast<int64_t>(count));
  return all;
}

}  // namespace

NATIVE(jint, generate)
(JNIEnv* env, jclass, jlong session, jlongArray prompt, jlongArray options, jdoubleArray sampling, jobject masking,
    jobject taker, jlongArray generated) {
  return guarded([&] {
    Callbacks callbacks = {env, Method(env, taker, "take", "(J)Z"), Method(env, masking, "apply", "([J[F)V")};
    const std::vector<int64_t> ids = tokens(env, prompt);
    Wishes wishes(env, options, sampling);
    if (!wishes.fit) return HYBRIDGE_INVALID_ARGUMENT;
    if (masking != nullptr) wishes.generation.mask = mask;
    hybridge_generated done{};
    const hybridge_status status =
        hybridge_generate(handle(session), ids.data(), ids.size(), &wishes.generation, on_token, &callbacks, &done);
    if (status == HYBRIDGE_OK && !env->ExceptionCheck()) put(env, generated, counts(done));
    return status;
  });
}

NATIVE(jint, cancel)(JNIEnv*, jclass, jlong session) { return hybridge_cancel(handle(session)); }

NATIVE(jint, tokenizerOpen)(JNIEnv* env, jclass, jbyteArray path, jlongArray tokenizer) {
  return guarded([&] {
    hybridge_tokenizer opened{};
    const hybridge_status status = hybridge_tokenizer_open(text(env, path).c_str(), &opened);
    if (status == HYBRIDGE_OK) put(env, tokenizer, {static_cast<int64_t>(opened.id)});
    return status;
  });
}

NATIVE(jint, tokenizerClose)(JNIEnv*, jclass, jlong tokenizer) { return hybridge_tokenizer_close(handle(tokenizer)); }

NATIVE(jint, tokenizerEncode)
(JNIEnv* env, jclass, jlong tokenizer, jbyteArray bytes, jint reading, jlongArray ids, jlongArray count) {
  return guarded([&] {
    const std::string given = text(env, bytes);
    std::vector<int64_t> found = tokens(env, ids);
    size_t number = 0;
    const hybridge_status status = hybridge_tokenizer_encode(
        handle(tokenizer), given.data(), given.size(), reading, nullptr, 0, found.data(), nullptr, found.size(), &number);
    if (status == HYBRIDGE_OK && ids != nullptr) put(env, ids, found);
    if (status == HYBRIDGE_OK) put(env, count, {static_cast<int64_t>(number)});
    return status;
  });
}

NATIVE(jint, tokenizerDecode)
(JNIEnv* env, jclass, jlong tokenizer, jlongArray ids, jboolean skip_special, jobjectArray text) {
  return guarded([&] {
    const std::vector<int64_t> given = tokens(env, ids);
    std::string bytes(16 * given.size(), '\0');
    size_t size = 0;
    hybridge_status status = HYBRIDGE_OK;
    for (int tries = 0; tries < 2; tries++) {
      status = hybridge_tokenizer_decode(
          handle(tokenizer), given.data(), given.size(), skip_special, bytes.data(), bytes.size(), &size);
      if (status != HYBRIDGE_OK || size <= bytes.size()) break;
      bytes.resize(size);
    }
    if (status == HYBRIDGE_OK) put(env, text, bytes.data(), size);
    return status;
  });
}

NATIVE(jint, textOpen)(JNIEnv* env, jclass, jlong tokenizer, jboolean skip_special, jlongArray text) {
  return guarded([&] {
    hybridge_text opened{};
    const hybridge_status status = hybridge_text_open(handle(tokenizer), skip_special, &opened);
    if (status == HYBRIDGE_OK) put(env, text, {static_cast<int64_t>(opened.id)});
    return status;
  });
}

NATIVE(jint, textPush)(JNIEnv* env, jclass, jlong text, jlong token, jobjectArray piece) {
  const char* bytes = nullptr;
  size_t size = 0;
  const hybridge_status status = hybridge_text_push(handle(text), token, &bytes, &size);
  if (status == HYBRIDGE_OK) put(env, piece, bytes, size);
  return status;
}

NATIVE(jint, textFinish)(JNIEnv* env, jclass, jlong text, jobjectArray piece) {
  const char* bytes = nullptr;
  size_t size = 0;
  const hybridge_status status = hybridge_text_finish(handle(text), &bytes, &size);
  if (status == HYBRIDGE_OK) put(env, piece, bytes, size);
  return status;
}

NATIVE(jint, textClose)(JNIEnv*, jclass, jlong text) { return hybridge_text_close(handle(text)); }

// Grammars

NATIVE(jint, grammarOpen)(JNIEnv* env, jclass, jlong tokenizer, jint kind, jbyteArray says, jlongArray grammar) {
  return guarded([&] {
    const std::string given = text(env, says);
    hybridge_grammar made{};
    const hybridge_status status =
        hybridge_grammar_open(handle(tokenizer), static_cast<hybridge_grammar_kind>(kind), given.data(), given.size(), &made);
    if (status == HYBRIDGE_OK) put(env, grammar, {static_cast<int64_t>(made.id)});
    return status;
  });
}

NATIVE(jint, grammarClose)(JNIEnv*, jclass, jlong grammar) { return hybridge_grammar_close(handle(grammar)); }

// Chats

namespace {

// Adds id, name and arguments of each call.
void add_calls(std::vector<std::string_view>& words, const hybridge_call* calls, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    words.insert(words.end(), {calls[i].id, {calls[i].name, calls[i].name_size}, {calls[i].arguments, calls[i].arguments_size}});
  }
}

// Gives dev.hybridge.OnPiece what a token adds; where it throws, no more Java is called.
int on_piece(const hybridge_piece* piece, void* user) {
  const auto* callbacks = static_cast<const Callbacks*>(user);
  JNIEnv* env = callbacks->env;
  if (env->ExceptionCheck()) return 0;
  if (callbacks->take.of == nullptr) return 1;
  std::vector<std::string_view> called;
  add_calls(called, piece->calls, piece->call_count);
  const jbyteArray content = bytes(env, piece->content, piece->content_size);
  const jbyteArray reasoning = content == nullptr ? nullptr : bytes(env, piece->reasoning, piece->reasoning_size);
  const jobjectArray calls = reasoning == nullptr ? nullptr : words(env, called);
  if (calls == nullptr) return 0;
  const jboolean more = env->CallBooleanMethod(callbacks->take.of, callbacks->take.id, content, reasoning, calls);
  for (const jobject each : {static_cast<jobject>(calls), static_cast<jobject>(reasoning), static_cast<jobject>(content)}) {
    env->DeleteLocalRef(each);
  }
  return more != JNI_FALSE && !env->ExceptionCheck();
}

// answered: what ended the answer, prompt and cached tokens, and the counts of its generation.
template <typename Ask>
jint answer(
    JNIEnv* env, jlongArray options, jdoubleArray sampling, jobjectArray stops, jbyteArray toolChoice, jobject taker,
    jlongArray answered, Ask&& ask) {
  return guarded([&] {
    Callbacks callbacks = {env, Method(env, taker, "take", "([B[B[[B)Z"), Method(env, nullptr, "", "")};
    Wishes wishes(env, options, sampling);
    if (!wishes.fit) return HYBRIDGE_INVALID_ARGUMENT;
    const std::string choice = toolChoice == nullptr ? std::string() : text(env, toolChoice);
    wishes.generation.tool_choice = toolChoice == nullptr ? nullptr : choice.c_str();
    const std::vector<std::string> ends = texts(env, stops);
    std::vector<const char*> each;
    for (const std::string& stop : ends) each.push_back(stop.c_str());
    hybridge_answer done{};
    const hybridge_status status = ask(&wishes.generation, each.data(), each.size(), on_piece, &callbacks, &done);
    if (status == HYBRIDGE_OK && !env->ExceptionCheck()) {
      std::vector<int64_t> all = {done.ending, static_cast<int64_t>(done.prompt_tokens), static_cast<int64_t>(done.cached_tokens)};
      for (const int64_t count : counts(done.generated)) all.push_back(count);
      all.push_back(static_cast<int64_t>(done.dropped_messages));
      put(env, answered, all);
    }
    return status;
  });
}

}  // namespace

NATIVE(jint, artifactOpen)(JNIEnv* env, jclass, jbyteArray folder, jlongArray artifact) {
  return guarded([&] {
    hybridge_artifact opened{};
    const hybridge_status status = hybridge_artifact_open(text(env, folder).c_str(), &opened);
    if (status == HYBRIDGE_OK) put(env, artifact, {static_cast<int64_t>(opened.id)});
    return status;
  });
}

NATIVE(jint, artifactClose)(JNIEnv*, jclass, jlong artifact) { return hybridge_artifact_close(handle(artifact)); }

NATIVE(jint, artifactModel)(JNIEnv* env, jclass, jlong artifact, jlongArray model) {
  return guarded([&] {
    hybridge_model found{};
    const hybridge_status status = hybridge_artifact_model(handle(artifact), &found);
    if (status == HYBRIDGE_OK) put(env, model, {static_cast<int64_t>(found.id)});
    return status;
  });
}

NATIVE(jint, artifactTokenizer)(JNIEnv* env, jclass, jlong artifact, jlongArray tokenizer) {
  return guarded([&] {
    hybridge_tokenizer found{};
    const hybridge_status status = hybridge_artifact_tokenizer(handle(artifact), &found);
    if (status == HYBRIDGE_OK) put(env, tokenizer, {static_cast<int64_t>(found.id)});
    return status;
  });
}

// sampling: temperature, top_p, min_p, repetition_penalty; topK: one number.
NATIVE(jint, artifactSampling)(JNIEnv* env, jclass, jlong artifact, jdoubleArray sampling, jlongArray topK) {
  return guarded([&] {
    hybridge_sampling found = hybridge_sampling_defaults();
    const hybridge_status status = hybridge_artifact_sampling(handle(artifact), &found);
    if (status != HYBRIDGE_OK) return status;
    const double heat[] = {found.temperature,        found.top_p,           found.min_p,
                           found.repetition_penalty, found.presence_penalty, found.frequency_penalty};
    env->SetDoubleArrayRegion(sampling, 0, 6, heat);
    put(env, topK, {static_cast<int64_t>(found.top_k)});
    return status;
  });
}

NATIVE(jint, chatOpen)
(JNIEnv* env, jclass, jlong artifact, jbyteArray system, jint thinking, jlong checkpointBytes, jbyteArray variables, jbyteArray tools,
    jlongArray chat) {
  return guarded([&] {
    if (checkpointBytes < 0) return HYBRIDGE_INVALID_ARGUMENT;
    const auto given = [&](jbyteArray array) { return array == nullptr ? std::string() : text(env, array); };
    const std::string told = given(system), more = given(variables), offered = given(tools);
    hybridge_chat_options options = hybridge_chat_options_defaults();
    options.system = told.c_str();
    options.thinking = static_cast<hybridge_thinking>(thinking);
    options.checkpoint_bytes = static_cast<size_t>(checkpointBytes);
    options.variables = variables == nullptr ? nullptr : more.c_str();
    options.tools = tools == nullptr ? nullptr : offered.c_str();
    hybridge_chat opened{};
    const hybridge_status status = hybridge_chat_open(handle(artifact), &options, &opened);
    if (status == HYBRIDGE_OK) put(env, chat, {static_cast<int64_t>(opened.id)});
    return status;
  });
}

NATIVE(jint, chatClose)(JNIEnv*, jclass, jlong chat) { return hybridge_chat_close(handle(chat)); }

NATIVE(jint, chatShow)(JNIEnv* env, jclass, jlong chat, jlongArray pictures) {
  return guarded([&] {
    std::vector<hybridge_picture> shown;
    for (const int64_t each : tokens(env, pictures)) shown.push_back(handle(each));
    return hybridge_chat_show(handle(chat), shown.data(), shown.size());
  });
}

NATIVE(jint, chatSend)
(JNIEnv* env, jclass, jlong chat, jbyteArray message, jlongArray options, jdoubleArray sampling, jobjectArray stops,
    jbyteArray toolChoice, jobject taker, jlongArray answered) {
  return answer(env, options, sampling, stops, toolChoice, taker, answered, [&](auto... how) {
    const std::string words = text(env, message);
    return hybridge_chat_send(handle(chat), words.data(), words.size(), how...);
  });
}

NATIVE(jint, chatGiveResults)
(JNIEnv* env, jclass, jlong chat, jobjectArray results, jlongArray options, jdoubleArray sampling, jobjectArray stops,
    jbyteArray toolChoice, jobject taker, jlongArray answered) {
  return answer(env, options, sampling, stops, toolChoice, taker, answered, [&](auto... how) {
    const std::vector<std::string> given = texts(env, results);
    std::vector<hybridge_result> each;
    for (const std::string& result : given) each.push_back({result.data(), result.size()});
    return hybridge_chat_give_results(handle(chat), each.data(), each.size(), how...);
  });
}

NATIVE(jint, chatRetry)
(JNIEnv* env, jclass, jlong chat, jlongArray options, jdoubleArray sampling, jobjectArray stops, jbyteArray toolChoice, jobject taker,
    jlongArray answered) {
  return answer(
      env, options, sampling, stops, toolChoice, taker, answered, [&](auto... how) { return hybridge_chat_retry(handle(chat), how...); });
}

NATIVE(jint, chatContinue)
(JNIEnv* env, jclass, jlong chat, jlongArray options, jdoubleArray sampling, jobjectArray stops, jbyteArray toolChoice, jobject taker,
    jlongArray answered) {
  return answer(env, options, sampling, stops, toolChoice, taker, answered,
      [&](auto... how) { return hybridge_chat_continue(handle(chat), how...); });
}

NATIVE(jint, chatSetSystem)(JNIEnv* env, jclass, jlong chat, jbyteArray system) {
  return guarded([&] {
    const std::string told = text(env, system);
    return hybridge_chat_set_system(handle(chat), told.data(), told.size());
  });
}

NATIVE(jint, chatUndo)(JNIEnv*, jclass, jlong chat) { return hybridge_chat_undo(handle(chat)); }

NATIVE(jint, chatReset)(JNIEnv*, jclass, jlong chat) { return hybridge_chat_reset(handle(chat)); }

NATIVE(jint, chatCancel)(JNIEnv*, jclass, jlong chat) { return hybridge_chat_cancel(handle(chat)); }

NATIVE(jint, chatSave)(JNIEnv* env, jclass, jlong chat, jbyteArray path) {
  return guarded([&] { return hybridge_chat_save(handle(chat), text(env, path).c_str()); });
}

NATIVE(jint, chatLoad)(JNIEnv* env, jclass, jlong chat, jbyteArray path) {
  return guarded([&] { return hybridge_chat_load(handle(chat), text(env, path).c_str()); });
}

// messages: gets an array of bytes for each, as many as there is room for: role, content and reasoning, then id, name and arguments of
// its calls; or null. counts: of the messages, and of the tokens that still fit.
NATIVE(jint, chatMessages)(JNIEnv* env, jclass, jlong chat, jobjectArray messages, jlongArray counts) {
  return guarded([&] {
    std::vector<hybridge_message> found(messages == nullptr ? 0 : static_cast<size_t>(env->GetArrayLength(messages)));
    size_t count = 0;
    int64_t room = 0;
    const hybridge_status status = hybridge_chat_messages(handle(chat), found.data(), found.size(), &count, &room);
    if (status != HYBRIDGE_OK) return status;
    for (size_t i = 0; i < std::min(count, found.size()) && !env->ExceptionCheck(); ++i) {
      const hybridge_message& each = found[i];
      std::vector<std::string_view> said = {each.role, {each.content, each.content_size}, {each.reasoning, each.reasoning_size}};
      add_calls(said, each.calls, each.call_count);
      const jobjectArray message = words(env, said);
      if (message == nullptr) return status;
      env->SetObjectArrayElement(messages, static_cast<jsize>(i), message);
      env->DeleteLocalRef(message);
    }
    put(env, counts, {static_cast<int64_t>(count), room});
    return status;
  });
}
