#include "picture_file.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "../text/picture_layout.h"
#include "../third_party/wuffs/wuffs-unsupported-snapshot.c"  // declarations alone; CMake compiles the rest as C
#include "failure.h"

namespace hybridge::cli {

namespace {

constexpr unsigned MOST_ORIENTATIONS = 8, ORIENTATION_TAG = 0x0112;
constexpr size_t PNG_SIGNATURE = 8, PNG_CHUNK = 12;  // length, type and checksum

using Bytes = std::span<const uint8_t>;

bool begins_with(Bytes data, std::string_view text) {
  return data.size() >= text.size() && std::equal(text.begin(), text.end(), data.begin(), [](char a, uint8_t b) {
           return static_cast<uint8_t>(a) == b;
         });
}

// The number that `count` bytes at an offset are; 0 beyond the end, where there is no file to tell.
uint32_t number_at(Bytes data, size_t at, size_t count, bool is_big_endian) {
  if (at > data.size() || data.size() - at < count) return 0;
  uint32_t number = 0;
  for (size_t i = 0; i < count; i++) number = number << 8 | data[is_big_endian ? at + i : at + count - 1 - i];
  return number;
}

// The orientation of EXIF's first folder, 1 to 8; 1 where it has none that can be read.
unsigned orientation_of(Bytes exif) {
  constexpr std::string_view HEAD("Exif\0\0", 6);
  if (begins_with(exif, HEAD)) exif = exif.subspan(HEAD.size());
  if (!begins_with(exif, "II") && !begins_with(exif, "MM")) return 1;
  const bool is_big = exif[0] == 'M';
  const size_t folder = number_at(exif, 4, 4, is_big), entries = number_at(exif, folder, 2, is_big);
  for (size_t i = 0; i < entries; i++) {
    const size_t entry = folder + 2 + 12 * i;
    if (number_at(exif, entry, 2, is_big) != ORIENTATION_TAG) continue;
    const uint32_t type = number_at(exif, entry + 2, 2, is_big);
    const size_t size = type == 1 ? 1 : type == 3 ? 2 : type == 4 ? 4 : 0;
    const uint32_t found = size == 0 ? 1 : number_at(exif, entry + 8, size, is_big);
    return 1 <= found && found <= MOST_ORIENTATIONS ? found : 1;
  }
  return 1;
}

// The EXIF of a JPEG, which comes before its first scan.
Bytes exif_of_jpeg(Bytes file) {
  for (size_t at = 2; at + 4 <= file.size();) {
    if (file[at] != 0xff) return {};
    const uint8_t marker = file[at + 1];
    if (marker == 0xff) {  // fills
      at++;
      continue;
    }
    if (marker == 0xda || marker == 0xd9) return {};
    const size_t size = number_at(file, at + 2, 2, true);
    const Bytes segment = file.subspan(at + 4, std::min(file.size() - at - 4, std::max<size_t>(size, 2) - 2));
    if (marker == 0xe1 && begins_with(segment, std::string_view("Exif\0\0", 6))) return segment;
    at += 2 + size;
  }
  return {};
}

// Leaves a PNG's critical chunks alone, which make its pixels: transparency is dropped so, and the frames of a film.
// Returns its EXIF.
std::vector<uint8_t> keep_critical_chunks(std::vector<uint8_t>& png) {
  std::vector<uint8_t> exif;
  size_t end = PNG_SIGNATURE;
  for (size_t at = PNG_SIGNATURE; at < png.size();) {
    const size_t size = PNG_CHUNK + std::min<size_t>(number_at(png, at, 4, true), MOST_PICTURE_BYTES);
    const Bytes chunk = Bytes(png).subspan(at, std::min(size, png.size() - at));
    at += chunk.size();
    const bool is_ancillary = chunk.size() >= PNG_CHUNK && (chunk[4] & 0x20) != 0;
    if (is_ancillary) {
      if (begins_with(chunk.subspan(4), "eXIf") && chunk.size() == size)
        exif.assign(chunk.begin() + 8, chunk.end() - 4);
      continue;
    }
    std::ranges::copy(chunk, png.begin() + static_cast<ptrdiff_t>(end));
    end += chunk.size();
  }
  png.resize(std::min(end, png.size()));
  return exif;
}

struct Colour {
  uint8_t rgb[3] = {0, 0, 0};
};

// Lets a GIF's first frame be opaque: its transparent colour is shown as the palette has it. Returns the colour of the
// pixels that the frame leaves out.
Colour make_opaque(std::vector<uint8_t>& gif) {
  const auto table = [&](size_t at, uint8_t flags) {
    return std::pair(at, size_t(flags & 0x80 ? 2 << (flags & 7) : 0));
  };
  if (gif.size() < 13) return {};
  auto [begin, colours] = table(13, gif[10]);
  size_t background = 0, at = begin + 3 * colours;
  while (at < gif.size() && gif[at] == 0x21) {  // an extension: its label, and blocks of which the last one is empty
    if (at + 6 < gif.size() && gif[at + 1] == 0xf9 && gif[at + 2] == 4) {
      background = gif[at + 3] & 1 ? gif[at + 6] : 0;
      gif[at + 3] &= 0xfe;
    }
    for (at += 2; at < gif.size() && gif[at] != 0; at += gif[at] + 1u) {}
    at++;
  }
  if (at + 10 > gif.size() || gif[at] != 0x2c) return {};
  if (gif[at + 9] & 0x80) std::tie(begin, colours) = table(at + 10, gif[at + 9]);
  const size_t from = begin + 3 * background;
  if (background >= colours || from + 3 > gif.size()) return {};
  return {{gif[from], gif[from + 1], gif[from + 2]}};
}

void check_decoded(const wuffs_base__status& status) {
  if (status.is_ok()) return;
  std::string reason = status.message();  // such as "#png: bad checksum"
  reason.erase(0, reason.find_first_not_of("#@$"));
  throw Failure("the picture is damaged or only a part of it is there (" + reason + "); get its file again.");
}

// Decodes the first frame of a file onto `background`.
DecodedPicture decode_frame(wuffs_base__image_decoder& decoder, std::vector<uint8_t>& file, const Colour& background) {
  wuffs_base__io_buffer source = wuffs_base__ptr_u8__reader(file.data(), file.size(), true);
  wuffs_base__image_config config = wuffs_base__null_image_config();
  check_decoded(decoder.decode_image_config(&config, &source));
  const uint32_t width = config.pixcfg.width(), height = config.pixcfg.height();
  const size_t pixels = size_t(width) * height;
  if (pixels == 0) throw Failure("the picture has no pixels; get its file again.");
  if (pixels > text::MOST_PICTURE_PIXELS) {
    throw Failure(
        "the picture has " + std::to_string(width) + " x " + std::to_string(height) +
        " pixels, and more than 67,108,864 are not decoded; make it smaller."
    );
  }
  const wuffs_base__pixel_format format = config.pixcfg.pixel_format();
  const bool is_grey16 = format.repr == WUFFS_BASE__PIXEL_FORMAT__Y_16BE ||
                         format.repr == WUFFS_BASE__PIXEL_FORMAT__Y_16LE;
  const bool is_opaque = format.transparency() == WUFFS_BASE__PIXEL_ALPHA_TRANSPARENCY__OPAQUE;
  const uint32_t wanted = is_grey16   ? WUFFS_BASE__PIXEL_FORMAT__BGRA_NONPREMUL_4X16LE
                          : is_opaque ? WUFFS_BASE__PIXEL_FORMAT__RGB
                                      : WUFFS_BASE__PIXEL_FORMAT__RGBA_NONPREMUL;
  const size_t bytes = is_grey16 ? 8 : is_opaque ? 3 : 4;  // of a pixel
  config.pixcfg.set(wanted, WUFFS_BASE__PIXEL_SUBSAMPLING__NONE, width, height);
  DecodedPicture picture = {std::vector<uint8_t>(pixels * bytes), width, height};
  std::vector<uint8_t>& rgb = picture.rgb;
  if (bytes < 8 && std::ranges::any_of(background.rgb, [](uint8_t each) { return each != 0; })) {
    for (size_t i = 0; i < rgb.size(); i++) rgb[i] = i % bytes < 3 ? background.rgb[i % bytes] : 255;
  }
  wuffs_base__pixel_buffer to = wuffs_base__null_pixel_buffer();
  check_decoded(to.set_from_slice(&config.pixcfg, wuffs_base__make_slice_u8(rgb.data(), rgb.size())));
  const size_t work_size = decoder.workbuf_len().max_incl;
  const std::unique_ptr<uint8_t[]> work(new uint8_t[work_size]);
  check_decoded(decoder.decode_frame_config(nullptr, &source));
  const wuffs_base__slice_u8 memory = wuffs_base__make_slice_u8(work.get(), work_size);
  check_decoded(decoder.decode_frame(&to, &source, WUFFS_BASE__PIXEL_BLEND__SRC, memory, nullptr));
  if (is_grey16) {  // Pillow takes 255 of 65,535 for white
    for (size_t i = 0; i < pixels; i++) std::fill_n(&rgb[3 * i], 3, rgb[8 * i + 1] != 0 ? uint8_t(255) : rgb[8 * i]);
  } else if (!is_opaque) {
    for (size_t i = 0; i < pixels; i++) std::copy_n(&rgb[4 * i], 3, &rgb[3 * i]);
  }
  rgb.resize(3 * pixels);
  return picture;
}

// Turns and mirrors a picture that lies as EXIF's orientation says.
DecodedPicture upright(DecodedPicture picture, unsigned orientation) {
  if (orientation == 1) return picture;
  const auto is_of = [=](std::initializer_list<unsigned> those) {
    return std::ranges::find(those, orientation) != those.end();
  };
  const bool mirrors_x = is_of({2, 3, 7, 8}), mirrors_y = is_of({3, 4, 6, 7}), swaps = orientation >= 5;
  DecodedPicture turned = {std::vector<uint8_t>(picture.rgb.size()), picture.width, picture.height};
  if (swaps) std::swap(turned.width, turned.height);
  uint8_t* to = turned.rgb.data();
  for (size_t y = 0; y < turned.height; y++) {
    for (size_t x = 0; x < turned.width; x++, to += 3) {
      const size_t column = swaps ? y : x, row = swaps ? x : y;
      const size_t from_x = mirrors_x ? picture.width - 1 - column : column;
      const size_t from_y = mirrors_y ? picture.height - 1 - row : row;
      std::copy_n(&picture.rgb[3 * (from_y * picture.width + from_x)], 3, to);
    }
  }
  return turned;
}

}  // namespace

DecodedPicture decode_picture(std::vector<uint8_t> file) {
  if (file.empty()) throw Failure("the picture's file is empty.");
  wuffs_base__image_decoder::unique_ptr decoder(nullptr);
  unsigned orientation = 1;
  Colour background;
  if (begins_with(file, "\x89PNG\r\n\x1a\n")) {
    if (file.size() > 28 && file[24] == 16 && file[25] == 0 &&
        file[28] == 1) {  // of which Wuffs drops the lower 8 bits
      throw Failure("hybridge-cli does not decode interlaced grey of 16 bits; save the picture without interlacing.");
    }
    orientation = orientation_of(keep_critical_chunks(file));
    decoder = wuffs_png__decoder::alloc_as__wuffs_base__image_decoder();
  } else if (begins_with(file, "\xff\xd8\xff")) {
    orientation = orientation_of(exif_of_jpeg(file));
    decoder = wuffs_jpeg__decoder::alloc_as__wuffs_base__image_decoder();
  } else if (begins_with(file, "GIF87a") || begins_with(file, "GIF89a")) {
    background = make_opaque(file);
    decoder = wuffs_gif__decoder::alloc_as__wuffs_base__image_decoder();
  } else if (begins_with(file, "BM")) {
    decoder = wuffs_bmp__decoder::alloc_as__wuffs_base__image_decoder();
  } else if (begins_with(file, "RIFF") && file.size() >= 12 && begins_with(Bytes(file).subspan(8), "WEBP")) {
    throw Failure("hybridge-cli does not decode WebP; convert the picture to PNG or JPEG.");
  } else {
    throw Failure("this is no picture, or of another format than JPEG, PNG, GIF, BMP; convert it.");
  }
  if (decoder == nullptr) throw std::bad_alloc();
  return upright(decode_frame(*decoder, file, background), orientation);
}

}  // namespace hybridge::cli
