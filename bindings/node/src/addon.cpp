// The addon of the package for Node.js: the functions of hybridge.h as functions of JavaScript, which return promises.
//
// It uses Node-API alone, whose binary interface is the same in each version of Node.js, so it is compiled once for a
// platform. The JavaScript around it (lib/) checks arguments and names; here a wrong type is a TypeError.

#include <node_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "generations.h"
#include "jobs.h"
#include "library.h"
#include "values.h"

namespace hybridge_node {

namespace {

// A call of a function by JavaScript.
struct Arguments {
  Arguments(napi_env env, napi_callback_info info) : env(env), make(env) {
    size_t count = std::size(values_);
    void* data = nullptr;
    check(env, napi_get_cb_info(env, info, &count, values_, nullptr, nullptr));
    check(env, napi_get_instance_data(env, &data));
    environment = static_cast<Environment*>(data);
  }

  Value operator[](size_t i) const { return {env, values_[i]}; }
  uint64_t handle(size_t i) const { return (*this)[i].id(); }

  std::unique_ptr<Job> job(Job::Work work, Job::Result result = nullptr) const {
    return std::unique_ptr<Job>(new Job{*environment, std::move(work), std::move(result)});
  }

  napi_value start(Job::Work work, Job::Result result = nullptr) const {
    return environment->start(job(std::move(work), std::move(result)));
  }

  // A reference that keeps a value, which may be undefined, as long as a job.
  napi_ref keep(size_t i) const {
    napi_ref reference = nullptr;
    if ((*this)[i].given()) check(env, napi_create_reference(env, values_[i], 1, &reference));
    return reference;
  }

  napi_env env;
  Maker make;
  Environment* environment;

 private:
  napi_value values_[8];
};

const Library& call() { return *library(); }

// Starts a job that opens a handle. open: writes the id. result: more than the id, if it is given.
napi_value open(const Arguments& arguments, Kind kind, std::function<hybridge_status(uint64_t&)> open) {
  auto id = std::make_shared<uint64_t>(0);
  Environment* environment = arguments.environment;
  return arguments.start(
      [=](Job&) {
        const hybridge_status status = open(*id);
        if (status == HYBRIDGE_OK) environment->opened({kind, *id});
        return status;
      },
      [=](napi_env env) { return Maker(env).id(*id); }
  );
}

// ---- The library ----

napi_value load(const Arguments& arguments) {
  std::vector<std::string> files;
  for (const Value& each : arguments[0].list()) files.push_back(each.text());
  return arguments.start([files](Job& job) {
    job.words = open_library(files);
    return job.words.empty() ? HYBRIDGE_OK : HYBRIDGE_UNSUPPORTED;
  });
}

napi_value set_threads(const Arguments& arguments) {
  const auto count = static_cast<size_t>(arguments[0].number());
  return arguments.start([=](Job&) { return call().set_threads(count); });
}

napi_value threads(const Arguments& arguments) { return arguments.make.number(static_cast<double>(call().threads())); }

napi_value has(const Arguments& arguments) {
  const std::string name = arguments[0].text();
  return arguments.make.number(call().has_operator(name.c_str()) | call().has_backend(name.c_str()));
}

// Closes a handle on a thread: memory that is given back takes time.
napi_value close_handle(const Arguments& arguments) {
  const Handle handle(static_cast<Kind>(arguments[0].number()), arguments.handle(1));
  Environment* environment = arguments.environment;
  return arguments.start([=](Job&) {
    const hybridge_status status = close(handle);
    if (status == HYBRIDGE_OK) environment->closed(handle);
    return status;
  });
}

napi_value cancel(const Arguments& arguments) {
  arguments.environment->cancel({static_cast<Kind>(arguments[0].number()), arguments.handle(1)});
  return arguments.make.undefined();
}

napi_value stop(const Arguments& arguments) {
  arguments.environment->stop();
  return arguments.make.undefined();
}

// ---- Artifacts and models ----

// How a model is to be used. context: 0 for all that the program holds.
struct OpenOptions {
  int64_t context, delegate_from;
  bool strict_reuse;

