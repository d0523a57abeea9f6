#include "engine/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <iterator>
#include <ranges>
#include <string>
#include <utility>

#include "engine/state_file.h"
#include "engine/state_layout.h"

namespace hybridge {

namespace {

Status not_ours() {
  return Status(
      HYBRIDGE_INVALID_SAVED_STATE, "this is no checkpoint of this artifact: it is damaged, or of another one"
  );
}

// Reads hidden states up to the end of a part, if it has any.
bool read_unread(Part part, Checkpoint& checkpoint) {
  uint64_t width = 0;
  if (part.empty()) return true;
  if (!read_bytes(part, &width, sizeof(width)) || part.empty() || part.size() % sizeof(float) != 0) return false;
  checkpoint.unread = {Floats(part.size() / sizeof(float)), width};
  return read_bytes(part, checkpoint.unread.floats.data(), part.size());
}

}  // namespace

uint64_t next_id() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

RowSegment::RowSegment(
    std::shared_ptr<RowSegment> before, std::vector<int64_t> added, std::vector<size_t> filled,
    std::vector<std::vector<uint8_t>> copies, Delegated runs
)
    : parent(std::move(before)),
      tokens(std::move(added)),
      length((parent ? parent->length : 0) + tokens.size()),
      counts(std::move(filled)),
      rows(std::move(copies)),
      delegated(std::move(runs)) {}

RowSegment::~RowSegment() {
  for (auto next = std::move(parent); next != nullptr && next.use_count() == 1;) next = std::move(next->parent);
}

size_t RowSegment::bytes() const {
  size_t sum = tokens.size() * sizeof(int64_t);
  for (const auto& each : rows) sum += each.size();
  return sum;
}

std::vector<std::shared_ptr<RowSegment>> chain(std::shared_ptr<RowSegment> last) {
  std::vector<std::shared_ptr<RowSegment>> segments;
  for (; last != nullptr; last = last->parent) segments.push_back(last);
  std::ranges::reverse(segments);
  return segments;
}

std::vector<int64_t> Checkpoint::tokens() const {
  std::vector<int64_t> all;
  for (const auto& each : chain(segment)) all.insert(all.end(), each->tokens.begin(), each->tokens.end());
  return all;
}

Delegated Checkpoint::delegated() const {
  Delegated all;
  for (const auto& each : chain(segment)) {
    for (size_t i = 0; i + 1 < each->delegated.size(); i += 2) add_run(all, each->delegated[i], each->delegated[i + 1]);
  }
  return all;
}

bool Checkpoint::begins(std::span<const int64_t> text) const {
  if (text.size() < length()) return false;
  for (const RowSegment* each = segment.get(); each != nullptr; each = each->parent.get()) {
    const auto there = text.subspan(each->length - each->tokens.size(), each->tokens.size());
    if (!std::ranges::equal(each->tokens, there)) return false;
  }
  return true;
}

size_t Checkpoint::bounded_bytes() const {
  size_t sum = unread.floats.size() * sizeof(float);
  for (const auto& each : bounded) sum += each.size();
  return sum;
}

size_t Checkpoint::shared_bytes() const {
  size_t sum = 0;
  for (const RowSegment* each = segment->parent.get(); each != nullptr; each = each->parent.get()) sum += each->bytes();
  return sum;
}

std::vector<uint8_t> encode(const RowSegment& segment) {
  std::vector<uint8_t> out;
  const auto append_number = [&](uint64_t number) { append(out, &number, sizeof(number)); };
  append_number(segment.tokens.size());
  append(out, segment.tokens.data(), segment.tokens.size() * sizeof(int64_t));
  for (size_t i = 0; i < segment.rows.size(); ++i) {
    append_number(segment.counts[i]);
    append(out, segment.rows[i].data(), segment.rows[i].size());
  }
  append(out, segment.delegated.data(), segment.delegated.size() * sizeof(int64_t));
  return out;
}

std::vector<uint8_t> encode(const Checkpoint& checkpoint) {
  std::vector<uint8_t> out;
  for (const auto& each : checkpoint.bounded) append(out, each.data(), each.size());
  const auto& [floats, width] = checkpoint.unread;
  const uint64_t size = width;
  if (!floats.empty()) append(out, &size, sizeof(size));
  append(out, floats.data(), floats.size() * sizeof(float));
  return out;
}

Checkpoints::Checkpoints(Program& program, const RowBuffers& buffers) : program_(&program), buffers_(buffers) {
  std::ranges::copy_if(program.bounded(), std::back_inserter(bounded_), [](const auto& name) {
    return name != "length";
  });
}

std::shared_ptr<const Checkpoint> Checkpoints::make(
    uint64_t model, std::span<const int64_t> text, const Delegated& delegated, HiddenRows unread
) {
  auto made = std::make_shared<Checkpoint>(
      model, std::vector<std::vector<uint8_t>>(), segment_of(text, delegated), std::move(unread)
  );
  for (const std::string& name : bounded_) {
    const auto bytes = program_->bytes(name);
    made->bounded.emplace_back(bytes.begin(), bytes.end());
  }
  remember(made->segment);
  return made;
}

void Checkpoints::restore(const Checkpoint& checkpoint) {
  const auto ours = chain(last()), wanted = chain(checkpoint.segment);
  const auto [mine, missing] = std::ranges::mismatch(ours, wanted);
  known_.clear();  // until all rows are there
  for (const auto& segment : std::ranges::subrange(missing, wanted.end())) {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const auto& rows = segment->rows[i];
      buffers_[i].write(buffers_.memory(i), segment->counts[i] - rows.size() / buffers_[i].row_bytes(), rows);
    }
  }
  for (size_t i = 0; i < bounded_.size(); ++i)
    std::ranges::copy(checkpoint.bounded[i], program_->bytes(bounded_[i]).begin());
  remember(checkpoint.segment);
}

