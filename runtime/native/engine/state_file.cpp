#include "engine/state_file.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string_view>
#include <utility>

#include "engine/fnv1a.h"
#include "engine/replaced_file.h"
#include "engine/runtime.h"

namespace hybridge {

namespace {

constexpr size_t CHUNK = 64 << 10;

}  // namespace

void append(std::vector<uint8_t>& out, const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  out.insert(out.end(), bytes, bytes + size);
}

bool read_bytes(std::span<const uint8_t>& bytes, void* data, size_t size) {
  if (bytes.size() < size) return false;
  if (size > 0) std::memcpy(data, bytes.data(), size);
  bytes = bytes.subspan(size);
  return true;
}

StateWriter::StateWriter(const OpenFile& file, uint64_t model) : file_(file), checksum_(model) {
  const StateHeader header{.model = model};
  is_written_ = file_.write_all({reinterpret_cast<const uint8_t*>(&header), sizeof(header)});
  InstructionSet set{};
  std::string_view(instruction_set()).copy(set.data(), set.size() - 1);
  write({reinterpret_cast<const uint8_t*>(set.data()), set.size()});
}

void StateWriter::write(std::span<const uint8_t> bytes) {
  checksum_ = fnv1a(bytes.data(), bytes.size(), checksum_);
  is_written_ = is_written_ && file_.write_all(bytes);
}

bool StateWriter::finish() {
  const uint64_t checksum = checksum_;
  write({reinterpret_cast<const uint8_t*>(&checksum), sizeof(checksum)});
  return is_written_;
}

Result<StateReader> StateReader::open(const std::string& path, uint64_t model) {
  auto file = OpenFile::regular(path.c_str());
  if (!file.ok()) return file.status();
  StateReader reader(path, std::move(*file), model);
  StateHeader header;
  if (!reader.read_exactly(&header, sizeof(header))) return reader.status();
  if (header.format != StateHeader::FORMAT) {
    const bool is_state = std::string_view(header.format.data(), header.format.size()).starts_with("hybridge-state");
    const bool is_older = is_state && header.format < StateHeader::FORMAT;
    return reader.invalid(
        is_older ? "was saved by an older version of hybridge; save it again"
                 : "is no saved state; name a file that a session of this model saved"
    );
  }
  if (header.model != model) return reader.invalid("is of another artifact; load it with that one");
  InstructionSet set;
  if (!reader.read(set.data(), set.size())) return reader.status();
  const auto end = std::ranges::find(set, '\0');
  if (std::any_of(set.begin(), end, [](unsigned char each) { return std::isalnum(each) == 0; }))
    return reader.invalid(DAMAGED);
  reader.instruction_set_.assign(set.begin(), end);
  return reader;
}

bool StateReader::read(void* data, size_t size) {
  if (!read_exactly(data, size)) return false;
  checksum_ = fnv1a(data, size, checksum_);
  return true;
}

bool StateReader::skip(size_t size) {
  if (size > left_) return refuse(invalid(DAMAGED));
  std::vector<uint8_t> chunk(std::min(size, CHUNK));
  for (size_t skipped = 0, count = 0; skipped < size; skipped += count) {
    count = std::min(chunk.size(), size - skipped);
    if (!read(chunk.data(), count)) return false;
  }
  return true;
}

bool StateReader::finish() {
  const uint64_t wanted = checksum_;
  uint64_t checksum = 0;
  return read_exactly(&checksum, sizeof(checksum)) && ((left_ == 0 && checksum == wanted) || refuse(invalid(DAMAGED)));
}

bool StateReader::go_back(size_t place) {
  if (!file_.seek(place)) return refuse(unreadable());
  left_ = size_ - place;
  return true;
}

StateReader::StateReader(std::string path, OpenFile file, uint64_t model)
    : path_(std::move(path)),
      file_(std::move(file)),
      size_(static_cast<size_t>(file_.status().st_size)),
      left_(size_),
      checksum_(model) {}

bool StateReader::read_exactly(void* data, size_t size) {
  if (!status_.ok()) return false;
  if (size > left_) return refuse(invalid(DAMAGED));
  if (!file_.read_all({static_cast<uint8_t*>(data), size})) return refuse(unreadable());
  left_ -= size;
  return true;
}

bool StateReader::refuse(Status why) {
  status_ = std::move(why);
  return false;
}

Status write_state(const std::string& path, uint64_t model, const std::function<void(StateWriter&)>& content) {
  const auto file = HYBRIDGE_TRY(ReplacedFile::begin(path));
  StateWriter out(file->file(), model);
  content(out);
  return out.finish() ? file->finish() : file->failed();
}

}  // namespace hybridge