  explicit OpenOptions(const Arguments& arguments)
      : context(arguments[1].number()), delegate_from(arguments[2].number()), strict_reuse(arguments[3].flag()) {}
};

// A model and what it says about itself.
struct Described {
  uint64_t artifact = 0;
  hybridge_model model = {};
  hybridge_tokenizer tokenizer = {};
  hybridge_info info = {};
  hybridge_sampling sampling = {};
  std::vector<int64_t> eos_ids;

  hybridge_status describe(const OpenOptions& options) {
    hybridge_status status = options.context > 0 ? call().model_limit(model, options.context) : HYBRIDGE_OK;
    if (status == HYBRIDGE_OK && options.delegate_from > 0)
      status = call().model_delegate_from(model, options.delegate_from);
    if (status == HYBRIDGE_OK) status = call().model_strict_reuse(model, options.strict_reuse);
    if (status == HYBRIDGE_OK) status = call().model_info(model, &info);
    size_t count = 0;
    if (status == HYBRIDGE_OK) status = call().model_eos_ids(model, nullptr, 0, &count);
    eos_ids.resize(count);
    if (status == HYBRIDGE_OK) status = call().model_eos_ids(model, eos_ids.data(), count, &count);
    return status;
  }

  napi_value of(const Maker& make) const {
    const auto count = [&](int64_t number) { return make.number(static_cast<double>(number)); };
    return make.object({
        {"artifact", make.id(artifact)},
        {"model", make.id(model.id)},
        {"tokenizer", make.id(tokenizer.id)},
        {"eosIds", make.ids(eos_ids)},
        {"maxSeqLen", count(info.max_seq_len)},
        {"vocabSize", count(info.vocab_size)},
        {"prefillChunk", count(info.prefill_chunk)},
        {"verifyLen", count(info.verify_len)},
        {"snapshotSlots", count(info.snapshot_slots)},
        {"draftLen", count(info.draft_len)},
        {"pictureUnit", count(info.picture_unit)},
        {"maxPictureTokens", count(info.max_picture_tokens)},
        {"placeholder", count(info.placeholder)},
        {"sampling", sampling_of(make, sampling)},
    });
  }
};

napi_value open_artifact(const Arguments& arguments) {
  const std::string folder = arguments[0].text();
  const OpenOptions options(arguments);
  auto found = std::make_shared<Described>();
  Environment* environment = arguments.environment;
  return arguments.start(
      [=](Job& job) {
        hybridge_artifact artifact = {};
        hybridge_status status = call().artifact_open(folder.c_str(), &artifact);
        if (status != HYBRIDGE_OK) return status;
        found->artifact = artifact.id;
        status = call().artifact_model(artifact, &found->model);
        if (status == HYBRIDGE_OK) status = found->describe(options);
        if (status == HYBRIDGE_OK) status = call().sampling_init(&found->sampling, sizeof found->sampling);
        if (status == HYBRIDGE_OK) status = call().artifact_sampling(artifact, &found->sampling);
        if (status == HYBRIDGE_OK) {
          call().artifact_tokenizer(artifact, &found->tokenizer);  // {0} without one
          environment->opened({Kind::artifact, artifact.id});
        } else {
          job.words = call().failure();
          call().artifact_close(artifact);
        }
        return status;
      },
      [=](napi_env env) { return found->of(Maker(env)); }
  );
}

napi_value validate(const Arguments& arguments) {
  const hybridge_model model = {arguments.handle(0)};
  const std::string path = arguments[1].text();
  auto found = std::make_shared<hybridge_validation>();
  return arguments.start(
      [=](Job&) { return call().validate(model, path.c_str(), found.get()); },
      [=](napi_env env) {
        const Maker make(env);
        return make.object({
            {"steps", make.number(static_cast<double>(found->steps))},
            {"worst", make.number(found->worst)},
            {"tolerance", make.number(found->tolerance)},
            {"sameBits", make.number(found->same_bits)},
        });
      }
  );
}

napi_value open_model(const Arguments& arguments) {
  const std::string path = arguments[0].text();
  const OpenOptions options(arguments);
  auto found = std::make_shared<Described>();
  Environment* environment = arguments.environment;
  return arguments.start(
      [=](Job& job) {
        hybridge_status status = call().model_open(path.c_str(), &found->model);
        if (status != HYBRIDGE_OK) return status;
        status = found->describe(options);
        if (status == HYBRIDGE_OK) {
          environment->opened({Kind::model, found->model.id});
        } else {
          job.words = call().failure();
          call().model_close(found->model);
        }
        return status;
      },
      [=](napi_env env) { return found->of(Maker(env)); }
  );
}

// ---- Pictures ----

// Opens a picture of RGB, or of RGBA without its alpha.
napi_value open_picture(const Arguments& arguments) {
  const hybridge_model model = {arguments.handle(0)};
  size_t size = 0;
  const uint8_t* pixels = arguments[1].bytes(size);
  const auto width = static_cast<size_t>(arguments[2].number()), height = static_cast<size_t>(arguments[3].number());
  const bool has_alpha = arguments[4].flag();
  auto picture = std::make_shared<hybridge_picture>();
  auto ids = std::make_shared<std::vector<int64_t>>();
  Environment* environment = arguments.environment;
  std::unique_ptr<Job> job = arguments.job(
      [=](Job&) {
        std::vector<uint8_t> opaque;
        if (has_alpha) {
          opaque.reserve(width * height * 3);
          for (size_t i = 0; i < width * height * 4; i += 4) opaque.insert(opaque.end(), pixels + i, pixels + i + 3);
        }
        hybridge_status status = call().picture_open(
            model, has_alpha ? opaque.data() : pixels, width, height, picture.get()
        );
        if (status != HYBRIDGE_OK) return status;
        environment->opened({Kind::picture, picture->id});
        size_t count = 0;
        status = call().picture_ids(*picture, nullptr, 0, &count, nullptr);
        ids->resize(count);
        return status == HYBRIDGE_OK ? call().picture_ids(*picture, ids->data(), count, &count, nullptr) : status;
      },
      [=](napi_env env) {
        const Maker make(env);
        return make.object({{"id", make.id(picture->id)}, {"ids", make.ids(*ids)}});
      }
  );
  job->memory = arguments.keep(1);
  return arguments.environment->start(std::move(job));
}

// ---- Sessions ----

napi_value open_session(const Arguments& arguments) {
  const hybridge_model model = {arguments.handle(0)};
  return open(arguments, Kind::session, [=](uint64_t& id) {
    hybridge_session session = {};
    const hybridge_status status = call().session_open(model, &session);
    id = session.id;
    return status;
  });
}

// The numbers that `copy` gets of a session.
template <typename Copy>
napi_value session_numbers(const Arguments& arguments, Copy copy) {
  const hybridge_session session = {arguments.handle(0)};
  auto found = std::make_shared<std::vector<int64_t>>();
  return arguments.start(
      [=](Job&) {
        size_t count = 0;
        const hybridge_status status = copy(session, nullptr, 0, &count);
        found->resize(count);
        return status == HYBRIDGE_OK ? copy(session, found->data(), count, &count) : status;
      },
      [=](napi_env env) { return Maker(env).ids(*found); }
  );
}

napi_value session_tokens(const Arguments& arguments) {
  return session_numbers(arguments, [](auto... to) { return call().tokens(to...); });
}

napi_value delegated(const Arguments& arguments) {
  return session_numbers(arguments, [](auto... to) { return call().delegated(to...); });
}

napi_value prompts_read(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  auto read = std::make_shared<hybridge_prompts_read>();
  auto reason = std::make_shared<std::string>();
  return arguments.start(
      [=](Job&) {
        size_t size = 0;
        const hybridge_status status = call().session_prompts(session, read.get(), nullptr, 0, &size);
        reason->resize(size);
        return status == HYBRIDGE_OK ? call().session_prompts(session, read.get(), reason->data(), size, &size)
                                     : status;
      },
      [=](napi_env env) {
        const Maker make(env);
        const auto count = [&](int64_t number) { return make.number(static_cast<double>(number)); };
        return make.object({
            {"delegateInUse", count(read->delegate_in_use)},
            {"delegateTokens", count(read->delegate_tokens)},
            {"cpuTokens", count(read->cpu_tokens)},
            {"reason", make.text(*reason)},
        });
      }
  );
}

// Starts a job whose logits go into the array at argument 2, which may be missing; its length is the caller's to get
// right.
template <typename Run>
napi_value start_with_logits(const Arguments& arguments, Run run) {
  size_t count = 0;
  float* logits = arguments[2].given() ? arguments[2].floats(count) : nullptr;
  std::unique_ptr<Job> job = arguments.job([=](Job&) { return run(logits); });
  job->memory = arguments.keep(2);
  return arguments.environment->start(std::move(job));
}

napi_value prefill(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  return start_with_logits(arguments, [session, ids = arguments[1].ids()](float* logits) {
    return call().prefill(session, ids.data(), ids.size(), logits);
  });
}

napi_value decode(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  return start_with_logits(arguments, [session, token = arguments[1].token()](float* logits) {
    return call().decode(session, token, logits);
  });
}

napi_value verify(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  return start_with_logits(arguments, [session, ids = arguments[1].ids()](float* logits) {
    return call().verify(session, ids.data(), ids.size(), logits);
  });
}

napi_value commit(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  const int64_t count = arguments[1].number();
  return arguments.start([=](Job&) { return call().commit(session, count); });
}

napi_value snapshot(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  const int64_t slot = arguments[1].number();
  return arguments.start([=](Job&) { return call().snapshot(session, slot); });
}

napi_value restore(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  const int64_t slot = arguments[1].number();
  return arguments.start([=](Job&) { return call().restore(session, slot); });
}

napi_value reset(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  return arguments.start([=](Job&) { return call().reset(session); });
}

napi_value save(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  const std::string path = arguments[1].text(), note = arguments[2].text();
  return arguments.start([=](Job&) { return call().save(session, path.c_str(), note.c_str()); });
}

napi_value load_state(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  const std::string path = arguments[1].text();
  return arguments.start([=](Job&) { return call().load(session, path.c_str()); });
}

napi_value make_checkpoint(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  auto made = std::make_shared<hybridge_checkpoint>();
  auto kept = std::make_shared<hybridge_kept>();
  Environment* environment = arguments.environment;
  return arguments.start(
      [=](Job&) {
        const hybridge_status status = call().checkpoint_make(session, made.get());
        if (status != HYBRIDGE_OK) return status;
        environment->opened({Kind::checkpoint, made->id});
        return call().checkpoint_info(*made, kept.get());
      },
      [=](napi_env env) {
        const Maker make(env);
        const auto count = [&](size_t number) { return make.number(static_cast<double>(number)); };
        return make.object({
            {"id", make.id(made->id)},
            {"length", count(kept->length)},
            {"bytes", count(kept->bytes)},
            {"sharedBytes", count(kept->shared_bytes)},
        });
      }
  );
}

napi_value resume(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  const hybridge_checkpoint checkpoint = {arguments.handle(1)};
  return arguments.start([=](Job&) { return call().resume(session, checkpoint); });
}

napi_value open_cache(const Arguments& arguments) {
  const hybridge_model model = {arguments.handle(0)};
  const auto bytes = static_cast<size_t>(arguments[1].number());
  return open(arguments, Kind::cache, [=](uint64_t& id) {
    hybridge_cache cache = {};
    const hybridge_status status = call().cache_open(model, bytes, &cache);
    id = cache.id;
    return status;
  });
}

napi_value bring_to(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  const hybridge_cache cache = {arguments.handle(1)};
  auto cached = std::make_shared<size_t>(0);
  return arguments.start(
      [session, cache, cached, ids = arguments[2].ids()](Job&) {
        return call().bring_to(session, cache, ids.data(), ids.size(), cached.get());
      },
      [=](napi_env env) { return Maker(env).number(static_cast<double>(*cached)); }
  );
}

// session, prompt, options, called with each token
napi_value generate(const Arguments& arguments) {
  const hybridge_session session = {arguments.handle(0)};
  auto options = std::make_shared<GenerationOptions>(arguments[2]);
  auto generated = std::make_shared<hybridge_generated>();
  std::unique_ptr<Job> job = arguments.job(
      [session, options, generated, prompt = arguments[1].ids()](Job& job) {
        return call().generate(session, prompt.data(), prompt.size(), options->get(), on_token, &job, generated.get());
      },
      [=](napi_env env) { return generated_of(Maker(env), *generated); }
  );
  job->generates = {Kind::session, session.id};
  job->callback = arguments.keep(3);
  return arguments.environment->start(std::move(job));
}

// ---- Tokenizers and grammars ----

napi_value open_tokenizer(const Arguments& arguments) {
  const std::string path = arguments[0].text();
  return open(arguments, Kind::tokenizer, [=](uint64_t& id) {
    hybridge_tokenizer tokenizer = {};
    const hybridge_status status = call().tokenizer_open(path.c_str(), &tokenizer);
    id = tokenizer.id;
    return status;
  });
}

napi_value encode(const Arguments& arguments) {
  const hybridge_tokenizer tokenizer = {arguments.handle(0)};
  const auto reading = static_cast<int>(arguments[2].number());
  auto ids = std::make_shared<std::vector<int64_t>>();
  return arguments.start(
      [tokenizer, reading, ids, text = arguments[1].text()](Job&) {
        size_t count = 0;
        ids->resize(text.size() + 16);  // enough as a rule
        hybridge_status status = HYBRIDGE_OK;
        for (int tries = 0; tries < 2 && status == HYBRIDGE_OK; ++tries) {
          status = call().tokenizer_encode(
              tokenizer, text.data(), text.size(), reading, nullptr, 0, ids->data(), nullptr, ids->size(), &count
          );
          const bool fits = count <= ids->size();
          ids->resize(count);
          if (fits) break;
        }
        return status;
      },
      [=](napi_env env) { return Maker(env).ids(*ids); }
  );
}

napi_value decode_text(const Arguments& arguments) {
  const hybridge_tokenizer tokenizer = {arguments.handle(0)};
  const int skip_special = arguments[2].flag() ? 1 : 0;
  auto text = std::make_shared<std::string>();
  return arguments.start(
      [tokenizer, skip_special, text, ids = arguments[1].ids()](Job&) {
        size_t size = 0;
        const hybridge_status status = call().tokenizer_decode(
            tokenizer, ids.data(), ids.size(), skip_special, nullptr, 0, &size
        );
        text->resize(size);
        return status == HYBRIDGE_OK
                   ? call().tokenizer_decode(tokenizer, ids.data(), ids.size(), skip_special, text->data(), size, &size)
                   : status;
      },
      [=](napi_env env) { return Maker(env).text(*text); }
  );
}

napi_value open_text(const Arguments& arguments) {
  const hybridge_tokenizer tokenizer = {arguments.handle(0)};
  const int skip_special = arguments[1].flag() ? 1 : 0;
  return open(arguments, Kind::text, [=](uint64_t& id) {
    hybridge_text text = {};
    const hybridge_status status = call().text_open(tokenizer, skip_special, &text);
    id = text.id;
    return status;
  });
}

// Gives what a token adds to a text, or what it holds back at its end: at once, as it takes microseconds.
napi_value push_text(const Arguments& arguments) {
  const hybridge_text text = {arguments.handle(0)};
  const char* piece = nullptr;
  size_t size = 0;
  const hybridge_status status = arguments[1].given() ? call().text_push(text, arguments[1].token(), &piece, &size)
                                                      : call().text_finish(text, &piece, &size);
  if (status == HYBRIDGE_OK) return arguments.make.text({piece, size});
  check(arguments.env, napi_throw(arguments.env, arguments.make.error(status, call().failure())));
  return nullptr;
}

napi_value open_grammar(const Arguments& arguments) {
  const hybridge_tokenizer tokenizer = {arguments.handle(0)};
  const auto kind = static_cast<hybridge_grammar_kind>(arguments[1].number());
  const std::string text = arguments[2].text();
  return open(arguments, Kind::grammar, [=](uint64_t& id) {
    hybridge_grammar grammar = {};
    const hybridge_status status = call().grammar_open(tokenizer, kind, text.data(), text.size(), &grammar);
    id = grammar.id;
    return status;
  });
}

// ---- Chats ----

// A text that may be missing.
std::shared_ptr<std::string> text_or_none(const Value& value) {
  return value.given() ? std::make_shared<std::string>(value.text()) : nullptr;
}

const char* pointer(const std::shared_ptr<std::string>& text) { return text == nullptr ? nullptr : text->c_str(); }

napi_value open_chat(const Arguments& arguments) {
  const hybridge_artifact artifact = {arguments.handle(0)};
  const Value wanted = arguments[1];
  hybridge_chat_options options;
  call().chat_options_init(&options, sizeof options);
  options.thinking = static_cast<hybridge_thinking>(wanted["thinking"].number());
  if (const Value bytes = wanted["checkpointBytes"]; bytes.given()) {
    options.checkpoint_bytes = static_cast<size_t>(bytes.number());
  }
  options.cache = {wanted["cache"].id()};
  const auto system = text_or_none(wanted["system"]), variables = text_or_none(wanted["variables"]),
             tools = text_or_none(wanted["tools"]), now = text_or_none(wanted["now"]);
  return open(arguments, Kind::chat, [=](uint64_t& id) {
    hybridge_chat_options complete = options;
    complete.system = pointer(system);
    complete.variables = pointer(variables);
    complete.tools = pointer(tools);
    complete.now = pointer(now);
    hybridge_chat chat = {};
    const hybridge_status status = call().chat_open(artifact, &complete, &chat);
    id = chat.id;
    return status;
  });
}

// Starts an answer. Arguments: the chat, `ask`'s own, options of the generation, called with each piece.
template <typename Ask>
napi_value start_answer(const Arguments& arguments, Ask ask) {
  const hybridge_chat chat = {arguments.handle(0)};
  auto options = std::make_shared<GenerationOptions>(arguments[2]);
  auto answer = std::make_shared<hybridge_answer>();
  std::unique_ptr<Job> job = arguments.job(
      [=](Job& job) { return ask(chat, *options, &job, answer.get()); },
      [=](napi_env env) { return answer_of(Maker(env), *answer); }
  );
  job->generates = {Kind::chat, chat.id};
  job->callback = arguments.keep(3);
  return arguments.environment->start(std::move(job));
}

napi_value send(const Arguments& arguments) {
  std::vector<hybridge_picture> pictures;
  for (const Value& each : arguments[1]["pictures"].list()) pictures.push_back({each.id()});
  const std::string message = arguments[1]["text"].text();
  return start_answer(
      arguments, [=](hybridge_chat chat, const GenerationOptions& options, Job* job, hybridge_answer* answer) {
        const hybridge_status status = call().chat_show(chat, pictures.data(), pictures.size());
        const auto& stops = options.stops();
        return status != HYBRIDGE_OK ? status
                                     : call().chat_send(
                                           chat, message.data(), message.size(), options.get(), stops.data(),
                                           stops.size(), on_piece, job, answer
                                       );
      }
  );
}

napi_value give_results(const Arguments& arguments) {
  std::vector<std::string> texts;
  for (const Value& each : arguments[1].list()) texts.push_back(each.text());
  return start_answer(
      arguments, [=](hybridge_chat chat, const GenerationOptions& options, Job* job, hybridge_answer* answer) {
        std::vector<hybridge_result> results;
        for (const std::string& each : texts) results.push_back({each.data(), each.size()});
        const auto& stops = options.stops();
        return call().chat_give_results(
            chat, results.data(), results.size(), options.get(), stops.data(), stops.size(), on_piece, job, answer
        );
      }
  );
}

napi_value retry(const Arguments& arguments) {
  return start_answer(
      arguments, [](hybridge_chat chat, const GenerationOptions& options, Job* job, hybridge_answer* answer) {
        const auto& stops = options.stops();
        return call().chat_retry(chat, options.get(), stops.data(), stops.size(), on_piece, job, answer);
      }
  );
}

napi_value continue_answer(const Arguments& arguments) {
  return start_answer(
      arguments, [](hybridge_chat chat, const GenerationOptions& options, Job* job, hybridge_answer* answer) {
        const auto& stops = options.stops();
        return call().chat_continue(chat, options.get(), stops.data(), stops.size(), on_piece, job, answer);
      }
  );
}

napi_value set_system(const Arguments& arguments) {
  const hybridge_chat chat = {arguments.handle(0)};
  const std::string text = arguments[1].text();
  return arguments.start([=](Job&) { return call().chat_set_system(chat, text.data(), text.size()); });
}

napi_value undo(const Arguments& arguments) {
  const hybridge_chat chat = {arguments.handle(0)};
  return arguments.start([=](Job&) { return call().chat_undo(chat); });
}

napi_value reset_chat(const Arguments& arguments) {
  const hybridge_chat chat = {arguments.handle(0)};
  return arguments.start([=](Job&) { return call().chat_reset(chat); });
}

napi_value save_chat(const Arguments& arguments) {
  const hybridge_chat chat = {arguments.handle(0)};
  const std::string path = arguments[1].text();
  return arguments.start([=](Job&) { return call().chat_save(chat, path.c_str()); });
}

napi_value load_chat(const Arguments& arguments) {
  const hybridge_chat chat = {arguments.handle(0)};
  const std::string path = arguments[1].text();
  return arguments.start([=](Job&) { return call().chat_load(chat, path.c_str()); });
}

struct Message {
  explicit Message(const hybridge_message& from)
      : role(from.role),
        content(from.content, from.content_size),
        reasoning(from.reasoning, from.reasoning_size),
        pictures(from.pictures),
        calls(calls_of(from.calls, from.call_count)) {}

