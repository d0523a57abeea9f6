// A loaded artifact: the program, whose weights all sessions share, and what it says of itself.
#ifndef HYBRIDGE_NATIVE_MODEL_H
#define HYBRIDGE_NATIVE_MODEL_H

#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hybridge/fnv1a.h>
#include <hybridge/mapped_file.h>
#include <hybridge/methods.h>
#include <hybridge/threads.h>

namespace hybridge {

// docs/artifact.md; lengths in tokens.
struct Facts {
  int64_t max_seq_len, vocab_size, prefill_chunk, snapshot_slots;
  std::vector<int64_t> verify_lens;  // of each verify method, ascending
  std::vector<int64_t> eos_ids;      // -1 for none
  std::vector<int64_t> bounded;      // places of the buffers without which a longer text cannot be cut back
  std::vector<int64_t> draft_blocks;  // of the drafter in the program, the text's last token included, ascending; none
  int64_t taps;                       // hidden states of each token that are put out
  std::vector<int64_t> draft_taps;    // places of the hidden states that it reads, among those that are put out
  bool draft_samples;                 // whether it takes noise and a temperature, too
  std::string method_prefix;         // of the methods' names in the program: none in format 2

  int64_t verify_len() const { return verify_lens.back(); }
  bool has_drafter() const { return !draft_blocks.empty(); }
};

class Model {
 public:
  using DataLoader = executorch::runtime::DataLoader;
  using Program = executorch::runtime::Program;

  // Maps model.pte of an artifact and follows every offset in it, but does not hash it: that is for whoever brings the file.
  static Result<std::shared_ptr<const Model>> load(const char* path) {
    auto file = MappedFile::open(path);
    if (!file.ok()) return file.error();
    const MappedFile* mapped = file->get();
    return load(std::move(file.get()), mapped);
  }

  // The same from anywhere. InvalidProgram for what is no artifact of this format version.
  static Result<std::shared_ptr<const Model>> load(std::unique_ptr<DataLoader> file) { return load(std::move(file), nullptr); }

  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const Program& program() const { return program_; }
  const Facts& facts() const { return facts_; }

  // Tells this file from others, so that no saved state meets another model's weights.
  uint64_t fingerprint() const { return fingerprint_; }

  // Whether nobody has written to the file since it was mapped; of what was brought from elsewhere nothing is known.
  bool is_unchanged() const { return mapped_ == nullptr || mapped_->is_unchanged(); }

  // The methods that a session needs.
  std::vector<std::string> methods() const {
    std::vector<std::string> names = {"prefill", "decode", "verify", "commit", "reset"};
    for (int64_t length : facts_.verify_lens) {
      if (length < facts_.verify_len()) names.push_back("verify_" + std::to_string(length));
    }
    for (int64_t block : facts_.draft_blocks) {
      names.push_back(block < facts_.draft_blocks.back() ? "draft_" + std::to_string(block) : "draft");
    }
    if (facts_.has_drafter()) names.push_back("draft_prefill");
    if (facts_.snapshot_slots > 0) names.insert(names.end(), {"snapshot", "restore"});
    return names;
  }

 private:
  static constexpr int64_t OLDEST_FORMAT = 2, NEWEST_FORMAT = 3;

  Model(
      std::unique_ptr<DataLoader> file, const MappedFile* mapped, Program program, Facts facts, uint64_t fingerprint)
      : file_(std::move(file)),
        mapped_(mapped),
        program_(std::move(program)),
        facts_(std::move(facts)),
        fingerprint_(fingerprint) {}

  static Result<std::shared_ptr<const Model>> load(std::unique_ptr<DataLoader> file, const MappedFile* mapped) {
    executorch::runtime::runtime_init();
    set_default_threads();
    auto program = Program::load(file.get(), Program::Verification::InternalConsistency);
    if (!program.ok()) return program.error();
    const uint64_t fingerprint = ET_UNWRAP(sample(*file));
    Facts facts = ET_UNWRAP(read(program.get()));
    return std::shared_ptr<const Model>(
        new Model(std::move(file), mapped, std::move(program.get()), std::move(facts), fingerprint));
  }

