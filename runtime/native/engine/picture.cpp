#include "engine/picture.h"

#include <cstring>

#include "engine/logits.h"
#include "engine/resample.h"
#include "engine/sha256.h"

namespace hybridge {

namespace {

// float32 [size, side]: the weights of `side` learned positions at each of `size` places, by bilinear interpolation
// with antialiasing, as PyTorch computes it without aligned corners.
Floats interpolation(size_t size, size_t side) {
  Floats weights(size * side, 0.0f);
  const auto places = taps(side, size, 1, triangle);
  for (size_t place = 0; place < size; ++place) {
    std::ranges::transform(
        places[place].weights, weights.begin() + static_cast<ptrdiff_t>(place * side + places[place].first),
        [](double weight) { return static_cast<float>(weight); }
    );
  }
  return weights;
}

// The same with the first and the last learned position on the ends, between two of them at a time.
Floats interpolation_to_corners(size_t size, size_t side) {
  Floats weights(size * side, 0.0f);
  for (size_t place = 0; place < size; ++place) {
    const float at = static_cast<float>(place * (side - 1)) / static_cast<float>(std::max<size_t>(size - 1, 1));
    const auto low = static_cast<size_t>(at);
    const float share = at - static_cast<float>(low);
    weights[place * side + low] = 1.0f - share;
    if (low + 1 < side) weights[place * side + low + 1] = share;
  }
  return weights;
}

}  // namespace

template <typename Each>
void Picture::in_order(Each each) const {
  const auto merge = static_cast<size_t>(encoder_.merge);
  for (size_t top = 0; top < rows_; top += merge)
    for (size_t left = 0; left < columns_; left += merge)
      for (size_t row = top; row < top + merge; ++row)
        for (size_t column = left; column < left + merge; ++column) each(row, column);
}

Result<std::shared_ptr<const Picture>> Picture::create(
    const Encoder& encoder, std::span<const uint8_t> rgb, size_t width, size_t height
) {
  const auto unit = static_cast<size_t>(encoder.unit()), most = static_cast<size_t>(encoder.budgets.back());
  const bool fits = width > 0 && height > 0 && width % unit == 0 && height % unit == 0 && width / unit <= most &&
                    height / unit <= most && width / unit * (height / unit) <= most &&
                    rgb.size() == width * height * 3 &&
                    (!encoder.is_square || (width == height && width / unit * (height / unit) == most));
  if (!fits) {
    return Status(
        HYBRIDGE_INVALID_PICTURE,
        "a picture of " + std::to_string(width) + " by " + std::to_string(height) +
            " pixels is none that the model's encoder takes: its sides are others, or it has too many tokens"
    );
  }
  return std::shared_ptr<const Picture>(new Picture(encoder, rgb, width, height));
}

int64_t Picture::budget() const {
  return *std::lower_bound(encoder_.budgets.begin(), encoder_.budgets.end(), static_cast<int64_t>(ids_.size()));
}

Status Picture::encode(const CallMethod& call, bool by_delegate) const {
  const auto tokens = static_cast<int64_t>(ids_.size());
  const int64_t budget = this->budget(), square = encoder_.merge * encoder_.merge, patches = budget * square,
                values = 3 * encoder_.patch * encoder_.patch;
  std::vector<uint8_t> pixels = in_squares();
  pixels.resize(static_cast<size_t>(patches * values), 0);
  const auto [rows, columns] = encoder_.has_table ? std::pair<Floats, Floats>()
                                                  : positions(static_cast<size_t>(patches));
  const int64_t count = tokens * square;
  const Array cut{Type::uint8, {patches, values}, pixels.data()}, n = number(count);
  const Array down = input(rows, {patches, encoder_.side}), across = input(columns, {patches, encoder_.side});
  const Floats at = places(static_cast<size_t>(patches));
  ++encodings_;
  const std::string method = encoding(encoder_, budget);
  const Array turned = input(at, {patches, 2});
  const auto outputs = HYBRIDGE_TRY(
      encoder_.has_table  ? call(method, {cut, turned, n})
      : encoder_.has_rope ? call(method, {cut, down, across, turned, n})
                          : call(method, {cut, down, across, n})
  );
  const float* first = outputs.empty() ? nullptr : outputs[0].real();
  if (first == nullptr || outputs[0].count() % static_cast<size_t>(budget) != 0) {
    return Status(HYBRIDGE_PROGRAM_FAILED, "the program answered '" + method + "' in another form than an encoder's");
  }
  hidden_ = outputs[0].count() / static_cast<size_t>(budget);
  const std::span<const float> found(first, ids_.size() * hidden_);
  if (!are_finite(found)) {
    return Status(HYBRIDGE_NOT_FINITE, "the program encoded a picture into numbers that are NaN or infinite");
  }
  embeddings_.assign(found.begin(), found.end());
  is_delegated_ = by_delegate;
  return Status();
}

std::span<const float> Picture::rows(size_t begin, size_t count) const {
  return std::span(embeddings_).subspan(begin * hidden_, count * hidden_);
}

Numbers Picture::grid(size_t begin, size_t count, size_t size) const {
  const size_t across = columns_ / static_cast<size_t>(encoder_.merge);
  Numbers found(static_cast<size_t>(encoder_.axes) * size, 0);
  for (size_t i = 0; i < count && encoder_.axes == 3; ++i) {
    found[size + i] = static_cast<int64_t>((begin + i) / across);
    found[2 * size + i] = static_cast<int64_t>((begin + i) % across);
  }
  return found;
}

std::string Picture::encoding(const Encoder& encoder, int64_t tokens) {
  return tokens == encoder.budgets.back() ? "vision_encoder" : "vision_encoder_" + std::to_string(tokens);
}

Picture::Picture(const Encoder& encoder, std::span<const uint8_t> rgb, size_t width, size_t height)
    : encoder_(encoder),
      columns_(width / static_cast<size_t>(encoder.patch)),
      rows_(height / static_cast<size_t>(encoder.patch)),
      rgb_(rgb.begin(), rgb.end()) {
  Sha256 hash;
  const std::string size = std::to_string(width) + "x" + std::to_string(height) + " ";
  hash.add({reinterpret_cast<const uint8_t*>(size.data()), size.size()});
  hash.add(rgb);
  const auto digest = hash.finish();
  uint64_t words[4];
  std::memcpy(words, digest.data(), sizeof(words));
  const size_t square = static_cast<size_t>(encoder.merge * encoder.merge);
  for (size_t row = 0; row < columns_ * rows_ / square; ++row) {
    constexpr uint64_t STEP = 0x9e3779b97f4a7c15;
    ids_.push_back(-1 - static_cast<int64_t>((words[row % 4] + row / 4 * STEP) >> 1));
  }
}

std::vector<uint8_t> Picture::in_squares() const {
  const auto patch = static_cast<size_t>(encoder_.patch);
  const size_t line = columns_ * patch * 3;
  std::vector<uint8_t> pixels;
  pixels.reserve(rgb_.size());
  in_order([&](size_t row, size_t column) {
    for (size_t y = 0; y < patch; ++y) {
      const auto begin = rgb_.begin() + static_cast<ptrdiff_t>((row * patch + y) * line + column * patch * 3);
      pixels.insert(pixels.end(), begin, begin + static_cast<ptrdiff_t>(patch * 3));
    }
  });
  return pixels;
}

std::pair<Floats, Floats> Picture::positions(size_t patches) const {
  const auto side = static_cast<size_t>(encoder_.side);
  const auto weights = encoder_.has_corners ? interpolation_to_corners : interpolation;
  const Floats down = weights(rows_, side), across = weights(columns_, side);
  std::pair<Floats, Floats> found;
  const auto append = [side](Floats& to, const Floats& from, size_t place) {
    to.insert(
        to.end(), from.begin() + static_cast<ptrdiff_t>(place * side),
        from.begin() + static_cast<ptrdiff_t>((place + 1) * side)
    );
  };
  in_order([&](size_t row, size_t column) { append(found.first, down, row), append(found.second, across, column); });
  found.first.resize(patches * side, 0.0f);
  found.second.resize(patches * side, 0.0f);
  return found;
}

Floats Picture::places(size_t patches) const {
  Floats found;
  in_order([&](size_t row, size_t column) {
    found.insert(found.end(), {static_cast<float>(row), static_cast<float>(column)});
  });
  found.resize(patches * 2, 0.0f);
  return found;
}

std::shared_ptr<const Picture> Pictures::add(std::shared_ptr<const Picture> picture) {
  const std::lock_guard lock(mutex_);
  std::erase_if(open_, [](const auto& each) { return each.second.expired(); });
  auto& known = open_[picture->ids().front()];
  if (auto same = known.lock(); same != nullptr && std::ranges::equal(same->ids(), picture->ids())) return same;
  known = picture;
  return picture;
}

std::shared_ptr<const Picture> Pictures::find(int64_t first) const {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(first);
  return found == open_.end() ? nullptr : found->second.lock();
}

size_t after_picture(Tokens text, size_t end) {
  while (0 < end && end < text.size() && text[end - 1] < 0 && text[end] < 0) ++end;
  return end;
}

Numbers as_tokens(Tokens ids, int64_t placeholder) {
  Numbers tokens(ids.begin(), ids.end());
  std::ranges::replace_if(tokens, [](int64_t id) { return id < 0; }, placeholder);
  return tokens;
}

}  // namespace hybridge