  std::string role, content, reasoning;
  size_t pictures;
  std::vector<Call> calls;
};

napi_value chat_messages(const Arguments& arguments) {
  const hybridge_chat chat = {arguments.handle(0)};
  auto copies = std::make_shared<std::vector<Message>>();
  auto room = std::make_shared<int64_t>(0);
  return arguments.start(
      [=](Job&) {
        size_t count = 0;
        hybridge_status status = call().chat_messages(chat, nullptr, 0, &count, room.get());
        std::vector<hybridge_message> messages(count);
        if (status == HYBRIDGE_OK) status = call().chat_messages(chat, messages.data(), count, &count, room.get());
        if (status == HYBRIDGE_OK) {
          for (const hybridge_message& each : messages) copies->emplace_back(each);
        }
        return status;
      },
      [=](napi_env env) {
        const Maker make(env);
        std::vector<napi_value> values;
        for (const Message& each : *copies) {
          values.push_back(make.object({
              {"role", make.text(each.role)},
              {"content", make.text(each.content)},
              {"reasoning", make.text(each.reasoning)},
              {"pictures", make.number(static_cast<double>(each.pictures))},
              {"calls", calls_of(make, each.calls)},
          }));
        }
        return make.object({{"messages", make.list(values)}, {"room", make.number(static_cast<double>(*room))}});
      }
  );
}

// ---- The module ----

template <napi_value (*body)(const Arguments&)>
napi_value guarded(napi_env env, napi_callback_info info) {
  try {
    return body(Arguments(env, info));
  } catch (const Pending&) {
  } catch (const std::bad_alloc&) {
    napi_throw_error(env, nullptr, "out of memory");
  } catch (const std::exception& error) {
    napi_throw_error(env, nullptr, error.what());
  }
  return nullptr;
}

napi_value initialize(napi_env env, napi_value exports) {
  const auto function = [env](const char* name, napi_callback body) {
    return napi_property_descriptor{name, nullptr, body, nullptr, nullptr, nullptr, napi_enumerable, nullptr};
  };
  const napi_property_descriptor functions[] = {
      function("load", guarded<load>),
      function("setThreads", guarded<set_threads>),
      function("threads", guarded<threads>),
      function("has", guarded<has>),
      function("close", guarded<close_handle>),
      function("cancel", guarded<cancel>),
      function("stop", guarded<stop>),
      function("openArtifact", guarded<open_artifact>),
      function("openModel", guarded<open_model>),
      function("validate", guarded<validate>),
      function("openPicture", guarded<open_picture>),
      function("openSession", guarded<open_session>),
      function("tokens", guarded<session_tokens>),
      function("delegated", guarded<delegated>),
      function("promptsRead", guarded<prompts_read>),
      function("prefill", guarded<prefill>),
      function("decode", guarded<decode>),
      function("verify", guarded<verify>),
      function("commit", guarded<commit>),
      function("snapshot", guarded<snapshot>),
      function("restore", guarded<restore>),
      function("reset", guarded<reset>),
      function("save", guarded<save>),
      function("loadState", guarded<load_state>),
      function("makeCheckpoint", guarded<make_checkpoint>),
      function("resume", guarded<resume>),
      function("openCache", guarded<open_cache>),
      function("bringTo", guarded<bring_to>),
      function("generate", guarded<generate>),
      function("openTokenizer", guarded<open_tokenizer>),
      function("encode", guarded<encode>),
      function("decodeText", guarded<decode_text>),
      function("openText", guarded<open_text>),
      function("pushText", guarded<push_text>),
      function("openGrammar", guarded<open_grammar>),
      function("openChat", guarded<open_chat>),
      function("send", guarded<send>),
      function("giveResults", guarded<give_results>),
      function("retry", guarded<retry>),
      function("continueAnswer", guarded<continue_answer>),
      function("setSystem", guarded<set_system>),
      function("undo", guarded<undo>),
      function("resetChat", guarded<reset_chat>),
      function("saveChat", guarded<save_chat>),
      function("loadChat", guarded<load_chat>),
      function("messages", guarded<chat_messages>),
  };
  try {
    auto environment = std::make_unique<Environment>(env);
    check(env, napi_define_properties(env, exports, std::size(functions), functions));
    check(env, napi_set_instance_data(env, environment.get(), nullptr, nullptr));
    // After the one of its way to JavaScript, so that it runs before that one.
    check(
        env,
        napi_add_env_cleanup_hook(env, [](void* each) { delete static_cast<Environment*>(each); }, environment.get())
    );
    environment.release();
  } catch (const Pending&) {
    return nullptr;
  }
  return exports;
}

}  // namespace

}  // namespace hybridge_node

NAPI_MODULE_INIT() { return hybridge_node::initialize(env, exports); }
