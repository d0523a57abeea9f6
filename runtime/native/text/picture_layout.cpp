#include "picture_layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "engine/resample.h"

#include "json.h"

namespace hybridge::text {
namespace {

struct Size {
  size_t width, height;

  size_t area() const { return width * height; }
};

double real(size_t count) { return static_cast<double>(count); }

[[noreturn]] void too_narrow(Size size, const std::string& reason) {
  throw TextError(
      "a picture of " + std::to_string(size.width) + " x " + std::to_string(size.height) +
      " pixels is too long and narrow: " + reason + "; crop it, or resize it to sides less unequal"
  );
}

// The multiple of the encoder's unit that is nearest to a side, the even one of two.
size_t nearest(size_t side, size_t unit) { return static_cast<size_t>(std::nearbyint(real(side) / real(unit))) * unit; }

// A side in as few units as hold it.
size_t whole_units(size_t side, size_t unit) { return (side + unit - 1) / unit * unit; }

// The size of a picture in one part. least: of a side that is not resized to fewer or more pixels; 0 makes such a
// picture larger.
Size whole_size(const PictureDescription& of, Size size, size_t least) {
  const size_t unit = of.unit(), fewest = of.min_tokens * unit * unit, most = of.max_tokens * unit * unit;
  const auto each_side = [&](auto&& resized) { return Size{resized(size.width), resized(size.height)}; };
  Size found = each_side([&](size_t side) { return std::max(least, nearest(side, unit)); });
  if (found.area() > most) {
    const double shrink = std::sqrt(real(size.area()) / real(most));
    found = each_side([&](size_t side) {
      return std::max(unit, static_cast<size_t>(std::floor(real(side) / shrink / real(unit))) * unit);
    });
  } else if (found.area() < fewest) {
    const double grow = std::sqrt(real(fewest) / real(size.area()));
    found = each_side([&](size_t side) {
      return static_cast<size_t>(std::ceil(real(side) * grow / real(unit))) * unit;
    });
  }
  const size_t tokens = found.area() / (unit * unit), largest = static_cast<size_t>(of.budgets.back());
  if (tokens > largest) {
    too_narrow(
        size,
        "it would take " + std::to_string(tokens) + " tokens at once, and the encoder takes " + std::to_string(largest)
    );
  }
  return found;
}

// Columns and rows of the tiles whose shape is nearest to the picture's; of equally near ones the last that has not
// twice the picture's pixels or more, from the fewest tiles on, or else the first.
Size grid(const PictureDescription& of, Size size) {
  Size best{1, 1};
  double nearest = std::numeric_limits<double>::infinity();
  for (size_t tiles = of.min_tiles; tiles <= of.max_tiles; ++tiles) {
    for (size_t columns = 1; columns <= tiles; ++columns) {
      if (tiles % columns != 0) continue;
      const Size found{columns, tiles / columns};
      const double away = std::abs(real(size.width) / real(size.height) - real(found.width) / real(found.height));
      const bool has_enough = real(size.area()) > 0.5 * real(of.tile_size * of.tile_size * tiles);
      if (away < nearest || (away == nearest && has_enough)) best = found, nearest = away;
    }
  }
  return best;
}

template <typename Kind>
PicturePart resized_to(std::span<const uint8_t> rgb, Size size, Size to) {
  return {resized<Kind>(rgb, size.width, size.height, to.width, to.height), to.width, to.height};
}

PicturePart cut(const PicturePart& from, size_t left, size_t top, size_t side) {
  PicturePart found{{}, side, side};
  found.rgb.reserve(side * side * 3);
  for (size_t row = top; row < top + side; ++row) {
    const auto begin = from.rgb.begin() + static_cast<ptrdiff_t>((row * from.width + left) * 3);
    found.rgb.insert(found.rgb.end(), begin, begin + static_cast<ptrdiff_t>(side * 3));
  }
  return found;
}

// LFM2-VL (transformers' Lfm2VlImageProcessor): a large picture becomes tiles and a small copy, another one part.
PictureLayout lfm2_vl(const PictureDescription& of, std::span<const uint8_t> rgb, Size size) {
  const Size whole = whole_size(of, size, of.unit());
  const auto side = [&](size_t length) { return std::max(of.patch_size, nearest(length, of.unit())); };
  const double most = real(of.max_tokens * of.unit() * of.unit()) * of.tolerance;
  const bool is_large = real(side(size.width)) * real(side(size.height)) > most;
  if (of.max_tiles == 1 || !is_large) return {{resized_to<Bilinear>(rgb, size, whole)}};
  const Size tiles = grid(of, size);
  const PicturePart large = resized_to<Bilinear>(rgb, size, {tiles.width * of.tile_size, tiles.height * of.tile_size});
  PictureLayout layout{{}, tiles.height, tiles.width};
  for (size_t row = 0; row < tiles.height; ++row) {
    for (size_t column = 0; column < tiles.width; ++column) {
      layout.parts.push_back(cut(large, column * of.tile_size, row * of.tile_size, of.tile_size));
    }
  }
  if (of.thumbnail && tiles.area() > 1) layout.parts.push_back(resized_to<Bilinear>(rgb, size, whole));
  return layout;
}

// Qwen3.5 and LFM3-VL (transformers' Qwen2VLImageProcessorPil): one part.
PictureLayout merged(const PictureDescription& of, std::span<const uint8_t> rgb, Size size) {
  constexpr size_t MOST_UNEQUAL = 200;  // the processor refuses more
  if (std::max(size.width, size.height) > MOST_UNEQUAL * std::min(size.width, size.height)) {
    too_narrow(size, "one side is more than " + std::to_string(MOST_UNEQUAL) + " times the other");
  }
  return {{resized_to<Bicubic>(rgb, size, whole_size(of, size, 0))}};
}

// Gemma 3 (transformers' Gemma3ImageProcessorPil): one square of one size, whatever the shape.
PictureLayout gemma3(const PictureDescription& of, std::span<const uint8_t> rgb, Size size) {
  return {{resized_to<BilinearFixed>(rgb, size, {of.tile_size, of.tile_size})}};
}

// Gemma 4 (transformers' Gemma4ImageProcessorPil): one part of as many tokens as fit; a line of tokens of a long and
// narrow picture.
PictureLayout gemma4(const PictureDescription& of, std::span<const uint8_t> rgb, Size size) {
  const size_t unit = of.unit(), most = of.max_tokens;
  const double factor = std::sqrt(real(most * unit * unit) / real(size.area()));
  const auto tokens = [&](size_t side) { return static_cast<size_t>(std::floor(factor * real(side) / real(unit))); };
  Size found{tokens(size.width), tokens(size.height)};
  if (found.height == 0) {
    found = {std::clamp<size_t>(size.width / size.height, 1, most), 1};
  } else if (found.width == 0) {
    found = {1, std::clamp<size_t>(size.height / size.width, 1, most)};
  }
  return {{resized_to<Bicubic>(rgb, size, {found.width * unit, found.height * unit})}};
}

// The largest canvas of whole tokens, at most `most` pixels, around the picture in one of its own shapes; one token of
// a picture that is too narrow for any.
Size canvas_within(Size size, size_t unit, size_t most) {
  Size best{unit, unit};
  size_t low = 1, high = size.height;
  while (low <= high) {
    const size_t height = (low + high) / 2;
    const Size tried{
        whole_units(std::max<size_t>(1, size.width * height / size.height), unit), whole_units(height, unit)
    };
    if (tried.area() <= most) {
      best = tried, low = height + 1;
    } else {
      high = height - 1;
    }
  }
  return best;
}

// GLM5-Next (transformers' Glm5NextImageProcessorPil): one part in the picture's own size or, if that has too few or
// too many tokens, in its own shape; black fills whole tokens up on the right and below.
PictureLayout glm5_next(const PictureDescription& of, std::span<const uint8_t> rgb, Size size) {
  const size_t unit = of.unit(), fewest = of.min_tokens * unit * unit, most = of.max_tokens * unit * unit;
  Size canvas{whole_units(size.width, unit), whole_units(size.height, unit)};
  if (canvas.area() < fewest) {
    const double grow = std::sqrt(real(fewest) / real(size.area()));
    const auto grown = [&](size_t side) {
      return whole_units(static_cast<size_t>(std::ceil(real(side) * grow)), unit);
    };
    canvas = {grown(size.width), grown(size.height)};
  }
  if (canvas.area() > most) canvas = canvas_within(size, unit, most);
  double scale = std::min(real(canvas.height) / real(size.height), real(canvas.width) / real(size.width));
  if (size.area() >= fewest) scale = std::min(1.0, scale);
  const auto content = [&](size_t side, size_t whole) {
    return std::clamp<size_t>(static_cast<size_t>(std::floor(real(side) * scale)), 1, whole);
  };
  const PicturePart picture = resized_to<Bicubic>(
      rgb, size, {content(size.width, canvas.width), content(size.height, canvas.height)}
  );
  PicturePart part{std::vector<uint8_t>(canvas.area() * 3), canvas.width, canvas.height};
  for (size_t row = 0; row < picture.height; ++row) {
    std::ranges::copy(
        std::span(picture.rgb).subspan(row * picture.width * 3, picture.width * 3),
        part.rgb.data() + row * part.width * 3
    );
  }
  return {{std::move(part)}};
}

// Nemotron-H Omni (transformers' NemotronH_Omni_Reasoning_V3ImageProcessor): one part, whose sides are rounded up as
// long as it fits.
PictureLayout nemotron_h_omni(const PictureDescription& of, std::span<const uint8_t> rgb, Size size) {
  const size_t square = of.merge * of.merge, fewest = of.min_tokens * square, most = of.max_tokens * square;
  Size found{size.width / of.patch_size + 1, size.height / of.patch_size + 1};
  const auto exactly = [&](size_t side) { return side % of.patch_size == 0 && side / of.patch_size % 2 == 0; };
  if (exactly(size.width)) found.width -= 1;  // halves are rounded to even numbers
  if (exactly(size.height)) found.height -= 1;
  const double shrink = std::min(std::sqrt(real(most) / real(found.area())), 1.0);
  found = {
      static_cast<size_t>(std::floor(shrink * real(found.width))),
      static_cast<size_t>(std::floor(shrink * real(found.height)))
  };
  if (found.area() == 0) too_narrow(size, "it would be less than " + std::to_string(of.patch_size) + " pixels across");
  if (most > fewest && found.area() < fewest) {
    const double grow = std::sqrt(real(fewest) / real(found.area()));
    found = {
        static_cast<size_t>(std::ceil(grow * real(found.width))),
        static_cast<size_t>(std::ceil(grow * real(found.height)))
    };
  }
  const auto whole_squares = [&](size_t& side, const size_t& other) {
    const size_t left = side % of.merge;
    if (left == 0) return;
    side = (side + of.merge - left) * other <= most ? side + of.merge - left : std::max(of.merge, side - left);
  };
  whole_squares(found.height, found.width);
  whole_squares(found.width, found.height);
  if (found.area() > most)
    too_narrow(size, "it would take " + std::to_string(found.area() / square) + " tokens at once");
  return {{resized_to<Unclamped>(rgb, size, {found.width * of.patch_size, found.height * of.patch_size})}};
}

// begin, end: the special tokens around a picture, if it has marks. most_side: learned positions along a side. place:
// what chat templates write for a picture, where empty lines are around it in the text.
struct Preparation {
  std::string_view model_type;
  PictureLayout (*layout)(const PictureDescription&, std::span<const uint8_t>, Size);
  std::string_view begin = "", end = "";
  size_t most_side = 256;
  std::string_view place = "";
};

constexpr std::array<Preparation, 7> PREPARATIONS = {{
    {"lfm2_vl", lfm2_vl, "<|image_start|>", "<|image_end|>"},
    {"lfm3_vl", merged},
    {"qwen3_5", merged},
    {"gemma3", gemma3, "<start_of_image>", "<end_of_image>", 4096 * 8, "<start_of_image>"},
    {"gemma4", gemma4, "<|image>", "<image|>", 4096 * 8},
    {"glm5_next", glm5_next},
    {"nemotron_h_omni", nemotron_h_omni, "<img>", "</img>", 4096 * 8},
}};

// Throws TextError for a model type whose pictures are not known here.
const Preparation& preparation(const Json& model_type) {
  const auto found = std::ranges::find(PREPARATIONS, model_type.string(), &Preparation::model_type);
  if (found == PREPARATIONS.end()) model_type.fail("a model type whose pictures are known here");
  return *found;
}

const Preparation& preparation(const PictureDescription& description) {
  return *std::ranges::find(PREPARATIONS, description.model_type, &Preparation::model_type);
}

size_t positive(const Json& value, size_t most) {
  const uint64_t read = value.integer(most);
  if (read == 0) value.fail("an integer above 0");
  return static_cast<size_t>(read);
}

}  // namespace

std::string_view picture_place(std::string_view model_type) {
  const auto found = std::ranges::find(PREPARATIONS, model_type, &Preparation::model_type);
  return found != PREPARATIONS.end() ? found->place : "";
}

PictureDescription::PictureDescription(std::string_view json)
    : PictureDescription(JsonDocument(json).root("pictures")) {}

PictureDescription::PictureDescription(const Json& value)
    : model_type(preparation(value["model_type"]).model_type),
      placeholder(value["placeholder"].signed_integer()),
      patch_size(positive(value["patch_size"], 64)),
      merge(positive(value["merge"], 8)),
      position_side(positive(value["position_side"], preparation(value["model_type"]).most_side)),
      min_tokens(positive(value["min_tokens"], 4096)),
      max_tokens(positive(value["max_tokens"], 4096)),
      tile_size(positive(value["tile_size"], 4096)),
      min_tiles(positive(value["min_tiles"], 256)),
      max_tiles(positive(value["max_tiles"], 256)),
      tolerance(value["tolerance"].number()),
      thumbnail(value["thumbnail"].boolean()),
      marks(value["marks"].boolean()) {
  value["budgets"].each([&](const Json& each) { budgets.push_back(static_cast<int64_t>(positive(each, 4096))); });
  if (budgets.empty() || !std::ranges::is_sorted(budgets)) value["budgets"].fail("numbers of tokens in order");
  if (min_tokens > max_tokens || min_tiles > max_tiles)
    value.fail("a description whose least numbers are at most its largest");
  if (!(0.1 <= tolerance && tolerance <= 100)) value["tolerance"].fail("a number from 0.1 to 100");
  const size_t across = tile_size / unit();
  const bool fits = tile_size % unit() == 0 && across * across <= static_cast<size_t>(budgets.back());
  if (max_tiles > 1 && !fits) value["tile_size"].fail("the size of a tile that the encoder takes");
}

std::pair<std::string, std::string> PictureDescription::around() const {
  const Preparation& own = preparation(*this);
  return {std::string(own.begin), std::string(own.end)};
}

PictureLayout layout_of(
    const PictureDescription& description, std::span<const uint8_t> rgb, size_t width, size_t height
) {
  if (width == 0 || height == 0) throw TextError("the picture has no pixels");
  if (width > MOST_PICTURE_PIXELS || height > MOST_PICTURE_PIXELS || width * height > MOST_PICTURE_PIXELS) {
    throw TextError(
        "the picture has " + std::to_string(width) + " x " + std::to_string(height) + " pixels, and more than " +
        std::to_string(MOST_PICTURE_PIXELS) + " are not taken; make it smaller"
    );
  }
  if (rgb.size() != width * height * 3)
    throw TextError("the picture has another number of bytes than 3 for each pixel");
  return preparation(description).layout(description, rgb, {width, height});
}

std::optional<std::pair<size_t, size_t>> size_of(std::string_view text) {
  constexpr uint16_t NONE = 0;
  uint16_t width = NONE, height = NONE;
  const char* const end = text.data() + text.size();
  const auto across = std::from_chars(text.data(), end, width);
  if (across.ec != std::errc() || across.ptr == end || *across.ptr != 'x') return std::nullopt;
  const auto down = std::from_chars(across.ptr + 1, end, height);
  if (down.ec != std::errc() || down.ptr != end || width == NONE || height == NONE) return std::nullopt;
  return std::pair<size_t, size_t>(width, height);
}

}  // namespace hybridge::text
