// A program: methods over one state, called by name, and the buffers of that state.
//
// hybridge/pte.h has those of ExecuTorch, c_api/program_table.h those of a caller's functions. Nothing above knows which it is.
#ifndef HYBRIDGE_NATIVE_PROGRAM_H
#define HYBRIDGE_NATIVE_PROGRAM_H

#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/core/result.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hybridge {

using executorch::runtime::Error;
using executorch::runtime::Result;
using Type = executorch::aten::ScalarType;
using Shape = std::vector<int64_t>;
using Bytes = std::span<uint8_t>;
using Names = std::vector<std::string>;

// Numbers in memory that somebody else keeps.
struct Array {
  Type type = Type::Byte;
  Shape shape;
  void* data = nullptr;

  size_t count() const { return std::accumulate(shape.begin(), shape.end(), size_t(1), [](size_t all, int64_t n) { return all * static_cast<size_t>(n); }); }
  size_t element() const { return executorch::runtime::elementSize(type); }
  Bytes bytes() const { return {static_cast<uint8_t*>(data), count() * element()}; }
  size_t extent(size_t axis) const { return static_cast<size_t>(shape[axis]); }

  // Its first number; null where it has none of this type.
  int64_t* integer() const { return type == Type::Long && count() > 0 ? static_cast<int64_t*>(data) : nullptr; }
  float* real() const { return type == Type::Float && count() > 0 ? static_cast<float*>(data) : nullptr; }
};

using Numbers = std::vector<int64_t>;
using Floats = std::vector<float>;

// Views of a method's inputs, for the time of the call.
inline Array input(const Numbers& values, Shape shape) {
  return {Type::Long, std::move(shape), const_cast<int64_t*>(values.data())};
}
inline Array input(const Floats& values, Shape shape) {
  return {Type::Float, std::move(shape), const_cast<float*>(values.data())};
}
inline Array number(const int64_t& value) { return {Type::Long, {1}, const_cast<int64_t*>(&value)}; }

// docs/artifact.md; lengths in tokens.
struct Facts {
  int64_t max_seq_len, vocab_size, prefill_chunk, snapshot_slots;
  std::vector<int64_t> verify_lens;  // of each verify method, ascending
  std::vector<int64_t> eos_ids;
  std::vector<int64_t> draft_blocks = {};  // of the drafter in the program, the text's last token included, ascending; none
  int64_t taps = 0;                        // hidden states of each token that are put out
  std::vector<int64_t> draft_taps = {};    // places of the hidden states that it reads, among those that are put out
  bool draft_samples = false;              // whether it takes noise and a temperature, too
  bool fixed_shapes = true;                // whether methods take blocks of the exported sizes alone, padded
  size_t row_axis = 1;                     // of the buffers that have a row for each position

  int64_t verify_len() const { return verify_lens.back(); }
  bool has_drafter() const { return !draft_blocks.empty(); }

  // Returns whether sizes and places are possible.
  bool are_sane() const {
    const auto within = [](int64_t value, int64_t lowest, int64_t highest) { return lowest <= value && value <= highest; };
    const auto is_tapped = [&](int64_t place) { return 0 <= place && place < taps; };
    const auto ascends = [](const auto& numbers) { return std::is_sorted(numbers.begin(), numbers.end()); };
    const bool has_sizes = within(max_seq_len, 1, 1 << 20) && within(vocab_size, 1, int64_t(1) << 31) &&
                           within(prefill_chunk, 1, 4096) && within(snapshot_slots, 0, 1024) && !verify_lens.empty() &&
                           within(verify_lens.front(), 1, 512) && within(verify_lens.back(), 1, 512) && ascends(verify_lens);
    const bool drafts = draft_blocks.empty() || (2 <= draft_blocks.front() && draft_blocks.back() <= 512);
    return has_sizes && drafts && ascends(draft_blocks) && draft_blocks.empty() == draft_taps.empty() &&
           within(taps, 0, 512) && draft_taps.size() <= 512 && std::all_of(draft_taps.begin(), draft_taps.end(), is_tapped);
  }
};

class Program {
 public:
  virtual ~Program() = default;

  // Runs a method; its outputs lie in memory that the next call reuses.
  // NotFound without such a method, Internal for whatever fails in there, so that nobody takes it for a refusal; the runtime has
  // then logged what it was.
  virtual Result<std::span<const Array>> call(std::string_view name, std::initializer_list<Array> inputs) = 0;

  // One of the buffers that methods keep between calls, where it is now. NotFound without one.
  virtual Result<Array> buffer(const std::string& name) = 0;

  // All of them by name, in the program's order.
  const Names& names() const { return names_; }

  // Names of the bounded buffers: those that a rollback must restore, the length among them.
  const Names& bounded() const { return bounded_; }

  // The memory of the whole state, in pieces.
  virtual std::vector<Bytes> memory() = 0;

  // Returns whether the methods are still those that were opened.
  virtual bool is_unchanged() const { return true; }

  // The memory of a buffer that has to be there: its name is one of `names`.
  Bytes bytes(const std::string& name) {
    const auto found = buffer(name);
    return found.ok() ? found->bytes() : Bytes();
  }

  // A buffer's only number, int64 [1]; null where there is none.
  int64_t* number(const std::string& name) {
    const auto found = buffer(name);
    return found.ok() && found->count() == 1 ? found->integer() : nullptr;
  }

 protected:
  Names names_, bounded_;
};

// The weights and sizes that sessions share.
class Model {
 public:
  // Maps model.pte of an artifact (hybridge/pte.h).
  static Result<std::shared_ptr<const Model>> load(const char* path);

  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  const Facts& facts() const { return facts_; }

  // Tells this file from others, so that no saved state meets another model's weights.
  uint64_t fingerprint() const { return fingerprint_; }

  // Asked from now on, where the file was touched, whether its bytes are the same; for a model of a file.
  virtual void ask(std::function<bool()>) const {}

  // Methods over a state of their own; the model must outlive them. Fails where one does not load: OperatorMissing,
  // MemoryAllocationFailed.
  virtual Result<std::unique_ptr<Program>> program() const = 0;

  // The methods that a session needs, by their names there.
  Names methods() const {
    Names names = {"prefill", "decode", "verify", "commit", "reset"};
    for (const int64_t length : facts_.verify_lens) {
      if (length < facts_.verify_len()) names.push_back("verify_" + std::to_string(length));
    }
    for (const int64_t block : facts_.draft_blocks) {
      names.push_back(block < facts_.draft_blocks.back() ? "draft_" + std::to_string(block) : "draft");
    }
    if (facts_.has_drafter()) names.push_back("draft_prefill");
    if (facts_.snapshot_slots > 0) names.insert(names.end(), {"snapshot", "restore"});
    return names;
  }

 protected:
  Model(Facts facts, uint64_t fingerprint) : facts_(std::move(facts)), fingerprint_(fingerprint) {}

 private:
  Facts facts_;
  uint64_t fingerprint_;
};

}  // namespace hybridge

#endif
