// Pictures of any size for a model's texts: resized, cut into tiles, and the ids of all parts with the tokens around
// them.
//
//   const hybridge::text::PictureDescription pictures(json);    // `pictures` of the manifest
//   hybridge::PictureProcessor processor(model, pictures, tokenizer);
//   auto picture = processor.open(rgb, width, height);
//   session.prefill(picture->ids);                               // while it is there; engine/picture.h
//
// Unlike the rest of this folder it throws TextError, of which the message says why a picture cannot be taken.
#ifndef HYBRIDGE_ENGINE_PICTURE_PROCESSOR_H
#define HYBRIDGE_ENGINE_PICTURE_PROCESSOR_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/picture.h"
#include "engine/program.h"

#include "text/chat_template.h"
#include "text/picture_layout.h"
#include "text/tokenizer.h"

namespace hybridge {

// ids: of all parts, with the tokens around them. rows, columns: of its tiles, 1 and 1 for a picture in one part.
struct PreparedPicture {
  std::vector<int64_t> ids;
  std::vector<std::shared_ptr<const Picture>> parts;
  size_t rows = 1, columns = 1;

  // Returns how often its parts were encoded, all together.
  size_t encodings() const;

  // Returns the text by which `PictureProcessor::reopen` opens it again: its tiles' rows and columns, the size of each
  // part, and the pixels of all in base64.
  std::string saved() const;
};

// Returns a picture for a message (engine/conversation.h), as long as which it stays open.
std::shared_ptr<const text::MessagePicture> of_message(std::shared_ptr<const PreparedPicture> picture);

class PictureProcessor {
 public:
  // tokenizer: null for a description without marks. Throws TextError for a description of another model, and a
  // tokenizer without the tokens around a picture.
  PictureProcessor(
      std::shared_ptr<const Model> model, text::PictureDescription description,
      std::shared_ptr<const text::Tokenizer> tokenizer
  );

  // rgb: uint8 [height, width, 3]. Throws TextError.
  std::shared_ptr<const PreparedPicture> open(std::span<const uint8_t> rgb, size_t width, size_t height) const;

  // Opens a picture that was saved, with the same ids. Throws TextError.
  std::shared_ptr<const PreparedPicture> reopen(std::string_view saved) const;

 private:
  std::shared_ptr<const PreparedPicture> with_ids(const text::PictureLayout& layout) const;

  int64_t mark(const std::string& token) const;

  const std::shared_ptr<const Model> model_;
  const text::PictureDescription description_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  int64_t begin_ = 0, end_ = 0, thumbnail_ = 0;
};

}  // namespace hybridge

#endif
