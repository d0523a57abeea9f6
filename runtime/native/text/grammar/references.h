// The schemas of a JSON document that a reference can name: by `$id`, `$anchor` or a pointer.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_REFERENCES_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_REFERENCES_H

#include <map>
#include <string>
#include <string_view>

#include "../json.h"

namespace hybridge::text {

// Resolves a URI reference against a base, as section 5.2 of RFC 3986 does. A base may be empty.
std::string resolve_uri(std::string_view base, std::string_view reference);

class References {
 public:
  // A schema, and the base URI around it: the schema's own `$id` does not count.
  struct Target {
    Json schema;
    std::string base;
  };

  // Finds the identifiers of a document.
  explicit References(const Json& root);

  // Returns the base URI inside a schema.
  static std::string base_inside(const Json& schema, const std::string& around);

  // Returns the one name that all references to the same place have. Throws TextError for a dynamic reference whose
  // target depends on the way to it.
  std::string key(std::string_view reference, const std::string& base, bool is_dynamic) const;

  // Returns the schema of a key. Throws TextError if the document does not have it.
  Target find(const std::string& key) const;

  // Tells whether the document has `unevaluatedItems` or `unevaluatedProperties`.
  bool has_unevaluated() const { return has_unevaluated_; }

 private:
  void scan(const Json& schema, const std::string& around);

  Json root_;
  std::string root_uri_;
  std::map<std::string, Target> resources_, anchors_;
  std::map<std::string, size_t> dynamic_;  // how many anchors have a name
  bool has_unevaluated_ = false;
};

}  // namespace hybridge::text

#endif
