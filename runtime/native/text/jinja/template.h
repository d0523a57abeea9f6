// Chat templates, written in Jinja: what transformers' immutable sandbox renders, within limits, without files and
// without a clock.
#ifndef HYBRIDGE_NATIVE_TEXT_JINJA_TEMPLATE_H
#define HYBRIDGE_NATIVE_TEXT_JINJA_TEMPLATE_H

#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text.h"

namespace hybridge::text::jinja {

struct RenderOptions {
  std::optional<std::tm> now = {};         // the local time that a template sees
  std::string_view own = "{}";             // more variables, a JSON object, of which nothing is people's input
  std::function<bool()> interrupted = {};  // asked now and then; true ends the rendering
};

class Template {
 public:
  // Reads a template in UTF-8. Throws TextError with the line of an error in its syntax.
  explicit Template(std::string_view source);
  ~Template();

  // The text for variables, which are a JSON object, and its parts that came from them: all strings inside, but for
  // variables whose names end with "_token", and roles that are plain words. Throws TextError with the template's own
  // message, or for a limit. A thread needs 256 kB of stack. One thread at a time renders by a template.
  Text render(std::string_view variables, const RenderOptions& options = {}) const;

 private:
  struct Read;
  std::unique_ptr<Read> read_;
};

}  // namespace hybridge::text::jinja

#endif
