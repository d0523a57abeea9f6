// The functions of hybridge.h about pictures, over engine/picture_processor.h.

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <hybridge/hybridge_dev.h>

#include "engine/picture_processor.h"

#include "c_api/calls.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"

namespace {

using namespace hybridge::c;
using hybridge::PictureProcessor;
using hybridge::PreparedPicture;
using hybridge::text::MOST_PICTURE_PIXELS;
using hybridge::text::PictureDescription;
using hybridge::text::TextError;
using hybridge::text::Tokenizer;

// Opens what `prepare` makes of a model; it throws TextError.
template <typename Prepare>
hybridge_status open_picture(hybridge_model model, hybridge_picture* picture, Prepare&& prepare) {
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    try {
      *picture = handles<OpenPicture>().add(std::make_shared<OpenPicture>(opened, prepare(*opened)));
      return HYBRIDGE_OK;
    } catch (const TextError& error) {
      return refused(HYBRIDGE_INVALID_PICTURE, error.what());
    }
  });
}

// The bytes of a picture's pixels; those of too many are not asked for.
std::span<const uint8_t> pixels(const uint8_t* rgb, size_t width, size_t height) {
  const bool is_small = width <= MOST_PICTURE_PIXELS && height <= MOST_PICTURE_PIXELS &&
                        width * height <= MOST_PICTURE_PIXELS;
  return {rgb, is_small ? width * height * 3 : 0};
}

}  // namespace

extern "C" {

hybridge_status hybridge_model_pictures(
    hybridge_model model, hybridge_tokenizer tokenizer, const char* pictures, size_t size
) {
  if (pictures == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    auto reader = handles<const Tokenizer>().find(tokenizer);
    if (opened == nullptr || (tokenizer.id != 0 && reader == nullptr)) return refused(HYBRIDGE_INVALID_HANDLE);
    try {
      PictureDescription description(std::string_view(pictures, size));
      opened->prepare_by(
          std::make_shared<const PictureProcessor>(opened->model, std::move(description), std::move(reader))
      );
      return HYBRIDGE_OK;
    } catch (const TextError& error) {
      return refused(HYBRIDGE_INVALID_PICTURE, error.what());
    }
  });
}

hybridge_status hybridge_picture_open(
    hybridge_model model, const uint8_t* rgb, size_t width, size_t height, hybridge_picture* picture
) {
  if (rgb == nullptr || picture == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return open_picture(model, picture, [&](const OpenModel& opened) {
    if (!opened.model->info().encoder)
      throw TextError("this model takes no pictures: its artifact has the text model alone");
    const auto processor = opened.pictures();
    if (processor == nullptr)
      throw TextError("the model was not told how its pictures are prepared: open the artifact's folder");
    return processor->open(pixels(rgb, width, height), width, height);
  });
}

hybridge_status hybridge_picture_open_prepared(
    hybridge_model model, const uint8_t* rgb, size_t width, size_t height, hybridge_picture* picture
) {
  if (rgb == nullptr || picture == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return open_picture(model, picture, [&](const OpenModel& opened) {
    auto made = opened.model->picture(pixels(rgb, width, height), width, height);
    if (!made.ok()) throw TextError(made.status().words());
    const auto ids = (*made)->ids();
    return std::make_shared<const PreparedPicture>(PreparedPicture{{ids.begin(), ids.end()}, {std::move(*made)}});
  });
}

hybridge_status hybridge_picture_close(hybridge_picture picture) {
  // Not in its model's turn, for which a whole prefill may have to be waited: a call that reads it keeps it until its
  // end.
  return guarded([&] { return handles<OpenPicture>().remove(picture) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_picture_ids(
    hybridge_picture picture, int64_t* ids, size_t capacity, size_t* count, hybridge_pictured* pictured
) {
  if (!has_room(ids, capacity, count)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto found = handles<OpenPicture>().find(picture);
    if (found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    const PreparedPicture& open = *found->picture;
    if (pictured != nullptr) *pictured = {open.parts.size(), open.rows, open.columns, open.encodings()};
    return answer(open.ids, ids, capacity, count);
  });
}

hybridge_status hybridge_picture_part(hybridge_picture picture, size_t part, hybridge_encoded* encoded) {
  if (encoded == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto found = handles<OpenPicture>().find(picture);
    if (found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    if (part >= found->picture->parts.size()) return refused(HYBRIDGE_INVALID_ARGUMENT);
    const auto& each = *found->picture->parts[part];
    const size_t rows = each.ids().size();
    *encoded = {
        each.rgb().data(), each.hidden() > 0 ? each.rows(0, rows).data() : nullptr, each.width(), each.height(), rows,
        each.hidden()
    };
    return HYBRIDGE_OK;
  });
}
}
