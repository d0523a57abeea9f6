// Renders chat templates: reads requests, a line of JSON each with a template, its variables as a text of JSON, and the
// time; writes the text and the places of its parts from people, or an error. Each is rendered in a thread with the
// least stack that is promised, and a template that comes again is not read again. With "interrupt", that question
// whether to interrupt has the answer yes.
#include <pthread.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>

#include "text/error.h"
#include "text/jinja/template.h"
#include "third_party/yyjson/yyjson.h"

namespace {

namespace jinja = hybridge::text::jinja;

struct Request {
  std::string_view source, variables;
  jinja::RenderOptions options = {};
  size_t interrupt = 0, questions = 0;
  jinja::Text text = {};
  std::string error = {};
};

struct LastTemplate {
  std::string source;
  std::unique_ptr<jinja::Template> read;
} last;

void* render(void* given) {
  auto& request = *static_cast<Request*>(given);
  try {
    if (last.read == nullptr || last.source != request.source) {
      last.read.reset();
      last.read = std::make_unique<jinja::Template>(request.source);
      last.source = request.source;
    }
    request.options.interrupted = [&request] { return ++request.questions == request.interrupt; };
    request.text = last.read->render(request.variables, request.options);
  } catch (const hybridge::text::TextError& error) {
    request.error = std::string("refused: ") + error.what();
  }
  return nullptr;
}

std::string_view text_of(yyjson_val* request, const char* name) {
  yyjson_val* const value = yyjson_obj_get(request, name);
  return {yyjson_get_str(value), yyjson_get_len(value)};
}

std::tm time_of(yyjson_val* parts) {
  const auto part = [&](size_t i) { return static_cast<int>(yyjson_get_sint(yyjson_arr_get(parts, i))); };
  std::tm time{};
  time.tm_year = part(0) - 1900;
  time.tm_mon = part(1) - 1;
  time.tm_mday = part(2);
  time.tm_hour = part(3);
  time.tm_min = part(4);
  time.tm_sec = part(5);
  time.tm_wday = (part(6) + 1) % 7;  // Python's week begins on Monday
  time.tm_yday = part(7) - 1;
  return time;
}

void answer(const Request& request, double seconds) {
  yyjson_mut_doc* const document = yyjson_mut_doc_new(nullptr);
  yyjson_mut_val* const root = yyjson_mut_obj(document);
  yyjson_mut_doc_set_root(document, root);
  yyjson_mut_obj_add_real(document, root, "seconds", seconds);
  yyjson_mut_obj_add_uint(document, root, "questions", request.questions);
  if (!request.error.empty()) {
    yyjson_mut_obj_add_strn(document, root, "error", request.error.data(), request.error.size());
  } else {
    yyjson_mut_obj_add_strn(document, root, "text", request.text.bytes.data(), request.text.size());
    yyjson_mut_val* const input = yyjson_mut_obj_add_arr(document, root, "input");
    for (const jinja::Span& each : request.text.input) {
      yyjson_mut_arr_add_uint(document, input, each.begin);
      yyjson_mut_arr_add_uint(document, input, each.end);
    }
  }
  char* const json = yyjson_mut_write(document, 0, nullptr);
  std::puts(json == nullptr ? "{\"error\": \"the answer is no UTF-8\", \"seconds\": 0}" : json);
  std::fflush(stdout);
  std::free(json);
  yyjson_mut_doc_free(document);
}

}  // namespace

int main(int count, char** words) {
  const size_t stack = count > 1 ? std::strtoul(words[1], nullptr, 10) : size_t(256) << 10;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack);
  for (std::string line; std::getline(std::cin, line);) {
    yyjson_doc* const document = yyjson_read(line.data(), line.size(), 0);
    yyjson_val* const root = yyjson_doc_get_root(document);
    Request request{text_of(root, "template"), text_of(root, "variables")};
    if (yyjson_val* const now = yyjson_obj_get(root, "now"); yyjson_is_arr(now)) request.options.now = time_of(now);
    request.interrupt = yyjson_get_uint(yyjson_obj_get(root, "interrupt"));
    const auto begin = std::chrono::steady_clock::now();
    pthread_t thread;
    if (pthread_create(&thread, &attributes, render, &request) != 0) return 2;
    pthread_join(thread, nullptr);
    answer(request, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    yyjson_doc_free(document);
  }
}
