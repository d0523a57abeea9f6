// The child of the target native-picture-files, by the driver's protocol: decodes each input as hybridge-cli does a
// picture's file. With the argument "pixels" the pixels follow the line of an input that is accepted: "accepted: WIDTH
// HEIGHT".
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/failure.h"
#include "cli/picture_file.h"
#include "text/picture_layout.h"

int main(int argc, char** argv) {
  const bool writes_pixels = argc > 1 && std::string_view(argv[1]) == "pixels";
  uint32_t length;
  while (std::fread(&length, sizeof length, 1, stdin) == 1) {
    std::vector<uint8_t> file(length);
    if (std::fread(file.data(), 1, length, stdin) != length) return 3;
    try {
      const auto picture = hybridge::cli::decode_picture(std::move(file));
      const size_t pixels = picture.width * picture.height;
      if (pixels == 0 || pixels > hybridge::text::MOST_PICTURE_PIXELS || picture.rgb.size() != 3 * pixels) {
        std::puts("wrong: other pixels than its sides have");
      } else {
        std::printf("accepted: %zu %zu\n", picture.width, picture.height);
        if (writes_pixels) std::fwrite(picture.rgb.data(), 1, picture.rgb.size(), stdout);
      }
    } catch (const hybridge::cli::Failure& failure) {
      std::printf("refused: %s\n", failure.what());
    }
    std::fflush(stdout);
  }
}
