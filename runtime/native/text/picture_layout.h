// How a picture of any size is resized and cut for a model's encoder, by the section `pictures` of an artifact's
// manifest.
//
// Sizes and tiles are those of transformers' processor of each model type. Pixels are uint8 RGB, row by row.
#ifndef HYBRIDGE_NATIVE_TEXT_PICTURE_LAYOUT_H
#define HYBRIDGE_NATIVE_TEXT_PICTURE_LAYOUT_H

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hybridge::text {

class Json;

// The manifest's section (`PictureDescription` of runtime/artifact/options.py says what each number means).
struct PictureDescription {
  std::string model_type;
  int64_t placeholder;
  size_t patch_size, merge, position_side;
  std::vector<int64_t> budgets;
  size_t min_tokens, max_tokens, tile_size, min_tiles, max_tiles;
  double tolerance;
  bool thumbnail, marks;

  // Reads the section. Throws TextError, also for a model type whose pictures are not known here, and numbers that no
  // encoder has.
  explicit PictureDescription(const Json& value);
  explicit PictureDescription(std::string_view json);

  // The special tokens around a picture, where it has marks that the chat template leaves out.
  std::pair<std::string, std::string> around() const;

  // Pixels along a side of the square that becomes one token.
  size_t unit() const { return patch_size * merge; }
};

struct PicturePart {
  std::vector<uint8_t> rgb;  // [height, width, 3]
  size_t width, height;
};

// The parts of a picture, as the encoder takes them: one, or the tiles row by row, and perhaps a small copy of the
// whole.
struct PictureLayout {
  std::vector<PicturePart> parts;
  size_t rows = 1, columns = 1;
};

// What chat templates write for a picture of this model type, where the model's processor has empty lines around it; or
// nothing.
std::string_view picture_place(std::string_view model_type);

// Pixels of a picture: 8192 x 8192. Nobody needs to decode one that has more.
inline constexpr size_t MOST_PICTURE_PIXELS = size_t(1) << 26;

// Throws TextError, before anything is allocated, for a picture without pixels, one with too many, and one that is too
// long and narrow for the encoder.
PictureLayout layout_of(
    const PictureDescription& description, std::span<const uint8_t> rgb, size_t width, size_t height
);

// Reads "512x256": a width and a height of at most 65,535 each; none if the text is something else.
std::optional<std::pair<size_t, size_t>> size_of(std::string_view text);

}  // namespace hybridge::text

#endif
