// An open chat template, as its own functions and chats use it.
#ifndef HYBRIDGE_NATIVE_C_API_OPEN_TEMPLATE_H
#define HYBRIDGE_NATIVE_C_API_OPEN_TEMPLATE_H

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include <hybridge/hybridge.h>

#include "../text/chat_templates.h"

namespace hybridge::c {

// rendered, words: of the last call.
struct OpenTemplate {
  explicit OpenTemplate(std::shared_ptr<const text::ChatTemplates> of) : read(std::move(of)) {}

  const std::shared_ptr<const text::ChatTemplates> read;
  text::jinja::Text rendered = {};
  std::vector<hybridge_span> words = {};
  std::atomic<bool> busy = false;
};

}  // namespace hybridge::c

#endif