  static Result<Facts> read(const Program& program) {
    const int64_t format = ET_UNWRAP(constants(program, "hybridge_format_version")).front();
    if (format < OLDEST_FORMAT || format > NEWEST_FORMAT) return Error::InvalidProgram;
    Facts facts{
        .max_seq_len = ET_UNWRAP(constants(program, "get_max_seq_len")).front(),
        .vocab_size = ET_UNWRAP(constants(program, "get_vocab_size")).front(),
        .prefill_chunk = ET_UNWRAP(constants(program, "hybridge_prefill_chunk")).front(),
        .snapshot_slots = ET_UNWRAP(constants(program, "hybridge_snapshot_slots")).front(),
        .verify_lens = ET_UNWRAP(constants(program, "hybridge_verify_lens")),
        .eos_ids = ET_UNWRAP(constants(program, "get_eos_ids")),
        .bounded = ET_UNWRAP(constants(program, "hybridge_bounded")),
        .draft_blocks = ET_UNWRAP(constants_if_any(program, "hybridge_draft_blocks")),
        .taps = ET_UNWRAP(constants(program, "hybridge_taps")).front(),
        .draft_taps = ET_UNWRAP(constants_if_any(program, "hybridge_draft_taps")),
        .draft_samples = false,
        .method_prefix = format == 2 ? "" : "hybridge_",
    };
    const auto drafting = program.method_meta((facts.method_prefix + "draft").c_str());
    facts.draft_samples = drafting.ok() && drafting->num_inputs() > 3;
    const auto within = [](int64_t value, int64_t lowest, int64_t highest) { return lowest <= value && value <= highest; };
    const bool sane = within(facts.max_seq_len, 1, 1 << 20) && within(facts.vocab_size, 1, int64_t(1) << 31) &&
                      within(facts.prefill_chunk, 1, 4096) && within(facts.snapshot_slots, 0, 1024) &&
                      within(facts.verify_lens.front(), 1, 512) && within(facts.verify_lens.back(), 1, 512) &&
                      std::is_sorted(facts.verify_lens.begin(), facts.verify_lens.end());
    if (!sane || !has_sane_drafter(facts)) return Error::InvalidProgram;
    return facts;
  }

  static bool has_sane_drafter(const Facts& facts) {
    const auto& [blocks, read] = std::tie(facts.draft_blocks, facts.draft_taps);
    const auto is_tapped = [&](int64_t place) { return 0 <= place && place < facts.taps; };
    return blocks.empty() == read.empty() && std::is_sorted(blocks.begin(), blocks.end()) &&
           (blocks.empty() || (2 <= blocks.front() && blocks.back() <= 512)) && read.size() <= 512 &&
           std::all_of(read.begin(), read.end(), is_tapped);
  }

  // None where the program has no such method: it has no drafter, or was exported before it said so.
  static Result<std::vector<int64_t>> constants_if_any(const Program& program, const char* name) {
    return program.method_meta(name).ok() ? constants(program, name) : Result<std::vector<int64_t>>(std::vector<int64_t>());
  }

  // What a constant method answers: one whole number or several.
  static Result<std::vector<int64_t>> constants(const Program& program, const char* name) {
    const auto methods = ET_UNWRAP(Methods::load(program, {name}));
    const auto* method = ET_UNWRAP(methods->call(name));
    std::vector<int64_t> values;
    for (size_t i = 0; i < method->outputs_size(); ++i) {
      if (!method->get_output(i).isInt()) return Error::InvalidProgram;
      values.push_back(method->get_output(i).toInt());
    }
    if (values.empty()) return Error::InvalidProgram;
    return values;
  }

  // FNV-1a of the size and of pieces from everywhere: a look at all weights would read them into memory.
  static Result<uint64_t> sample(const DataLoader& file) {
    constexpr size_t PIECES = 1024, PIECE = 64;
    const size_t size = ET_UNWRAP(file.size());
    uint64_t hash = fnv1a(&size, sizeof(size));
    for (size_t i = 0; i < PIECES; ++i) {
      const size_t offset = size / PIECES * i;
      const auto piece = file.load(offset, std::min(PIECE, size - offset), DataLoader::SegmentInfo());
      if (!piece.ok()) return piece.error();
      hash = fnv1a(piece->data(), piece->size(), hash);
    }
    return hash;
  }

  std::unique_ptr<DataLoader> file_;  // outlives the program, which reads from it
  const MappedFile* mapped_;          // the same, where it is one of ours
  Program program_;
  Facts facts_;
  uint64_t fingerprint_;
};

}  // namespace hybridge

#endif
