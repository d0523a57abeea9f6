#include "engine/picture_processor.h"

#include <numeric>
#include <tuple>
#include <utility>

#include "text/base64.h"
#include "text/error.h"

namespace hybridge {

namespace {

constexpr size_t MOST_PARTS = 257;

std::string tile(size_t row, size_t column) {
  return "<|img_row_" + std::to_string(row + 1) + "_col_" + std::to_string(column + 1) + "|>";
}

}  // namespace

size_t PreparedPicture::encodings() const {
  return std::accumulate(parts.begin(), parts.end(), size_t(0), [](size_t all, const auto& part) {
    return all + part->encodings();
  });
}

std::string PreparedPicture::saved() const {
  std::string text = std::to_string(rows) + "x" + std::to_string(columns);
  std::vector<uint8_t> pixels;
  for (const auto& part : parts) {
    text += " " + std::to_string(part->width()) + "x" + std::to_string(part->height());
    pixels.insert(pixels.end(), part->rgb().begin(), part->rgb().end());
  }
  return text + " " + text::to_base64(pixels);
}

std::shared_ptr<const text::MessagePicture> of_message(std::shared_ptr<const PreparedPicture> picture) {
  auto ids = picture->ids;
  return std::make_shared<const text::MessagePicture>(
      text::MessagePicture{std::move(ids), [picture = std::move(picture)] { return picture->saved(); }}
  );
}

PictureProcessor::PictureProcessor(
    std::shared_ptr<const Model> model, text::PictureDescription description,
    std::shared_ptr<const text::Tokenizer> tokenizer
)
    : model_(std::move(model)), description_(std::move(description)), tokenizer_(std::move(tokenizer)) {
  const auto& encoder = model_->info().encoder;
  const bool fits = encoder && encoder->patch == static_cast<int64_t>(description_.patch_size) &&
                    encoder->merge == static_cast<int64_t>(description_.merge) &&
                    encoder->placeholder == description_.placeholder && encoder->budgets == description_.budgets;
  if (!fits) throw text::TextError("the pictures that are described are not those of this model's encoder");
  if (!description_.marks) return;
  const auto [begin, end] = description_.around();
  begin_ = mark(begin), end_ = mark(end);
  if (description_.max_tiles > 1) thumbnail_ = mark("<|img_thumbnail|>");
}

std::shared_ptr<const PreparedPicture> PictureProcessor::open(
    std::span<const uint8_t> rgb, size_t width, size_t height
) const {
  return with_ids(text::layout_of(description_, rgb, width, height));
}

std::shared_ptr<const PreparedPicture> PictureProcessor::reopen(std::string_view saved) const {
  const auto damaged = [] {
    return text::TextError("a picture of the conversation is damaged, or of another model's");
  };
  text::PictureLayout layout;
  size_t total = 0;
  std::vector<std::pair<size_t, size_t>> sizes;  // the first is the number of rows and columns
  for (size_t space = saved.find(' '); space != std::string_view::npos; space = saved.find(' ')) {
    const auto size = text::size_of(saved.substr(0, space));
    if (!size || sizes.size() > MOST_PARTS) throw damaged();
    if (!sizes.empty()) total += size->first * size->second * 3;
    sizes.push_back(*size);
    saved.remove_prefix(space + 1);
  }
  if (sizes.size() < 2 || saved.size() != (total + 2) / 3 * 4) throw damaged();
  std::tie(layout.rows, layout.columns) = sizes[0];
  const size_t tiles = layout.rows * layout.columns, parts = sizes.size() - 1;
  if (tiles > MOST_PARTS || (parts != tiles && (parts != tiles + 1 || tiles == 1))) throw damaged();
  const auto pixels = text::from_base64(saved);
  if (pixels.size() != total) throw damaged();
  auto from = pixels.begin();
  for (size_t i = 1; i < sizes.size(); ++i) {
    const auto [width, height] = sizes[i];
    const auto end = from + static_cast<ptrdiff_t>(width * height * 3);
    layout.parts.push_back({{from, end}, width, height});
    from = end;
  }
  return with_ids(layout);
}

std::shared_ptr<const PreparedPicture> PictureProcessor::with_ids(const text::PictureLayout& layout) const {
  auto picture = std::make_shared<PreparedPicture>();
  auto& ids = picture->ids;
  picture->rows = layout.rows, picture->columns = layout.columns;
  if (description_.marks) ids.push_back(begin_);
  for (const text::PicturePart& each : layout.parts) {
    const size_t place = picture->parts.size(), row = place / layout.columns, column = place % layout.columns;
    if (description_.marks && layout.rows * layout.columns > 1) {
      ids.push_back(row == layout.rows ? thumbnail_ : mark(tile(row, column)));
    }
    auto part = model_->picture(each.rgb, each.width, each.height);
    if (!part.ok()) throw text::TextError(part.status().words());
    ids.insert(ids.end(), (*part)->ids().begin(), (*part)->ids().end());
    picture->parts.push_back(std::move(*part));
  }
  if (description_.marks) ids.push_back(end_);
  return picture;
}

int64_t PictureProcessor::mark(const std::string& token) const {
  const int64_t id = tokenizer_ == nullptr ? -1 : tokenizer_->id(token);
  if (id >= 0) return id;
  throw text::TextError(
      "the artifact's tokenizer has no " + token + ", which belongs to its pictures; export the model with its own one"
  );
}

}  // namespace hybridge
