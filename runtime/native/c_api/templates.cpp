// The functions of hybridge.h about chat templates, over text/jinja/template.h.

#include <atomic>
#include <ctime>
#include <memory>
#include <string_view>
#include <vector>

#include <hybridge/hybridge.h>

#include "../text/error.h"
#include "../text/jinja/template.h"
#include "failure.h"
#include "handles.h"
#include "text_calls.h"

namespace {

using namespace hybridge::c;
using hybridge::text::TextError;
using hybridge::text::jinja::RenderOptions;
using hybridge::text::jinja::Template;
using hybridge::text::jinja::Text;

// rendered, words: of the last call.
struct OpenTemplate {
  explicit OpenTemplate(std::string_view source) : read(source) {}

  const Template read;
  Text rendered = {};
  std::vector<hybridge_span> words = {};
  std::atomic<bool> busy = false;
};

// The local time, or another one in ISO's format. Throws TextError.
std::tm time_of(const char* now) {
  std::tm time{};
  if (now == nullptr) {
    const std::time_t seconds = std::time(nullptr);
    if (::localtime_r(&seconds, &time) == nullptr) throw TextError("the system has no local time");
    return time;
  }
  const char* const end = ::strptime(now, "%Y-%m-%dT%H:%M:%S", &time);
  if (end == nullptr || *end != '\0') throw TextError("a time is no date and time such as 2026-01-31T12:00:00");
  return time;
}

}  // namespace

extern "C" {

hybridge_status hybridge_template_open(const char* text, size_t size, hybridge_template* opened) {
  if ((text == nullptr && size > 0) || opened == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    try {
      *opened = handles<OpenTemplate>().add(std::make_shared<OpenTemplate>(std::string_view(text, size)));
      return HYBRIDGE_OK;
    } catch (const TextError& error) {
      return refused(HYBRIDGE_INVALID_ARGUMENT, error.what());
    }
  });
}

hybridge_status hybridge_template_render(
    hybridge_template opened, const char* variables, size_t variables_size, const char* now, const char** text, size_t* size,
    const hybridge_span** words, size_t* word_count
) {
  const bool has_all = variables != nullptr && text != nullptr && size != nullptr && words != nullptr && word_count != nullptr;
  if (!has_all) return HYBRIDGE_INVALID_ARGUMENT;
  return with_one_call<OpenTemplate>(opened, [&](OpenTemplate& open) {
    RenderOptions options;
    options.keeps_dates = now != nullptr && *now == '\0';
    if (!options.keeps_dates) options.now = time_of(now);
    open.rendered = open.read.render({variables, variables_size}, options);
    open.words.clear();
    for (const auto& [begin, end] : open.rendered.input) open.words.push_back({begin, end});
    *text = open.rendered.bytes.data();
    *size = open.rendered.bytes.size();
    *words = open.words.data();
    *word_count = open.words.size();
  });
}

hybridge_status hybridge_template_close(hybridge_template opened) {
  return guarded([&] { return handles<OpenTemplate>().remove(opened) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

}  // extern "C"