Result<std::shared_ptr<const Checkpoint>> Checkpoints::read(
    uint64_t model, const ModelInfo& info, std::shared_ptr<RowSegment> parent, std::span<const Part> parts
) const {
  if (parts.empty()) return not_ours();
  for (const Part& part : parts.first(parts.size() - 1))
    parent = HYBRIDGE_TRY(segment_of(part, info, std::move(parent)));
  auto made = std::make_shared<Checkpoint>(model, std::vector<std::vector<uint8_t>>(), std::move(parent));
  Part rest = parts.back();
  for (const std::string& name : bounded_) {
    auto& added = made->bounded.emplace_back(program_->bytes(name).size());
    if (!read_bytes(rest, added.data(), added.size())) return not_ours();
  }
  if (made->segment == nullptr || !read_unread(rest, *made) || !made->unread.fits(info, made->length()) || !fits(*made))
    return not_ours();
  return std::shared_ptr<const Checkpoint>(std::move(made));
}

void Checkpoints::go_back(size_t length) {
  const auto unchanged = buffers_.filled(length, buffers_.drafted(length));
  std::erase_if(known_, [&](const auto& each) {
    const auto segment = each.lock();
    return segment == nullptr || segment->length >= length ||
           !std::ranges::equal(segment->counts, unchanged, std::less_equal());
  });
}

std::shared_ptr<RowSegment> Checkpoints::last() const {
  for (const auto& each : std::views::reverse(known_)) {
    if (auto segment = each.lock()) return segment;
  }
  return nullptr;
}

void Checkpoints::remember(const std::shared_ptr<RowSegment>& segment) {
  const auto all = chain(segment);
  known_.assign(all.begin(), all.end());
}

std::shared_ptr<RowSegment> Checkpoints::segment_of(std::span<const int64_t> text, const Delegated& delegated) const {
  auto parent = last();
  auto counts = buffers_.filled(text.size(), buffers_.drafted(text.size()));
  if (parent != nullptr && parent->length == text.size() && parent->counts == counts) return parent;
  std::vector<std::vector<uint8_t>> rows;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const size_t start = parent != nullptr ? std::min(parent->counts[i], counts[i]) : 0;
    rows.push_back(buffers_[i].read(buffers_.memory(i), start, counts[i]));
  }
  const size_t known = parent != nullptr ? parent->length : 0;
  std::vector<int64_t> tokens(text.begin() + static_cast<ptrdiff_t>(known), text.end());
  Delegated runs = between(delegated, static_cast<int64_t>(known), static_cast<int64_t>(text.size()));
  return std::make_shared<RowSegment>(
      std::move(parent), std::move(tokens), std::move(counts), std::move(rows), std::move(runs)
  );
}

Result<std::shared_ptr<RowSegment>> Checkpoints::segment_of(
    Part part, const ModelInfo& info, std::shared_ptr<RowSegment> parent
) const {
  const size_t known = parent ? parent->length : 0, longest = static_cast<size_t>(info.max_seq_len);
  uint64_t added = 0;
  if (!read_bytes(part, &added, sizeof(added)) || added > longest - known) return not_ours();
  std::vector<int64_t> tokens(added);
  bool is_whole = read_bytes(part, tokens.data(), added * sizeof(int64_t));
  for (const int64_t token : tokens) is_whole = is_whole && info.is_id(token);
  const auto most = buffers_.filled(longest, longest);
  std::vector<size_t> counts;
  std::vector<std::vector<uint8_t>> rows;
  for (size_t i = 0; is_whole && i < buffers_.size(); ++i) {
    const uint64_t before = parent ? parent->counts[i] : 0;
    uint64_t count = 0;
    is_whole = read_bytes(part, &count, sizeof(count)) && before <= count && count <= most[i] &&
               (count - before) * buffers_[i].row_bytes() <= part.size();
    if (!is_whole) break;
    counts.push_back(count);
    rows.emplace_back((count - before) * buffers_[i].row_bytes());
    is_whole = read_bytes(part, rows.back().data(), rows.back().size());
  }
  Delegated runs(info.has_delegate() ? part.size() / sizeof(int64_t) : 0);
  is_whole = is_whole && read_bytes(part, runs.data(), runs.size() * sizeof(int64_t)) && part.empty();
  if (!is_whole || !are_runs(runs, static_cast<int64_t>(known), static_cast<int64_t>(known + added))) return not_ours();
  return std::make_shared<RowSegment>(
      std::move(parent), std::move(tokens), std::move(counts), std::move(rows), std::move(runs)
  );
}

bool Checkpoints::fits(const Checkpoint& checkpoint) const {
  size_t drafted = checkpoint.length();
  for (size_t i = 0; i < bounded_.size(); ++i) {
    const bool is_drafter = bounded_[i] == buffers_.drafter(), is_behind = StateLayout::is_rope_delta(bounded_[i]);
    if (!is_drafter && !is_behind) continue;
    float read = is_drafter ? -1 : 1;
    if (checkpoint.bounded[i].size() == sizeof(read)) std::memcpy(&read, checkpoint.bounded[i].data(), sizeof(read));
    if (!StateLayout::is_drafted(is_drafter ? read : -read, checkpoint.length())) return false;
    if (is_drafter) drafted = static_cast<size_t>(read);
  }
  return checkpoint.segment->counts == buffers_.filled(checkpoint.length(), drafted);
}

}  // namespace hybridge
