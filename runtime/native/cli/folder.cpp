#include "folder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <sys/stat.h>

#include "engine/open_file.h"
#include "engine/sha256.h"

#include "failure.h"

namespace hybridge::cli {

namespace {

constexpr uint64_t FORMAT_VERSION = 5, LARGEST_MANIFEST = 8 << 20, LARGEST_FILE = uint64_t(1) << 48;
constexpr size_t CHUNK = 1 << 20;  // bytes that are hashed at once

std::string read_file(const std::string& path, uint64_t most) {
  const auto file = OpenFile::regular(path.c_str());
  if (!file.ok())
    throw Failure(path + " cannot be read: it is missing, or no regular file. Copy the whole folder again.");
  const auto size = static_cast<uint64_t>(file->status().st_size);
  if (size > most)
    throw Failure(path + " has " + std::to_string(size) + " bytes, which no artifact needs; copy it again.");
  std::string content(size, '\0');
  if (!file->read_all({reinterpret_cast<uint8_t*>(content.data()), content.size()})) {
    throw Failure(path + " cannot be read (" + std::strerror(errno) + "); copy it again.");
  }
  return content;
}

// The SHA-256 of a file as 64 hexadecimal digits. Throws Failure for one that cannot be read.
std::string sha256_of(const std::string& path) {
  const auto file = OpenFile::regular(path.c_str());
  if (!file.ok()) throw Failure(path + " cannot be read; copy it again.");
  Sha256 hash;
  std::vector<uint8_t> chunk(CHUNK);
  for (auto left = static_cast<uint64_t>(file->status().st_size); left > 0;) {
    const size_t size = std::min<uint64_t>(left, chunk.size());
    if (!file->read_all({chunk.data(), size})) {
      throw Failure(path + " cannot be read (" + std::strerror(errno) + "); copy it again.");
    }
    hash.add({chunk.data(), size});
    left -= size;
  }
  return hexadecimal(hash.finish());
}

// Throws Failure unless the file is there with the size of its entry.
void check_size(const ArtifactFolder& folder, std::string_view name, const text::Json& entry) {
  if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\0", 2)) != name.npos) {
    const std::string shown(name.substr(0, 100));
    throw Failure("the manifest of " + folder.path() + " lists '" + shown + "', which is not a plain file name.");
  }
  const std::string path = folder.file(name);
  const uint64_t expected = entry["size"].integer(LARGEST_FILE);
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) throw Failure(path + " is missing; copy the whole folder again.");
  if (!S_ISREG(status.st_mode)) throw Failure(path + " is no regular file; copy the whole folder again.");
  if (static_cast<uint64_t>(status.st_size) != expected) {
    const std::string size = std::to_string(status.st_size);
    throw Failure(
        path + " has " + size + " bytes, but the manifest says " + std::to_string(expected) + "; copy it again."
    );
  }
}

}  // namespace

ArtifactFolder::ArtifactFolder(std::string path) : path_(std::move(path)) {
  struct stat status{};
  if (::stat(path_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    throw Failure(path_ + " is not a folder; give the one that 'hybridge export' wrote.");
  }
  const std::string manifest_path = file("manifest.json");
  if (::stat(manifest_path.c_str(), &status) != 0) {
    throw Failure(path_ + " is not an artifact: it has no manifest.json. Make one with 'hybridge export'.");
  }
  text_ = read_file(manifest_path, LARGEST_MANIFEST);
  try {
    document_ = std::make_unique<text::JsonDocument>(text_);
    const uint64_t version = manifest()["format_version"].integer(1 << 20);
    if (version != FORMAT_VERSION) {
      throw Failure(
          path_ + " has format version " + std::to_string(version) + ", but this hybridge-cli reads " +
          std::to_string(FORMAT_VERSION) + ". Export the model again with 'hybridge export CHECKPOINT -o " + path_ +
          " --force', or use the hybridge-cli of the hybridge that made it."
      );
    }
    if (!has("model.pte")) {
      throw Failure(path_ + " has no model.pte, which is what hybridge-cli runs; export the model with --format pte.");
    }
    manifest()["files"].each_entry([&](std::string_view name, const text::Json& entry) {
      check_size(*this, name, entry);
    });
  } catch (const text::TextError& error) {
    throw Failure(manifest_path + " does not describe an artifact (" + error.what() + "); export the model again.");
  }
}

void ArtifactFolder::check_hashes() const {
  manifest()["files"].each_entry([&](std::string_view name, const text::Json& entry) {
    if (sha256_of(file(name)) != entry["sha256"].string()) {
      throw Failure(file(name) + " was altered: its SHA-256 is not the manifest's. Copy it again.");
    }
  });
}

}  // namespace hybridge::cli
