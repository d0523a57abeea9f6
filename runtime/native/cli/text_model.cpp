#include "text_model.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <new>

#include "engine/open_file.h"

#include "../text/stop_strings.h"
#include "failure.h"
#include "picture_file.h"

namespace hybridge::cli {

namespace {

constexpr double SMALLEST = 1e-6, LARGEST = 1e6;  // temperature above 0, and penalty
constexpr size_t USUAL_TOKENS = 128;              // of a text that is no answer
constexpr size_t MOST_THREADS = 1024, MOST_TOKENS = size_t(1) << 40;
constexpr size_t LARGEST_SCHEMA = size_t(1) << 20;

// Runs what a hybridge.h callback stands for; what it throws is thrown once the C functions are left.
class Caught {
 public:
  template <typename Call>
  void run(Call&& call) {
    try {
      if (error_ == nullptr) call();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  bool is_fine() const { return error_ == nullptr; }
  void rethrow() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

TokenizerHandle open_tokenizer(const ArtifactFolder& folder) {
  if (!folder.has("tokenizer.json")) {
    throw Misuse(
        folder.path() +
        " has no tokenizer.json, so text cannot be turned into tokens; export the model with its tokenizer."
    );
  }
  TokenizerHandle tokenizer;
  const std::string path = folder.file("tokenizer.json");
  const hybridge_status status = hybridge_tokenizer_open(path.c_str(), tokenizer.out());
  check(status, path + " cannot be used as a tokenizer, export the model again");
  return tokenizer;
}

std::string token_of(hybridge_tokenizer tokenizer, int64_t id) {
  size_t size = 0;
  check(hybridge_tokenizer_token(tokenizer, id, nullptr, 0, &size), "the vocabulary cannot be read");
  std::string token(size, '\0');
  check(hybridge_tokenizer_token(tokenizer, id, token.data(), token.size(), &size), "the vocabulary cannot be read");
  return token;
}

// Returns the pixels of a picture's file. Throws Failure.
DecodedPicture read_picture(const std::string& path) {
  const auto file = OpenFile::regular(path.c_str());
  if (!file.ok())
    throw Failure(path + " cannot be read: it is missing, or no regular file; give the file of a picture.");
  const auto size = static_cast<size_t>(file->status().st_size);
  if (size > MOST_PICTURE_BYTES) throw Failure(path + ": the picture's file has more than 64 MB; make it smaller.");
  try {
    std::vector<uint8_t> bytes(size);
    if (!file->read_all(bytes)) throw Failure("it cannot be read to its end; give the file of a picture.");
    return decode_picture(std::move(bytes));
  } catch (const Failure& failure) {
    throw Failure(path + ": " + failure.what());
  } catch (const std::bad_alloc&) {
    throw Failure(path + ": there is not enough memory for this picture; make it smaller.");
  }
}

}  // namespace

void declare_threads(Arguments& arguments, size_t& threads) {
  arguments.whole("--threads", "Number of threads; one for each fast core if left out.", threads, 1, MOST_THREADS);
}

void ModelOptions::declare(Arguments& arguments) {
  arguments.text("--draft", "FOLDER", "Draft with this smaller model as well, an exported artifact.", draft);
  arguments.flag("--prompt-lookup", "Draft only by prompt lookup: continue earlier matches in the text.", lookup);
  arguments.flag("--drafter", "Draft only with the artifact's own drafter.", own);
  arguments.flag("--no-speculation", "Decode plainly, without a drafter.", plain);
  arguments.whole(
      "--ctx", "Most tokens of a text, up to what the artifact holds; as many as it holds if left out.", context, 1,
      MOST_TOKENS
  );
  declare_threads(arguments, threads);
}

void TextOptions::number(
    Arguments& arguments, std::string name, std::string help, double hybridge_sampling::* field,
    std::function<bool(double)> fits, std::string expected
) {
  const auto take = [=, this](double value) {
    changes.push_back([=](hybridge_sampling& sampling) { sampling.*field = value; });
  };
  arguments.number(std::move(name), std::move(help), take, std::move(fits), std::move(expected));
}

template <typename Number>
Arguments::Take TextOptions::whole(std::string name, Number hybridge_sampling::* field) {
  return [=, this](const std::string& given) {
    Number number = 0;
    const char* end = given.data() + given.size();
    const auto [last, error] = std::from_chars(given.data(), end, number);
    if (error != std::errc() || last != end || number < 0)
      throw Misuse(name + " takes a whole number from 0 on, not '" + given + "'.");
    changes.push_back([=](hybridge_sampling& sampling) { sampling.*field = number; });
  };
}

void TextOptions::declare(Arguments& arguments) {
  using S = hybridge_sampling;
  const auto between = [](double least, double most) { return [=](double x) { return least <= x && x <= most; }; };
  const auto is_scale = between(SMALLEST, LARGEST);
  arguments.whole(
      "--max-new-tokens", "Stop after this many tokens; an answer at its end, and another text after 128, if left out.",
      max_new_tokens, 1, MOST_TOKENS
  );
  arguments.flag("--greedy", "Always take the likeliest token, whatever the model's own sampling is.", greedy);
  number(
      arguments, "--temperature", "Temperature of the sampling; 0 is greedy.", &S::temperature,
      [=](double x) { return x == 0 || is_scale(x); }, "0 (greedy) or a number from 1e-06 to 1000000"
  );
  arguments.option("--top-k", "N", "Sample from the k most probable tokens; 0 for all.", whole("--top-k", &S::top_k));
  number(
      arguments, "--top-p", "Sample from the fewest tokens whose probabilities add up to this.", &S::top_p,
      [](double x) { return 0 < x && x <= 1; }, "a number above 0 and at most 1"
  );
  number(
      arguments, "--min-p", "Drop tokens below this share of the best one's probability.", &S::min_p, between(0, 1),
      "a number from 0 to 1"
  );
  number(
      arguments, "--top-n-sigma", "Drop tokens that are this many standard deviations below the best; 0 for none.",
      &S::top_n_sigma, between(0, LARGEST), "a number from 0 to 1000000"
  );
  number(
      arguments, "--repetition-penalty", "Above 1, tokens that the text already has become less probable.",
      &S::repetition_penalty, is_scale, "a number from 1e-06 to 1000000"
  );
  number(
      arguments, "--presence-penalty", "Take this from the logit of each token that the answer already has.",
      &S::presence_penalty, between(-2, 2), "a number from -2 to 2"
  );
  number(
      arguments, "--frequency-penalty", "The same for each time that the answer has the token.", &S::frequency_penalty,
      between(-2, 2), "a number from -2 to 2"
  );
  arguments.option(
      "--repeat-last-n", "N", "Latest tokens of the text that penalties see; -1 for all.",
      [take = whole("--repeat-last-n", &S::repeat_last_n), this](const std::string& given) {
        if (given != "-1") return take(given);
        changes.push_back([](S& sampling) { sampling.repeat_last_n = -1; });
      }
  );
  number(
      arguments, "--dry-multiplier", "Make it less probable to repeat parts of the text; 0.8 is usual, 0 for none.",
      &S::dry_multiplier, between(0, 100), "a number from 0 to 100"
  );
  number(
      arguments, "--dry-base", "How much less for each further token that is repeated.", &S::dry_base, between(1, 100),
      "a number from 1 to 100"
  );
  arguments.option(
      "--dry-allowed-length", "N", "Tokens in a row that may be repeated.",
      whole("--dry-allowed-length", &S::dry_allowed_length)
  );
  arguments.option(
      "--logit-bias", "ID=X", "Add X, from -100 to 100, to the logit of a token; may be given several times.",
      [this](const std::string& given) {
        hybridge_bias bias = {};
        const char* end = given.data() + given.size();
        const auto [equals, bad_id] = std::from_chars(given.data(), end, bias.token);
        const bool has_id = bad_id == std::errc() && equals != end && *equals == '=';
        const auto [last, bad_bias] = has_id ? std::from_chars(equals + 1, end, bias.bias)
                                             : std::from_chars_result{end, std::errc::invalid_argument};
        if (bad_bias != std::errc() || last != end || !(-100 <= bias.bias && bias.bias <= 100))
          throw Misuse("--logit-bias takes a token and a number from -100 to 100, such as 42=-5, not '" + given + "'.");
        logit_bias.push_back(bias);
      }
  );
  arguments.seed("--seed", "Seed of the sampling; random if left out.", [this](uint64_t seed) {
    changes.push_back([=](S& sampling) { sampling.seed = seed, sampling.has_seed = 1; });
  });
  arguments.texts("--stop", "TEXT", "End before this text; may be given several times.", stop);
  arguments.flag(
      "--stop-after-reasoning", "Let --stop end an answer, but not the reasoning before it.", stop_after_reasoning
  );
  arguments.text(
      "--json-schema", "FILE", "A file with a JSON schema: the text is JSON that fits it, and nothing else.",
      json_schema
  );
  arguments.text("--regex", "PATTERN", "The text matches this regular expression as a whole.", regex);
}

hybridge_sampling model_sampling(const ArtifactFolder& folder) {
  hybridge_sampling sampling = hybridge_sampling_defaults();
  if (!folder.has("generation_config.json")) return sampling;
  const std::string path = folder.file("generation_config.json");
  const auto json = OpenFile::content(path.c_str(), LARGEST_SCHEMA);
  if (!json.ok()) throw Failure(path + " cannot be read; copy it again.");
  check(hybridge_sampling_read(json->data(), json->size(), &sampling), path);
  return sampling;
}

TemplateHandle open_templates(const ArtifactFolder& folder) {
  TemplateHandle templates;
  check(hybridge_template_read(folder.path().c_str(), templates.out()), "the chat template cannot be read");
  return templates;
}

std::string description(const TemplateHandle& templates) {
  size_t size = 0;
  check(hybridge_template_describe(templates, nullptr, 0, &size), "the chat template cannot be read");
  std::string described(size, '\0');
  check(hybridge_template_describe(templates, described.data(), size, &size), "the chat template cannot be read");
  return described;
}

TemplateHandle open_templates_of_chat(const ArtifactFolder& folder) {
  TemplateHandle templates = open_templates(folder);
  const text::JsonDocument described(description(templates));
  const std::string warning(described.root("the chat template")["warning"].string());
  if (!warning.empty()) std::fprintf(stderr, "Warning: %s\n", warning.c_str());
  return templates;
}

ModelHandle open_model(const ArtifactFolder& folder) {
  ModelHandle model;
  const std::string path = folder.file("model.pte");
  const hybridge_status status = hybridge_model_open(path.c_str(), model.out());
  if (status == HYBRIDGE_MISSING_OPERATOR) {
    check(status, path + " needs what hybridge-cli does not have, export the model with --kernels hybridge");
  }
  check(status, path + " does not load");
  if (const text::Json from = folder.manifest()["options"]["delegate_from"]) {
    const auto tokens = static_cast<int64_t>(from.integer(MOST_TOKENS));
    check(hybridge_model_delegate_from(model, tokens), folder.path());
  }
  return model;
}

TextModel::TextModel(const ArtifactFolder& folder, const ModelOptions& options) {
  if (options.draft.has_value() + options.lookup + options.own + options.plain > 1) {
    throw Misuse("--draft, --prompt-lookup, --drafter and --no-speculation exclude each other; give one of them.");
  }
  tokenizer_ = open_tokenizer(folder);
  check(hybridge_set_threads(options.threads), "the threads do not start");
  model_ = open_model(folder);
  if (options.context > 0) {
    const auto status = hybridge_model_limit(model_, static_cast<int64_t>(options.context));
    if (status != HYBRIDGE_OK) throw Misuse("--ctx: " + std::string(hybridge_failure()) + ".");
  }
  check(hybridge_model_strict_reuse(model_, options.strict_reuse), folder.path());
  check(hybridge_model_info(model_, &info_), folder.path());
  size_t count = 0;
  check(hybridge_model_eos_ids(model_, nullptr, 0, &count), folder.path());
  eos_ids_.resize(count);
  check(hybridge_model_eos_ids(model_, eos_ids_.data(), count, &count), folder.path());
  choose_drafter(folder, options);
  sampling_ = model_sampling(folder);
  const text::Json manifest = folder.manifest();
  if (const text::Json pictures = manifest["pictures"]) {
    const std::string description = pictures.written();
    const auto status = hybridge_model_pictures(model_, tokenizer_, description.data(), description.size());
    check(status, folder.path() + " takes pictures in a way that is not known here");
  }
  check(hybridge_session_open(model_, session_.out()), folder.path() + " has no room for a session");
}

void TextModel::choose_drafter(const ArtifactFolder& folder, const ModelOptions& options) {
  if (!options.plain && info_.verify_len >= 2)
    drafter_ = HYBRIDGE_AUTO_DRAFTER;  // useless where one token is verified at a time
  if (options.draft) {
    const ArtifactFolder draft(*options.draft);
    draft_ = open_model(draft);
    hybridge_info small;
    check(hybridge_model_info(draft_, &small), draft.path());
    if (small.vocab_size != info_.vocab_size) {
      throw Failure(
          "the draft model has " + std::to_string(small.vocab_size) + " tokens and the target " +
          std::to_string(info_.vocab_size) + "; use a draft model that was trained with the target's tokenizer."
      );
    }
    if (small.snapshot_slots == 0) {
      throw Failure(
          "the draft model's artifact has no snapshot slots to go back by; export it with --snapshot-slots 1."
      );
    }
    const auto hash = [](const ArtifactFolder& of) {
      return of.manifest()["files"]["tokenizer.json"]["sha256"].string_or("");
    };
    if (draft.has("tokenizer.json") && hash(draft) != hash(folder)) check_vocabulary(draft);
  } else if (options.own) {
    if (info_.draft_len == 0) {
      throw Failure(
          folder.path() +
          " has no drafter of its own; export the model with --mtp or --drafter, or leave --drafter out."
      );
    }
    drafter_ = HYBRIDGE_OWN_DRAFTER;
  } else if (options.lookup) {
    drafter_ = HYBRIDGE_PROMPT_LOOKUP;
  }
}

void TextModel::check_vocabulary(const ArtifactFolder& draft) const {
  const TokenizerHandle other = open_tokenizer(draft);
  hybridge_vocabulary mine, small;
  check(hybridge_tokenizer_info(tokenizer_, &mine), "the vocabulary cannot be read");
  check(hybridge_tokenizer_info(other, &small), "the vocabulary cannot be read");
  for (size_t id = 0; id < std::max(mine.vocab_size, small.vocab_size); id++) {
    const std::string token = token_of(tokenizer_, static_cast<int64_t>(id));
    const std::string there = token_of(other, static_cast<int64_t>(id));
    if (token != there) {
      throw Failure(
          "the draft model's tokenizer is another one: token " + std::to_string(id) + " is '" + there +
          "' there and '" + token + "' in the target; use a draft model that was trained with the target's tokenizer."
      );
    }
  }
}

PictureHandle TextModel::picture(const std::string& path) const {
  if (info_.picture_unit == 0) throw Failure("this model takes no pictures: its artifact has the text model alone.");
  const DecodedPicture decoded = read_picture(path);
  PictureHandle picture;
  const auto status = hybridge_picture_open(model_, decoded.rgb.data(), decoded.width, decoded.height, picture.out());
  check(status, path);
  return picture;
}

std::vector<int64_t> TextModel::encode(std::string_view text) const {
  size_t count = 0;
  // No tokenizer gives more tokens than a text has bytes, but for those around it, so that the second call is rare.
  std::vector<int64_t> tokens(text.size() + 8);
  const auto read = [&] {
    check(
        hybridge_tokenizer_encode(
            tokenizer_, text.data(), text.size(), HYBRIDGE_AROUND, nullptr, 0, tokens.data(), nullptr, tokens.size(),
            &count
        ),
        "the prompt cannot be turned into tokens"
    );
  };
  read();
  if (count > tokens.size()) {
    tokens.resize(count);
    read();
  }
  tokens.resize(count);
  return tokens;
}

GrammarHandle TextModel::grammar(const TextOptions& options) const {
  GrammarHandle grammar;
  if (options.json_schema && options.regex)
    throw Misuse("--json-schema and --regex exclude each other; give one of them.");
  hybridge_status status = HYBRIDGE_OK;
  if (options.json_schema) {
    const std::string& path = *options.json_schema;
    const auto schema = OpenFile::content(path.c_str(), LARGEST_SCHEMA);
    if (!schema.ok()) throw Misuse(path + " cannot be read as a file of at most 1 MB; give one with a JSON schema.");
    const size_t begin = schema->find_first_not_of(" \t\r\n");
    if (begin == schema->npos || (*schema)[begin] != '{') {
      throw Misuse(path + " is no JSON schema, which is an object such as {\"type\": \"object\"}.");
    }
    status = hybridge_grammar_open(tokenizer_, HYBRIDGE_JSON_SCHEMA, schema->data(), schema->size(), grammar.out());
  } else if (options.regex) {
    status = hybridge_grammar_open(
        tokenizer_, HYBRIDGE_REGEX, options.regex->data(), options.regex->size(), grammar.out()
    );
  }
  if (status == HYBRIDGE_INVALID_GRAMMAR) throw Misuse(std::string(hybridge_failure()) + ".");
  check(status, "the grammar cannot be read");
  return grammar;
}

hybridge_sampling TextModel::sampling(const TextOptions& options) {
  hybridge_sampling sampling = options.greedy ? hybridge_sampling_defaults() : sampling_;
  for (const auto& change : options.changes) change(sampling);
  sampling.logit_bias = options.logit_bias.data();
  sampling.bias_count = options.logit_bias.size();
  if (sampling.dry_multiplier == 0) return sampling;
  size_t count = 0;
  hybridge_vocabulary vocabulary = {};
  check(hybridge_tokenizer_info(tokenizer_, &vocabulary), "the vocabulary cannot be read");
  dry_breakers_.resize(vocabulary.vocab_size);
  check(
      hybridge_tokenizer_dry_breakers(tokenizer_, dry_breakers_.data(), dry_breakers_.size(), &count),
      "the vocabulary cannot be read"
  );
  dry_breakers_.resize(count);
  sampling.dry_breakers = dry_breakers_.data();
  sampling.dry_breaker_count = dry_breakers_.size();
  return sampling;
}

hybridge_generation TextModel::generation(const TextOptions& options, const hybridge_sampling& sampling) const {
  if (std::ranges::find(options.stop, "") != options.stop.end()) {
    throw Misuse("a stop string is empty; give at least one character.");
  }
  hybridge_generation generation = hybridge_generation_defaults();
  generation.max_new_tokens = options.max_new_tokens;
  generation.drafter = drafter_;
  generation.sampling = &sampling;
  generation.stop_after_reasoning = options.stop_after_reasoning;
  generation.draft = draft_;
  return generation;
}

GeneratedText TextModel::generate(
    const std::vector<int64_t>& prompt, const TextOptions& options,
    const std::function<void(std::string_view piece)>& show
) {
  const hybridge_sampling sampling = this->sampling(options);
  const GrammarHandle grammar = this->grammar(options);
  hybridge_generation generation = this->generation(options, sampling);
  generation.grammar = grammar;
  if (options.max_new_tokens == SIZE_MAX) generation.max_new_tokens = USUAL_TOKENS;
  if (prompt.empty()) throw Misuse("the prompt is empty; give at least one character.");
  for (const int64_t token : prompt) {
    if (token >= info_.vocab_size) {
      throw Failure(
          "the tokenizer gives token " + std::to_string(token) + ", but the model has " +
          std::to_string(info_.vocab_size) + "; the tokenizer.json is of another model. Export the model again."
      );
    }
  }
  if (static_cast<int64_t>(prompt.size()) > info_.max_seq_len) {
    throw Failure(
        "the prompt has " + std::to_string(prompt.size()) + " tokens, and the context has " +
        std::to_string(info_.max_seq_len) +
        "; give a shorter one, a larger --ctx, or export with a larger --max-seq-len."
    );
  }
  struct Run {
    const TextModel* model;
    text::StopStrings stop;
    TextHandle text;
    const std::function<void(std::string_view)>* show;
    Caught caught = {};
    bool ended = false;

    void push(int64_t token) {
      if (std::ranges::find(model->eos_ids_, token) != model->eos_ids_.end()) {
        ended = true;
        (*show)("");
        return;
      }
      const char* piece;
      size_t size;
      check(hybridge_text_push(text, token, &piece, &size), "a token cannot be turned into text");
      (*show)(stop.push({piece, size}));
      ended = stop.is_complete();
    }
  } run{.model = this, .stop = text::StopStrings(options.stop), .text = {}, .show = &show};
  check(hybridge_text_open(tokenizer_, 1, run.text.out()), "the text cannot begin");

  const auto on_token = [](int64_t token, void* user) {
    Run& now = *static_cast<Run*>(user);
    now.caught.run([&] { now.push(token); });
    return static_cast<int>(now.caught.is_fine() && !now.ended);
  };
  GeneratedText done = {.counts = {}, .prompt_tokens = prompt.size(), .ended = false};
  const hybridge_status status = hybridge_generate(
      session_, prompt.data(), prompt.size(), &generation, on_token, &run, &done.counts
  );
  run.caught.rethrow();
  check(status, "the text cannot be continued");
  const char* rest;
  size_t size;
  check(hybridge_text_finish(run.text, &rest, &size), "the text cannot be ended");
  show(run.stop.push({rest, size}) + run.stop.finish());
  done.ended = run.ended;
  return done;
}

GeneratedText TextModel::answer(
    hybridge_chat chat, const std::string& message, const std::vector<PictureHandle>& pictures,
    const TextOptions& options, hybridge_on_piece show, void* shown
) {
  const hybridge_sampling sampling = this->sampling(options);
  const GrammarHandle grammar = this->grammar(options);
  hybridge_generation generation = this->generation(options, sampling);
  generation.grammar = grammar;
  const std::vector<hybridge_picture> handles(pictures.begin(), pictures.end());
  std::vector<const char*> stops;
  for (const std::string& each : options.stop) stops.push_back(each.c_str());
  check(hybridge_chat_show(chat, handles.data(), handles.size()), "the pictures cannot be shown");
  hybridge_answer answer = {};
  const auto status = hybridge_chat_send(
      chat, message.data(), message.size(), &generation, stops.data(), stops.size(), show, shown, &answer
  );
  check(status, "there is no answer");
  return {answer.generated, answer.prompt_tokens, answer.ending != HYBRIDGE_ENDED_BY_LENGTH};
}

}  // namespace hybridge::cli
