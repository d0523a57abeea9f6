// The functions of hybridge.h about chat templates, over text/chat_templates.h.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <hybridge/hybridge_dev.h>

#include "engine/open_file.h"
#include "engine/sha256.h"

#include "text/answers/value.h"
#include "text/error.h"
#include "text/json.h"
#include "text/picture_layout.h"

#include "c_api/failure.h"
#include "c_api/handles.h"
#include "c_api/open_template.h"
#include "c_api/text_calls.h"

namespace {

using namespace hybridge::c;
using hybridge::text::ChatTemplates;
using hybridge::text::Json;
using hybridge::text::JsonDocument;
using hybridge::text::TextError;
using hybridge::text::to_json;
using hybridge::text::jinja::RenderOptions;

constexpr size_t LARGEST_FILE = size_t(8) << 20;

// The SHA-256 of a text as 64 hexadecimal digits.
std::string sha256_of(std::string_view text) {
  hybridge::Sha256 hash;
  hash.add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  return hybridge::hexadecimal(hash.finish());
}

// The templates of a folder. Of one with a manifest, the files that it lists are read, and are what it says. Throws
// TextError.
std::shared_ptr<const ChatTemplates> templates_of(const std::filesystem::path& folder) {
  const auto content = [&](const std::filesystem::path& path) {
    auto file = hybridge::OpenFile::content(path.c_str(), LARGEST_FILE);
    if (!file.ok()) throw TextError(path.string() + " cannot be read, or has more than 8 MB");
    return std::move(*file);
  };
  std::error_code error;
  std::optional<JsonDocument> manifest;
  if (const auto path = folder / "manifest.json"; std::filesystem::exists(path, error)) manifest.emplace(content(path));
  const Json root = manifest ? manifest->root("manifest.json") : Json(), listed = root["files"];
  ChatTemplates::Files files;
  for (std::filesystem::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    const std::string name = each->path().filename().string();
    const Json entry = listed[name];
    if (!ChatTemplates::is_read(name) || (listed && !entry)) continue;
    std::string bytes = content(each->path());
    if (entry && sha256_of(bytes) != entry["sha256"].string()) {
      throw TextError(each->path().string() + " was altered: its SHA-256 is not the manifest's. Copy it again");
    }
    files[name] = std::move(bytes);
  }
  if (error) throw TextError(folder.string() + " cannot be read: " + error.message());
  const auto place = hybridge::text::picture_place(root["pictures"]["model_type"].string_or(""));
  return std::make_shared<const ChatTemplates>(files, place);
}

hybridge_status add(std::shared_ptr<const ChatTemplates> read, hybridge_template* opened) {
  *opened = handles<OpenTemplate>().add(std::make_shared<OpenTemplate>(std::move(read)));
  return HYBRIDGE_OK;
}

}  // namespace

extern "C" {

hybridge_status hybridge_template_open(const char* text, size_t size, hybridge_template* opened) {
  if ((text == nullptr && size > 0) || opened == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    try {
      const auto read = std::make_shared<const ChatTemplates>(std::string_view(text, size));
      read->check();
      return add(read, opened);
    } catch (const TextError& error) {
      return refused(HYBRIDGE_INVALID_TEMPLATE, error.what());
    }
  });
}

hybridge_status hybridge_template_read(const char* folder, hybridge_template* opened) {
  if (folder == nullptr || opened == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    try {
      return add(templates_of(folder), opened);
    } catch (const TextError& error) {
      return refused(HYBRIDGE_INVALID_ARTIFACT, error.what());
    }
  });
}

hybridge_status hybridge_template_render(
    hybridge_template opened, hybridge_answer_form form, const char* variables, size_t variables_size, const char* now,
    const char** text, size_t* size, const hybridge_span** words, size_t* word_count
) {
  const bool has_all = variables != nullptr && text != nullptr && size != nullptr && words != nullptr &&
                       word_count != nullptr;
  if (!has_all) return refused(HYBRIDGE_INVALID_ARGUMENT);
  const auto chosen = handles<const hybridge::text::AnswerForm>().find(form);
  if (form.id != 0 && chosen == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
  return with_one_call<OpenTemplate>(
      opened,
      [&](OpenTemplate& open) {
        const std::string_view given(variables, variables_size);
        RenderOptions options;
        if (now != nullptr) options.now = time_of(now);
        const bool has_tools = open.read->has_one_for_tools() && JsonDocument(given).root()["tools"];
        open.rendered = open.read->render(given, has_tools, chosen != nullptr && chosen->tells_tools, options);
        open.words.clear();
        for (const auto& [begin, end] : open.rendered.input) open.words.push_back({begin, end});
        *text = open.rendered.bytes.data();
        *size = open.rendered.bytes.size();
        *words = open.words.data();
        *word_count = open.words.size();
      },
      HYBRIDGE_INVALID_TEMPLATE
  );
}

hybridge_status hybridge_template_describe(hybridge_template opened, char* text, size_t capacity, size_t* size) {
  if ((text == nullptr && capacity > 0) || size == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_text<OpenTemplate>(opened, [&](const auto& open) {
    std::string names;
    for (const std::string& each : open->read->names()) names += (names.empty() ? "" : ", ") + to_json(each);
    const std::string described = R"({"names": [)" + names + R"(], "thinking_switch": )" +
                                  to_json(open->read->thinking_switch()) + R"(, "sources": )" +
                                  to_json(open->read->sources()) + R"(, "warning": )" + to_json(open->read->warning()) +
                                  "}";
    return copy(described, text, capacity, size);
  });
}

hybridge_status hybridge_template_close(hybridge_template opened) {
  return guarded([&] { return handles<OpenTemplate>().remove(opened) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

}  // extern "C"
