// Pictures in a text: each of their rows, one for each token that they take, is an id below 0.
//
//   auto picture = model->picture(rgb, width, height);          // sides are multiples of the encoder's unit
//   std::vector<int64_t> prompt = {1, 6};
//   prompt.insert(prompt.end(), (*picture)->ids().begin(), (*picture)->ids().end());
//   session.prefill(prompt);                                     // encodes it, once as long as it is open
//
// The ids are made of the SHA-256 of its pixels, so that a text with another picture is another text: for checkpoints,
// for saved states and for whoever looks for a text's beginning. To read a picture's rows it must be open; a text that
// was read needs it no more.
#ifndef HYBRIDGE_ENGINE_PICTURE_H
#define HYBRIDGE_ENGINE_PICTURE_H

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/model_info.h"
#include "engine/status.h"

namespace hybridge {

class Picture {
 public:
  // rgb: uint8 [height, width, 3]. INVALID_PICTURE for sides that are no multiples of the encoder's unit, for more
  // tokens than the encoder takes, and for another square than its only one.
  static Result<std::shared_ptr<const Picture>> create(
      const Encoder& encoder, std::span<const uint8_t> rgb, size_t width, size_t height
  );

  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;

  // The rows of the picture in a text.
  Tokens ids() const { return ids_; }

  // uint8 [height, width, 3].
  std::span<const uint8_t> rgb() const { return rgb_; }
  size_t width() const { return columns_ * static_cast<size_t>(encoder_.patch); }
  size_t height() const { return rows_ * static_cast<size_t>(encoder_.patch); }

  // Returns how often it was encoded; once, unless the encoder failed.
  size_t encodings() const { return encodings_; }

  // Encodes the picture by the method that takes it, in place of what it was encoded to before. One thread at a time.
  // by_delegate: `call` runs it on an accelerator.
  Status encode(const CallMethod& call, bool by_delegate = false) const;

  bool is_encoded() const { return !embeddings_.empty(); }
  bool is_delegated() const { return is_delegated_; }

  // Returns whether the longest method of the encoder takes it, and no shorter one.
  bool is_longest() const { return budget() > encoder_.second_budget(); }

  // Floats of a row's embedding; 0 before it was encoded.
  size_t hidden() const { return hidden_; }

  // The embeddings [count, hidden] of rows from `begin` on, once it was encoded.
  std::span<const float> rows(size_t begin, size_t count) const;

  // Rope positions [axes, size] of rows from `begin` on, time, row and column, counted from the picture's first; 0
  // after `count`.
  Numbers grid(size_t begin, size_t count, size_t size) const;

  // Rope positions from the picture's first row to the text after it, where its rows have three axes.
  int64_t advance() const { return static_cast<int64_t>(std::max(columns_, rows_)) / encoder_.merge; }

  // The method that encodes pictures of at most this number of tokens, one of the encoder's.
  static std::string encoding(const Encoder& encoder, int64_t tokens);

 private:
  Picture(const Encoder& encoder, std::span<const uint8_t> rgb, size_t width, size_t height);

  int64_t budget() const;

  // Calls each(row, column) of the patches, those of a token's square after each other.
  template <typename Each>
  void in_order(Each each) const;

  std::vector<uint8_t> in_squares() const;

  // The weights of learned rows and columns of positions, [patches, side] each; 0 after the picture's own patches.
  std::pair<Floats, Floats> positions(size_t patches) const;

  // Row and column of each patch, [patches, 2]; 0 after the picture's own.
  Floats places(size_t patches) const;

  const Encoder encoder_;
  const size_t columns_, rows_;  // patches
  std::vector<int64_t> ids_;
  const std::vector<uint8_t> rgb_;
  mutable Floats embeddings_;
  mutable size_t hidden_ = 0;
  mutable bool is_delegated_ = false;
  mutable std::atomic<size_t> encodings_ = 0;  // which any thread may look at
};

// The open pictures of a model, by their first ids. Any thread.
class Pictures {
 public:
  // Returns the picture, or the one of the same pixels that is open already.
  std::shared_ptr<const Picture> add(std::shared_ptr<const Picture> picture);

  std::shared_ptr<const Picture> find(int64_t first) const;

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, std::weak_ptr<const Picture>> open_;
};

// Returns the end of the picture's rows that a text has on both sides of `end`, or `end` itself between two tokens: a
// text is not to be cut inside a picture.
size_t after_picture(Tokens text, size_t end);

// The ids with the placeholder in place of the rows of pictures, for drafters that know tokens alone.
Numbers as_tokens(Tokens ids, int64_t placeholder);

}  // namespace hybridge

#endif
