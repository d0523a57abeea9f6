#include "folder.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include <sys/stat.h>

#include <hybridge/open_file.h>

#include "failure.h"

namespace hybridge::cli {

namespace {

constexpr uint64_t FORMAT_VERSION = 3, LARGEST_MANIFEST = 8 << 20, LARGEST_FILE = uint64_t(1) << 48;
constexpr size_t CHUNK = 1 << 20;  // bytes that are hashed at once

std::string read_file(const std::string& path, uint64_t most) {
  const auto file = OpenFile::regular(path.c_str());
  if (!file.ok()) throw Failure(path + " cannot be read: it is missing, or no regular file. Copy the whole folder again.");
  const auto size = static_cast<uint64_t>(file->status().st_size);
  if (size > most) throw Failure(path + " has " + std::to_string(size) + " bytes, which no artifact needs; copy it again.");
  std::string content(size, '\0');
  if (!file->read_all({reinterpret_cast<uint8_t*>(content.data()), content.size()})) {
    throw Failure(path + " cannot be read (" + std::strerror(errno) + "); copy it again.");
  }
  return content;
}

// SHA-256 of FIPS 180-4.
class Sha256 {
 public:
  void add(const uint8_t* data, size_t size) {
    length_ += size;
    for (size_t i = 0; i < size; i++) {
      block_[filled_++] = data[i];
      if (filled_ == block_.size()) compress();
    }
  }

  std::string finish() {
    const uint64_t bits = length_ * 8;
    const uint8_t one = 0x80, zero = 0;
    add(&one, 1);
    while (filled_ != 56) add(&zero, 1);
    for (int shift = 56; shift >= 0; shift -= 8) {
      const auto byte = static_cast<uint8_t>(bits >> shift);
      add(&byte, 1);
    }
    std::string digits;
    for (const uint32_t word : state_) {
      for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[word >> shift & 15];
    }
    return digits;
  }

 private:
  static constexpr std::array<uint32_t, 64> ROUNDS = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
      0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
      0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
      0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
      0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
      0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
  };

  void compress() {
    std::array<uint32_t, 64> words;
    for (size_t i = 0; i < 16; i++) {
      const uint8_t* bytes = &block_[4 * i];
      words[i] = uint32_t(bytes[0]) << 24 | uint32_t(bytes[1]) << 16 | uint32_t(bytes[2]) << 8 | bytes[3];
    }
    for (size_t i = 16; i < 64; i++) {
      const uint32_t a = words[i - 15], b = words[i - 2];
      const uint32_t first = std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3;
      const uint32_t second = std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10;
      words[i] = words[i - 16] + first + words[i - 7] + second;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (size_t i = 0; i < 64; i++) {
      const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25), choice = (e & f) ^ (~e & g);
      const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22), majority = (a & b) ^ (a & c) ^ (b & c);
      const uint32_t t1 = h + sum1 + choice + ROUNDS[i] + words[i], t2 = sum0 + majority;
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<uint32_t, 8> now = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; i++) state_[i] += now[i];
    filled_ = 0;
  }

  std::array<uint32_t, 8> state_ = {
      0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
  };
  std::array<uint8_t, 64> block_ = {};
  size_t filled_ = 0;
  uint64_t length_ = 0;
};

// Throws Failure unless the file is there with the size of its entry.
void check_size(const ArtifactFolder& folder, std::string_view name, const text::Json& entry) {
  if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\0", 2)) != name.npos) {
    const std::string shown(name.substr(0, 100));
    throw Failure("the manifest of " + folder.path() + " lists '" + shown + "', which is not a plain file name.");
  }
  const std::string path = folder.file(name);
  const uint64_t expected = entry["size"].integer(LARGEST_FILE);
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw Failure(path + " is missing; copy the whole folder again.");
  if (!S_ISREG(status.st_mode)) throw Failure(path + " is no regular file; copy the whole folder again.");
  if (static_cast<uint64_t>(status.st_size) != expected) {
    const std::string size = std::to_string(status.st_size);
    throw Failure(path + " has " + size + " bytes, but the manifest says " + std::to_string(expected) + "; copy it again.");
  }
}

}  // namespace

ArtifactFolder::ArtifactFolder(std::string path) : path_(std::move(path)) {
  struct stat status {};
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
          std::to_string(FORMAT_VERSION) + "; export the model again, or use the hybridge-cli of the hybridge that made it."
      );
    }
    if (!has("model.pte")) {
      throw Failure(path_ + " has no model.pte, which is what hybridge-cli runs; export the model with --format pte.");
    }
    manifest()["files"].each_entry([&](std::string_view name, const text::Json& entry) { check_size(*this, name, entry); });
  } catch (const text::TextError& error) {
    throw Failure(manifest_path + " does not describe an artifact (" + error.what() + "); export the model again.");
  }
}

std::string ArtifactFolder::chat_format() const {
  const text::Json description = manifest();
  if (description["chat_format"]) return description["chat_format"].written();
  const std::string_view reason = description["without_chat_format"].string_or("it was exported by an earlier hybridge");
  throw Failure(
      path_ + " has no chats without Python (" + std::string(reason) +
      "); use 'hybridge chat' and 'hybridge run', or hybridge-cli run without pictures."
  );
}

void ArtifactFolder::check_hashes() const {
  manifest()["files"].each_entry([&](std::string_view name, const text::Json& entry) {
    if (sha256_of(file(name)) != entry["sha256"].string()) {
      throw Failure(file(name) + " was altered: its SHA-256 is not the manifest's. Copy it again.");
    }
  });
}

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
    hash.add(chunk.data(), size);
    left -= size;
  }
  return hash.finish();
}

}  // namespace hybridge::cli
