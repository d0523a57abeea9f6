#include "references.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>

#include "characters.h"

namespace hybridge::text {
namespace {

// Keywords with a schema or a list of schemas, and keywords with schemas by name. The values of all others are data.
constexpr std::string_view OF_SCHEMAS[] = {
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties"
};
constexpr std::string_view OF_NAMED_SCHEMAS[] = {
    "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"
};

bool is_in(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

struct Uri {
  std::optional<std::string> scheme, authority;
  std::string path, query;  // the query with its question mark

  explicit Uri(std::string_view text) {
    const size_t colon = text.find(':');
    if (colon != text.npos && colon > 0 && colon < text.find_first_of("/?#")) {
      scheme = std::string(text.substr(0, colon));
      text.remove_prefix(colon + 1);
    }
    if (text.starts_with("//")) {
      const size_t end = std::min(text.find_first_of("/?", 2), text.size());
      authority = std::string(text.substr(2, end - 2));
      text.remove_prefix(end);
    }
    const size_t question = std::min(text.find('?'), text.size());
    path = std::string(text.substr(0, question));
    query = std::string(text.substr(question));
  }

  std::string text() const {
    return (scheme ? *scheme + ":" : "") + (authority ? "//" + *authority : "") + path + query;
  }
};

std::string without_dots(std::string_view path) {
  std::string kept;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/', 1), path.size());
    const std::string_view part = path.substr(0, end), name = part.substr(part.starts_with('/'));
    path.remove_prefix(end);
    if (name == "..") kept.erase(kept.rfind('/') == kept.npos ? 0 : kept.rfind('/'));
    else if (name != ".") kept += part;
    if (path.empty() && (name == "." || name == "..")) kept += '/';
  }
  return kept;
}

// Returns a part of a pointer without the escapes of URLs and pointers.
std::string unescaped(std::string_view part) {
  std::string text;
  for (size_t i = 0; i < part.size(); i++) {
    unsigned byte = 0;
    if (part[i] == '%' && i + 2 < part.size() &&
        std::sscanf(std::string(part.substr(i + 1, 2)).c_str(), "%2x", &byte) == 1) {
      text += static_cast<char>(byte);
      i += 2;
    } else if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
      text += part[++i] == '0' ? '~' : '/';
    } else {
      text += part[i];
    }
  }
  return text;
}

std::string_view without_fragment(std::string_view uri) { return uri.substr(0, std::min(uri.find('#'), uri.size())); }

// Returns the text of a keyword that names a schema; empty if the schema has none.
std::string_view identifier(const Json& schema, const char* keyword) {
  const Json value = schema[keyword];
  return value.is_string() ? value.string() : std::string_view();
}

[[noreturn]] void fail(const std::string& key, const char* why) {
  throw TextError("the reference \"" + escaped(key) + "\" " + why);
}

}  // namespace

std::string resolve_uri(std::string_view base, std::string_view reference) {
  if (reference.empty()) return std::string(base);
  const Uri from(base);
  Uri to(reference);
  if (!to.scheme) {
    if (!to.authority) {
      if (to.path.empty()) {
        to.path = from.path;
        if (to.query.empty()) to.query = from.query;
      } else if (!to.path.starts_with('/')) {
        const size_t slash = from.path.rfind('/');
        const std::string folder = slash == std::string::npos ? (from.authority ? "/" : "")
                                                              : from.path.substr(0, slash + 1);
        to.path = without_dots(folder + to.path);
      } else {
        to.path = without_dots(to.path);
      }
      to.authority = from.authority;
    }
    to.scheme = from.scheme;
  }
  return to.text();
}

References::References(const Json& root) : root_(root), root_uri_(base_inside(root, "")) { scan(root, ""); }

std::string References::base_inside(const Json& schema, const std::string& around) {
  if (!schema.is_object()) return around;
  return resolve_uri(around, without_fragment(identifier(schema, "$id")));
}

void References::scan(const Json& schema, const std::string& around) {
  if (!schema.is_object()) return;
  const std::string base = base_inside(schema, around);
  const std::string_view id = identifier(schema, "$id");
  if (!without_fragment(id).empty()) resources_.try_emplace(base, Target{schema, around});
  const auto anchor = [&](std::string_view name) {
    if (!name.empty()) anchors_.try_emplace(base + "#" + std::string(name), Target{schema, around});
  };
  if (id.starts_with('#')) anchor(id.substr(1));  // as in drafts before 2019
  anchor(identifier(schema, "$anchor"));
  anchor(identifier(schema, "$dynamicAnchor"));
  if (const auto name = identifier(schema, "$dynamicAnchor"); !name.empty()) dynamic_[std::string(name)]++;
  schema.each_entry([&](std::string_view key, const Json& value) {
    has_unevaluated_ = has_unevaluated_ || key == "unevaluatedItems" || key == "unevaluatedProperties";
    if (is_in(OF_SCHEMAS, key)) {
      if (value.is_array()) value.each([&](const Json& each) { scan(each, base); });
      else scan(value, base);
    } else if (is_in(OF_NAMED_SCHEMAS, key) && value.is_object()) {
      value.each_entry([&](std::string_view, const Json& each) { scan(each, base); });
    }
  });
}

std::string References::key(std::string_view reference, const std::string& base, bool is_dynamic) const {
  const std::string_view uri = without_fragment(reference);
  std::string_view fragment = reference.substr(uri.size());
  if (fragment.empty()) fragment = "#";
  const std::string absolute = resolve_uri(base, uri);
  if (is_dynamic && anchors_.contains(absolute + std::string(fragment))) {
    const auto found = dynamic_.find(std::string(fragment.substr(1)));
    if (found != dynamic_.end() && found->second > 1) {
      fail(std::string(reference), "is to one of several \"$dynamicAnchor\" of this name, which is not supported");
    }
  }
  return (absolute == root_uri_ ? "" : absolute) + std::string(fragment);
}

References::Target References::find(const std::string& key) const {
  const size_t mark = key.find('#');
  std::string uri = key.substr(0, mark);
  std::string_view rest = std::string_view(key).substr(mark + 1);
  if (uri.empty()) uri = root_uri_;
  if (!rest.empty() && !rest.starts_with('/')) {
    const auto found = anchors_.find(uri + "#" + std::string(rest));
    if (found == anchors_.end()) fail(key, "is not one inside the schema, such as \"#/$defs/name\"");
    return {found->second.schema.as("the schema at " + key), found->second.base};
  }
  Target at{root_, ""};
  if (uri != root_uri_) {
    const auto found = resources_.find(uri);
    if (found == resources_.end()) fail(key, "is not one inside the schema, such as \"#/$defs/name\"");
    at = found->second;
  }
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('/', 1), rest.size());
    const std::string name = unescaped(rest.substr(1, end - 1));
    rest.remove_prefix(end);
    at.base = base_inside(at.schema, at.base);
    const bool is_place = !name.empty() && name.size() < 7 && name.find_first_not_of("0123456789") == name.npos;
    if (at.schema.is_array() && is_place) at.schema = at.schema.item(std::stoul(name));
    else if (at.schema.is_object()) at.schema = at.schema[name];
    else at.schema = {};
    if (!at.schema.is_object() && !at.schema.is_array() && !at.schema.is_boolean()) fail(key, "leads nowhere");
  }
  return {at.schema.as("the schema at " + key), at.base};
}

}  // namespace hybridge::text
