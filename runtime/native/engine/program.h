// A program: methods over one state, called by name, and the buffers of that state.
//
// ../pte/program.cpp has those of ExecuTorch, c_api/program_table.h those of a caller's functions. Nothing above knows
// which it is.
#ifndef HYBRIDGE_ENGINE_PROGRAM_H
#define HYBRIDGE_ENGINE_PROGRAM_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/model_info.h"
#include "engine/picture.h"
#include "engine/status.h"

namespace hybridge {

class Program {
 public:
  virtual ~Program() = default;

  // Runs a method; its outputs lie in memory that the next call reuses.
  // PROGRAM_FAILED for whatever fails in there, with what the runtime logged about it.
  virtual Result<std::span<const Array>> call(std::string_view name, std::initializer_list<Array> inputs) = 0;

  // Numbers of a method's input; 0 where that is not known.
  virtual size_t input_count(std::string_view, size_t) const { return 0; }

  // Returns whether the last call, which failed, left the state as it was: because it did not begin, or undid what it
  // had done.
  bool has_changed_nothing() const { return has_changed_nothing_; }

  // One of the buffers that methods keep between calls, where it is now. PROGRAM_FAILED without one.
  virtual Result<Array> buffer(const std::string& name) = 0;

  // Gives memory of a buffer back to the system until it is written again, where that can be; it may have any numbers
  // then.
  virtual void give_back(Bytes) {}

  // All of them by name, in the program's order.
  const Names& names() const { return names_; }

  // Names of the bounded buffers: those that a rollback must restore, the length among them.
  const Names& bounded() const { return bounded_; }

  // OK if the methods of the model's delegate are there, otherwise why they are not.
  const Status& delegate() const { return delegate_; }

  // Returns whether the methods are still those that were opened.
  virtual bool is_unchanged() const { return true; }

  // The memory of a buffer that has to be there: its name is one of `names`.
  Bytes bytes(const std::string& name);

  // A buffer's only number, int64 [1]; null where there is none.
  int64_t* number(const std::string& name);

 protected:
  Names names_, bounded_;
  bool has_changed_nothing_ = true;
  Status delegate_ = Status(HYBRIDGE_UNSUPPORTED, "the model was exported for no delegate");
};

// The weights and sizes that sessions share.
class Model {
 public:
  // Maps model.pte of an artifact and follows every offset in it, but does not hash it: that is for whoever brings the
  // file. INVALID_ARTIFACT for what is none of this format version, UNREADABLE_FILE, MISSING_OPERATOR.
  static Result<std::shared_ptr<const Model>> load(const char* path);

  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  const ModelInfo& info() const { return info_; }

  // Tells this file from others, so that no saved state meets another model's weights.
  uint64_t fingerprint() const { return fingerprint_; }

  // Asked from now on, where the file was touched, whether its bytes are the same; for a model of a file.
  virtual void ask(std::function<bool()>) const {}

  // Methods over a state of their own; the model must outlive them. Fails where one does not load: MISSING_OPERATOR,
  // OUT_OF_MEMORY. BUSY where there is one state alone, and it is taken.
  virtual Result<std::unique_ptr<Program>> program() const = 0;

  // A picture for the texts of all sessions of this model; the same one where it is open already. See
  // `Picture::create`.
  Result<std::shared_ptr<const Picture>> picture(std::span<const uint8_t> rgb, size_t width, size_t height) const;

  // The open picture whose rows begin with this id; null without one.
  std::shared_ptr<const Picture> picture(int64_t first) const { return pictures_.find(first); }

  // The methods that a session needs, by their names there.
  Names methods() const;

 protected:
  Model(ModelInfo info, uint64_t fingerprint) : info_(std::move(info)), fingerprint_(fingerprint) {}

 private:
  ModelInfo info_;
  uint64_t fingerprint_;
  mutable Pictures pictures_;
};

}  // namespace hybridge

#endif
