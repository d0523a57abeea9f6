// The functions of hybridge.h about answers, over text/answers/answer_parser.h.

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hybridge/hybridge_dev.h>

#include "text/answers/answer_parser.h"
#include "text/answers/value.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

#include "c_api/failure.h"
#include "c_api/handles.h"
#include "c_api/open_template.h"
#include "c_api/text_calls.h"

namespace {

using namespace hybridge::c;
using namespace hybridge::text;

constexpr size_t LONGEST_TEXT = size_t{1} << 28;

struct OpenAnswer {
  using Handle = hybridge_answer_parser;

  std::shared_ptr<const AnswerForm> form;
  AnswerParser parser;
  std::string reasoning_end, events = {};
  std::atomic<bool> busy = false;

  OpenAnswer(
      std::shared_ptr<const AnswerForm> answer_form, std::string_view prompt, std::shared_ptr<const ToolSchemas> tools
  )
      : form(std::move(answer_form)), parser(*form, prompt, std::move(tools)), reasoning_end(parser.reasoning_end()) {}
};

hybridge_status add(AnswerForm form, hybridge_answer_form* handle) {
  *handle = handles<const AnswerForm>().add(std::make_shared<const AnswerForm>(std::move(form)));
  return HYBRIDGE_OK;
}

// Lists and objects as JSON.
std::string list(const Marks& marks) {
  std::string json;
  for (const std::string& each : marks) json += (json.empty() ? "" : ", ") + to_json(each);
  return "[" + json + "]";
}

std::string member(const char* name, const std::string& json) { return to_json(name) + ": " + json + ", "; }

std::string described(const AnswerForm& form) {
  static constexpr const char* SYNTAXES[] = {"json", "named", "tags", "pairs", "python", "gemma"};
  const CallForm& calls = form.calls;
  return "{" + member("name", to_json(form.name)) + member("content_lead", to_json(form.content_lead)) +
         member("reasoning_open", list(form.reasoning_open)) + member("reasoning_close", list(form.reasoning_close)) +
         member("syntax", to_json(SYNTAXES[static_cast<int>(calls.syntax)])) + member("call_open", list(calls.open)) +
         member("item_open", to_json(calls.item_open)) + member("has_channels", form.has_channels ? "true" : "false") +
         to_json("looked_for") + ": " + to_json(looked_for(form)) + "}";
}

std::string written(const std::vector<AnswerEvent>& events) {
  static constexpr const char* KINDS[] = {"reasoning", "content", "call"};
  std::string json;
  for (const AnswerEvent& each : events) {
    if (!json.empty()) json += ", ";
    json += list({KINDS[static_cast<int>(each.kind)], each.text, each.arguments});
  }
  return "[" + json + "]";
}

// Runs `call` on an answer, in which no other call is then, and gives its events.
template <typename Call>
hybridge_status add_events(hybridge_answer_parser answer, const char** events, size_t* size, Call&& call) {
  if (events == nullptr || size == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_one_call<OpenAnswer>(answer, [&](OpenAnswer& open) {
    open.events = written(call(open.parser));
    *events = open.events.data();
    *size = open.events.size();
  });
}

}  // namespace

extern "C" {

hybridge_status hybridge_answer_form_find(
    hybridge_tokenizer tokenizer, hybridge_template chat_template, hybridge_answer_form* form
) {
  if (form == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto open = handles<const Tokenizer>().find(tokenizer);
    const auto templates = handles<OpenTemplate>().find(chat_template);
    if (open == nullptr || templates == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    return add(templates->read->answer_form(*open), form);
  });
}

hybridge_status hybridge_answer_form_named(const char* name, size_t size, hybridge_answer_form* form) {
  if (name == nullptr || form == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const std::string_view wanted(name, size);
    const AnswerForm* found = answer_form(wanted);
    if (found == nullptr)
      return refused(HYBRIDGE_INVALID_ARGUMENT, "there is no form of answers called " + std::string(wanted));
    return add(*found, form);
  });
}

hybridge_status hybridge_answer_form_describe(hybridge_answer_form form, char* text, size_t capacity, size_t* size) {
  if ((text == nullptr && capacity > 0) || size == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_text<const AnswerForm>(form, [&](const auto& found) {
    return copy(described(*found), text, capacity, size);
  });
}

hybridge_status hybridge_answer_form_close(hybridge_answer_form form) {
  return guarded([&] { return handles<const AnswerForm>().remove(form) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_answer_open(
    hybridge_answer_form form, const char* prompt, size_t size, const char* tools, size_t tools_size,
    hybridge_answer_parser* answer
) {
  const bool has_all = (prompt != nullptr || size == 0) && (tools != nullptr || tools_size == 0) && answer != nullptr;
  if (!has_all || size > LONGEST_TEXT || tools_size > LONGEST_TEXT) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_text<const AnswerForm>(form, [&](const auto& found) {
    const auto offered = tools_size == 0 ? nullptr
                                         : std::make_shared<const ToolSchemas>(std::string_view(tools, tools_size));
    *answer = handles<OpenAnswer>().add(std::make_shared<OpenAnswer>(found, std::string_view(prompt, size), offered));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_answer_reasoning_end(
    hybridge_answer_parser answer, char* text, size_t capacity, size_t* size
) {
  if ((text == nullptr && capacity > 0) || size == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_text<OpenAnswer>(answer, [&](const auto& open) {
    return copy(open->reasoning_end, text, capacity, size);
  });
}

hybridge_status hybridge_answer_stop(hybridge_answer_parser answer, const char* stop, size_t size) {
  if (stop == nullptr || size == 0) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_one_call<OpenAnswer>(answer, [&](OpenAnswer& open) { open.parser.stop_at({stop, size}); });
}

hybridge_status hybridge_answer_stopped(hybridge_answer_parser answer, int* stopped) {
  if (stopped == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_one_call<OpenAnswer>(answer, [&](OpenAnswer& open) { *stopped = !open.parser.cut().empty(); });
}

hybridge_status hybridge_answer_push(
    hybridge_answer_parser answer, const char* piece, size_t size, const char** events, size_t* events_size
) {
  if ((piece == nullptr && size > 0) || size > LONGEST_TEXT) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return add_events(answer, events, events_size, [&](AnswerParser& parser) {
    return parser.push(valid_utf8({piece, size}));
  });
}

hybridge_status hybridge_answer_finish(hybridge_answer_parser answer, const char** events, size_t* events_size) {
  return add_events(answer, events, events_size, [](AnswerParser& parser) { return parser.finish(); });
}

hybridge_status hybridge_answer_close(hybridge_answer_parser answer) {
  return guarded([&] { return handles<OpenAnswer>().remove(answer) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

}  // extern "C"
