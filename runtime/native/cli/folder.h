// An artifact's folder: its manifest, and files of the sizes that the manifest names.
#ifndef HYBRIDGE_NATIVE_CLI_FOLDER_H
#define HYBRIDGE_NATIVE_CLI_FOLDER_H

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "../text/json.h"

namespace hybridge::cli {

class ArtifactFolder {
 public:
  // Reads manifest.json and compares the files' sizes. Throws Failure, and TextError for a value of another type.
  explicit ArtifactFolder(std::string path);

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  text::Json manifest() const { return document_->root("manifest.json"); }

  // The manifest as it is written.
  const std::string& manifest_text() const { return text_; }

  bool has(const char* name) const { return static_cast<bool>(manifest()["files"][name]); }

  // Compares each file's SHA-256 with the manifest's. Throws Failure for one that was altered.
  void check_hashes() const;

 private:
  std::string path_, text_;
  std::unique_ptr<text::JsonDocument> document_;
};

}  // namespace hybridge::cli

#endif
