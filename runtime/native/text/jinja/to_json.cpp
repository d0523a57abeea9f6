// The filter `tojson`, as transformers has it: json.dumps, which writes every character as it is unless told otherwise.
#include <algorithm>
#include <cmath>

#include "../unicode.h"
#include "interpreter.h"

namespace hybridge::text::jinja {

namespace {

class Writer {
 public:
  // options: ensure_ascii, indent, separators and sort_keys.
  Writer(Interpreter& in, const Bound& options)
      : budget_(in.budget()), is_ascii_(options.truth(0, false)), sorts_(options.truth(3, false)) {
    if (options.has(1) && !options[1].is_none()) {
      has_lines_ = true;
      if (options[1].is_string()) indent_ = options[1].text().bytes;
      else indent_ = std::string(static_cast<size_t>(std::clamp<int64_t>(options.integer(1, 0), 0, 1000)), ' ');
      item_ = ",";
    }
    if (options.has(2) && !options[2].is_none()) {
      const auto pair = items_of(budget_, options[2]);
      if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
        throw TextError("tojson: separators must be two texts");
      item_ = pair[0].text().bytes;
      key_ = pair[1].text().bytes;
    }
  }

  Text write(const Value& value) {
    add(value, 0);
    return std::move(out_);
  }

 private:
  void line(size_t depth) {
    if (!has_lines_) return;
    out_.append("\n");
    for (size_t i = 0; i < depth; ++i) out_.append(indent_);
    budget_.spend(depth + depth * indent_.size() / 32);
  }

  void add(const Value& value, size_t depth) {
    const Budget::Level level(budget_);
    budget_.spend(1 + (item_.size() + key_.size()) / 32);
    switch (value.kind()) {
      case Kind::STRING: return add_string(value.text());
      case Kind::DICT: return add_dict(value.dict(), depth);
      case Kind::LIST:
      case Kind::TUPLE: return add_list(value.sequence().items, depth);
      default: out_.append(scalar(value));
    }
  }

  static std::string scalar(const Value& value) {
    switch (value.kind()) {
      case Kind::NONE: return "null";
      case Kind::BOOLEAN: return value.integer() != 0 ? "true" : "false";
      case Kind::INTEGER: return std::to_string(value.integer());
      case Kind::LARGE: return value.text().bytes;
      case Kind::FLOAT:
        if (std::isnan(value.number())) return "NaN";
        return std::isinf(value.number()) ? (value.number() < 0 ? "-Infinity" : "Infinity")
                                          : float_text(value.number());
      default: throw TextError(std::string("Object of type ") + value.type() + " is not JSON serializable");
    }
  }

  void add_list(const std::vector<Value>& items, size_t depth) {
    out_.append("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.append(item_);
      line(depth + 1);
      add(items[i], depth + 1);
    }
    if (!items.empty()) line(depth);
    out_.append("]");
  }

  void add_dict(const DictObject& dict, size_t depth) {
    std::vector<std::pair<const Value*, const Value*>> entries;
    for (const auto& [key, value] : dict.entries) entries.emplace_back(&key, &value);
    if (sorts_) {
      std::ranges::stable_sort(entries, [&](const auto& a, const auto& b) {
        return compare(budget_, *a.first, *b.first) < 0;
      });
    }
    out_.append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.append(item_);
      line(depth + 1);
      const Value& key = *entries[i].first;
      if (key.is_string()) add_string(key.text());
      else if (key.is(Kind::TUPLE) || key.is_undefined())
        throw TextError(std::string("keys must be str, int, float, bool or None, not ") + key.type());
      else out_.append("\"" + scalar(key) + "\"");
      out_.append(key_);
      add(*entries[i].second, depth + 1);
    }
    if (!entries.empty()) line(depth);
    out_.append("}");
  }

  void add_string(const Text& text) {
    budget_.spend(1 + text.size() / 16);
    out_.append("\"");
    const auto is_plain = [](char c) {
      return static_cast<signed char>(c) >= 0x20 && c != '"' && c != '\\' && c != 0x7F;
    };
    if (std::ranges::all_of(text.bytes, is_plain)) {
      out_.append(text.bytes, text.has_input());
      return out_.append("\"");
    }
    std::string written;
    const auto escape = [&](char32_t unit) {
      written += "\\u";
      for (int shift = 12; shift >= 0; shift -= 4) written += "0123456789abcdef"[unit >> shift & 15];
    };
    for (size_t at = 0; at < text.size();) {
      const char32_t c = character_at(text.bytes, at);
      constexpr std::string_view KNOWN = "\"\\\n\r\t\b\f", LETTERS = "\"\\nrtbf";
      const size_t known = c < 0x80 ? KNOWN.find(static_cast<char>(c)) : std::string_view::npos;
      if (known != std::string_view::npos) (written += '\\') += LETTERS[known];
      else if (c < 0x20 || (is_ascii_ && c >= 0x7F && c < 0x10000 && c != 0x7F)) escape(c);
      else if (is_ascii_ && c >= 0x10000) {
        escape(0xD800 + ((c - 0x10000) >> 10));
        escape(0xDC00 + ((c - 0x10000) & 0x3FF));
      } else {
        hybridge::text::append(written, c);
      }
      at += length_of(text.bytes[at]);
    }
    out_.append(written, text.has_input());
    out_.append("\"");
  }

  Budget& budget_;
  const bool is_ascii_, sorts_;
  bool has_lines_ = false;
  std::string indent_, item_ = ", ", key_ = ": ";
  Text out_;
};

}  // namespace

Text to_json(Interpreter& in, const Value& value, const Bound& options) { return Writer(in, options).write(value); }

}  // namespace hybridge::text::jinja
