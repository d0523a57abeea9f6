// Prepares pictures: reads from its input the size of a description and the description, then width, height and pixels
// of each picture; writes rows, columns and the number of parts, and width, height and pixels of each; or 0, and the
// size of a refusal and the refusal. Numbers are uint64.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "text/error.h"
#include "text/picture_layout.h"

static bool read(void* to, size_t size) { return std::fread(to, 1, size, stdin) == size; }

static void write(std::initializer_list<uint64_t> numbers) {
  std::fwrite(numbers.begin(), sizeof(uint64_t), numbers.size(), stdout);
}

int main() {
  uint64_t size = 0, sides[2];
  if (!read(&size, sizeof(size))) return 2;
  std::string json(size, '\0');
  if (!read(json.data(), json.size())) return 2;
  const hybridge::text::PictureDescription description(json);
  while (read(sides, sizeof(sides))) {
    // One that is refused by its size has no pixels after it.
    std::vector<uint8_t> rgb(sides[0] * sides[1] <= hybridge::text::MOST_PICTURE_PIXELS ? sides[0] * sides[1] * 3 : 0);
    if (!read(rgb.data(), rgb.size())) return 2;
    try {
      const auto layout = hybridge::text::layout_of(description, rgb, sides[0], sides[1]);
      write({layout.rows, layout.columns, layout.parts.size()});
      for (const auto& part : layout.parts) {
        write({part.width, part.height});
        std::fwrite(part.rgb.data(), 1, part.rgb.size(), stdout);
      }
    } catch (const hybridge::text::TextError& error) {
      const std::string why = error.what();
      write({0, why.size()});
      std::fwrite(why.data(), 1, why.size(), stdout);
    }
    std::fflush(stdout);
  }
}
