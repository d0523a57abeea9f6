// A picture's file as pixels: JPEG, PNG, GIF (its first frame) and BMP, decoded by Wuffs in third_party, upright and in
// RGB as Python's Pillow makes them of it. Alpha is dropped, and grey and CMYK are converted.
#ifndef HYBRIDGE_NATIVE_CLI_PICTURE_FILE_H
#define HYBRIDGE_NATIVE_CLI_PICTURE_FILE_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hybridge::cli {

constexpr size_t MOST_PICTURE_BYTES = size_t(64) << 20;  // of a file

struct DecodedPicture {
  std::vector<uint8_t> rgb;  // [height, width, 3]
  size_t width, height;
};

// file: its bytes, MOST_PICTURE_BYTES at most. Throws Failure, before it decodes, for more than MOST_PICTURE_PIXELS
// pixels; and for what is damaged, cut off or of another format.
DecodedPicture decode_picture(std::vector<uint8_t> file);

}  // namespace hybridge::cli

#endif
