// An open chat template, as its own functions and chats use it.
#ifndef HYBRIDGE_C_API_OPEN_TEMPLATE_H
#define HYBRIDGE_C_API_OPEN_TEMPLATE_H

#include <atomic>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include <hybridge/hybridge_dev.h>

#include "text/chat_templates.h"
#include "text/error.h"

namespace hybridge::c {

// rendered, words: of the last call.
struct OpenTemplate {
  using Handle = hybridge_template;

  explicit OpenTemplate(std::shared_ptr<const text::ChatTemplates> of) : read(std::move(of)) {}

  const std::shared_ptr<const text::ChatTemplates> read;
  text::jinja::Text rendered = {};
  std::vector<hybridge_span> words = {};
  std::atomic<bool> busy = false;
};

// A time in ISO's format. Throws TextError.
inline std::tm time_of(const char* now) {
  std::tm time{};
  const char* const end = ::strptime(now, "%Y-%m-%dT%H:%M:%S", &time);
  if (end == nullptr || *end != '\0') throw text::TextError("a time is no date and time such as 2026-01-31T12:00:00");
  return time;
}

}  // namespace hybridge::c

#endif
