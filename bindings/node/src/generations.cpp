#include "generations.h"

#include <utility>

#include "library.h"

namespace hybridge_node {

namespace {

void on_read(size_t, void* user) {
  auto* job = static_cast<Job*>(user);
  if (job->cancelled) job->cancel();  // before the library knew of the generation
}

// Options of a sampling that are real numbers.
constexpr std::pair<const char*, double hybridge_sampling::*> REAL_OPTIONS[] = {
    {"temperature", &hybridge_sampling::temperature},
    {"topP", &hybridge_sampling::top_p},
    {"minP", &hybridge_sampling::min_p},
    {"topNSigma", &hybridge_sampling::top_n_sigma},
    {"repetitionPenalty", &hybridge_sampling::repetition_penalty},
    {"presencePenalty", &hybridge_sampling::presence_penalty},
    {"frequencyPenalty", &hybridge_sampling::frequency_penalty},
    {"dryMultiplier", &hybridge_sampling::dry_multiplier},
    {"dryBase", &hybridge_sampling::dry_base},
};

// Calls the job's function of JavaScript, with what `arguments` makes.
template <typename Arguments>
void call_back(Job& job, Arguments arguments) {
  job.post([arguments = std::move(arguments)](napi_env env, Job& job) {
    const Maker make(env);
    napi_value callback, result;
    check(env, napi_get_reference_value(env, job.callback, &callback));
    const std::vector<napi_value> values = arguments(make);
    check(env, napi_call_function(env, make.undefined(), callback, values.size(), values.data(), &result));
  });
}

}  // namespace

GenerationOptions::GenerationOptions(const Value& options) {
  library()->generation_init(&options_, sizeof options_);
  library()->sampling_init(&sampling_, sizeof sampling_);
  options_.max_new_tokens = static_cast<size_t>(options["maxNewTokens"].number());
  options_.block_length = static_cast<size_t>(options["blockLength"].number());
  options_.drafter = static_cast<hybridge_drafter>(options["drafter"].number());
  options_.draft = {options["draft"].id()};
  options_.grammar = {options["grammar"].id()};
  if (const Value choice = options["toolChoice"]; choice.given()) {
    tool_choice_ = choice.text();
    options_.tool_choice = tool_choice_.c_str();
  }
  for (const Value& each : options["stop"].list()) stops_.push_back(each.text());
  for (const std::string& each : stops_) stop_pointers_.push_back(each.c_str());
  options_.stop_after_reasoning = options["stopAfterReasoning"].flag() ? 1 : 0;
  for (const auto& [name, field] : REAL_OPTIONS)
    if (const Value given = options[name]; given.given()) sampling_.*field = given.real();
  if (const Value given = options["topK"]; given.given()) sampling_.top_k = static_cast<size_t>(given.number());
  if (const Value given = options["repeatLastN"]; given.given()) sampling_.repeat_last_n = given.number();
  if (const Value given = options["dryAllowedLength"]; given.given())
    sampling_.dry_allowed_length = static_cast<size_t>(given.number());
  breakers_ = options["dryBreakers"].ids();
  sampling_.dry_breakers = breakers_.data();
  sampling_.dry_breaker_count = breakers_.size();
  for (const Value& each : options["logitBias"].list())
    biases_.push_back({each["token"].number(), each["bias"].real()});
  sampling_.logit_bias = biases_.data();
  sampling_.bias_count = biases_.size();
  if (const Value seed = options["seed"]; seed.given()) {
    sampling_.seed = seed.id();
    sampling_.has_seed = 1;
  }
  options_.sampling = &sampling_;
  options_.on_read = on_read;
}

int on_token(int64_t token, void* user) {
  auto& job = *static_cast<Job*>(user);
  call_back(job, [token](const Maker& make) { return std::vector{make.number(static_cast<double>(token))}; });
  return job.cancelled ? 0 : 1;
}

int on_piece(const hybridge_piece* piece, void* user) {
  auto& job = *static_cast<Job*>(user);
  if (piece->content_size + piece->reasoning_size + piece->call_count > 0) {
    call_back(
        job, [content = std::string(piece->content, piece->content_size),
              reasoning = std::string(piece->reasoning, piece->reasoning_size),
              calls = calls_of(piece->calls, piece->call_count)](const Maker& make) {
          return std::vector{make.text(content), make.text(reasoning), calls_of(make, calls)};
        }
    );
  }
  return job.cancelled ? 0 : 1;
}

napi_value sampling_of(const Maker& make, const hybridge_sampling& sampling) {
  return make.object({
      {"temperature", make.number(sampling.temperature)},
      {"topK", make.number(static_cast<double>(sampling.top_k))},
      {"topP", make.number(sampling.top_p)},
      {"minP", make.number(sampling.min_p)},
      {"repetitionPenalty", make.number(sampling.repetition_penalty)},
      {"presencePenalty", make.number(sampling.presence_penalty)},
      {"frequencyPenalty", make.number(sampling.frequency_penalty)},
  });
}

napi_value generated_of(const Maker& make, const hybridge_generated& generated) {
  const auto count = [&](size_t number) { return make.number(static_cast<double>(number)); };
  return make.object({
      {"tokens", count(generated.tokens)},
      {"proposed", count(generated.proposed)},
      {"accepted", count(generated.accepted)},
      {"verifies", count(generated.verifies)},
      {"decodes", count(generated.decodes)},
      {"rollbacks", count(generated.rollbacks)},
      {"forced", count(generated.forced)},
      {"prefillSeconds", make.number(generated.prefill_seconds)},
      {"draftSeconds", make.number(generated.draft_seconds)},
      {"verifySeconds", make.number(generated.verify_seconds)},
      {"commitSeconds", make.number(generated.commit_seconds)},
      {"decodeSeconds", make.number(generated.decode_seconds)},
      {"newSeconds", make.number(generated.new_seconds)},
  });
}

napi_value answer_of(const Maker& make, const hybridge_answer& answer) {
  const auto count = [&](size_t number) { return make.number(static_cast<double>(number)); };
  return make.object({
      {"ending", count(answer.ending)},
      {"promptTokens", count(answer.prompt_tokens)},
      {"cachedTokens", count(answer.cached_tokens)},
      {"droppedMessages", count(answer.dropped_messages)},
      {"generated", generated_of(make, answer.generated)},
  });
}

std::vector<Call> calls_of(const hybridge_call* calls, size_t count) {
  std::vector<Call> copies;
  for (size_t i = 0; i < count; ++i) copies.emplace_back(calls[i]);
  return copies;
}

napi_value calls_of(const Maker& make, const std::vector<Call>& calls) {
  std::vector<napi_value> values;
  for (const Call& each : calls) {
    values.push_back(make.object(
        {{"id", make.text(each.id)}, {"name", make.text(each.name)}, {"arguments", make.text(each.arguments)}}
    ));
  }
  return make.list(values);
}

}  // namespace hybridge_node
