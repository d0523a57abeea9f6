// The functions of hybridge.h about texts, over text/tokenizer.h.

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <hybridge/hybridge_dev.h>

#include "engine/open_file.h"

#include "text/stop_strings.h"
#include "text/tokenizer.h"

#include "c_api/failure.h"
#include "c_api/handles.h"
#include "c_api/text_calls.h"

namespace {

using namespace hybridge::c;
using hybridge::text::StopStrings;
using hybridge::text::TextError;
using hybridge::text::TextPart;
using hybridge::text::TextStream;
using hybridge::text::TextToken;
using hybridge::text::Tokenizer;

constexpr char DRY_BREAKERS[] = "\n:\"*";         // as other programs with DRY have them
constexpr size_t LARGEST_FILE = size_t(1) << 28;  // no published tokenizer.json has an eighth

struct OpenText {
  using Handle = hybridge_text;

  std::shared_ptr<const Tokenizer> of;
  TextStream stream;
  StopStrings stopping;
  std::string piece;
  std::atomic<bool> busy = false;

  OpenText(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
      : of(std::move(tokenizer)), stream(*of, skip_special) {}
};

std::string added_bytes(const Tokenizer& tokenizer, uint32_t id) {
  if (tokenizer.leaves_out(id)) return tokenizer.token(id);
  try {
    return tokenizer.bytes(id);
  } catch (const TextError&) {  // no token of such a tokenizer is a part of a character
    return tokenizer.decode({&id, 1}, false);
  }
}

hybridge_status read(std::string_view json, hybridge_tokenizer* tokenizer) {
  try {
    *tokenizer = handles<const Tokenizer>().add(std::make_shared<const Tokenizer>(json));
    return HYBRIDGE_OK;
  } catch (const TextError& error) {
    return refused(HYBRIDGE_INVALID_ARTIFACT, error.what());
  }
}

// Ids as the tokenizer has them: one that is out of range is an id that nothing has.
uint32_t id_of(int64_t token) { return 0 <= token && token < UINT32_MAX ? static_cast<uint32_t>(token) : UINT32_MAX; }

template <typename Call>
hybridge_status add_piece(hybridge_text text, const char** piece, size_t* size, Call&& call) {
  if (piece == nullptr || size == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_one_call<OpenText>(text, [&](OpenText& open) {
    open.piece = call(open);
    *piece = open.piece.data();
    *size = open.piece.size();
  });
}

}  // namespace

extern "C" {

hybridge_status hybridge_tokenizer_open(const char* path, hybridge_tokenizer* tokenizer) {
  if (path == nullptr || tokenizer == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto json = hybridge::OpenFile::content(path, LARGEST_FILE);
    return json.ok() ? read(*json, tokenizer) : answer(json.status());
  });
}

hybridge_status hybridge_tokenizer_read(const char* json, size_t size, hybridge_tokenizer* tokenizer) {
  if (json == nullptr || tokenizer == nullptr || size > LARGEST_FILE) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] { return read({json, size}, tokenizer); });
}

hybridge_status hybridge_tokenizer_close(hybridge_tokenizer tokenizer) {
  return guarded([&] { return handles<const Tokenizer>().remove(tokenizer) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_tokenizer_encode(
    hybridge_tokenizer tokenizer, const char* text, size_t size, int reading, const hybridge_span* plain,
    size_t plain_count, int64_t* tokens, hybridge_span* spans, size_t capacity, size_t* count
) {
  const bool has_room = count != nullptr && (tokens != nullptr || capacity == 0);
  const bool has_all = (text != nullptr || size == 0) && (plain != nullptr || plain_count == 0);
  if (!has_all || !has_room || (reading & ~(HYBRIDGE_AROUND | HYBRIDGE_PLAIN)) != 0) {
    return refused(HYBRIDGE_INVALID_ARGUMENT);
  }
  return with_open_text<const Tokenizer>(tokenizer, [&](const auto& open) {
    std::vector<TextPart> people;
    for (size_t i = 0; i < plain_count; i++) {
      if (plain[i].begin > plain[i].end || plain[i].end > size)
        return refused(HYBRIDGE_INVALID_ARGUMENT, "a plain part is not inside the text");
      people.push_back({plain[i].begin, plain[i].end});
    }
    if ((reading & HYBRIDGE_PLAIN) != 0) people = {{0, size}};
    const auto all = open->encode({text, size}, (reading & HYBRIDGE_AROUND) != 0, people);
    *count = all.size();
    for (size_t i = 0; i < std::min(capacity, all.size()); i++) {
      tokens[i] = all[i].id;
      if (spans != nullptr) spans[i] = {all[i].begin, all[i].end};
    }
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_tokenizer_decode(
    hybridge_tokenizer tokenizer, const int64_t* tokens, size_t count, int skip_special, char* text, size_t capacity,
    size_t* size
) {
  if ((tokens == nullptr && count > 0) || (text == nullptr && capacity > 0) || size == nullptr)
    return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_text<const Tokenizer>(tokenizer, [&](const auto& open) {
    std::vector<uint32_t> ids(count);
    std::transform(tokens, tokens + count, ids.begin(), id_of);
    return copy(open->decode(ids, skip_special != 0), text, capacity, size);
  });
}

hybridge_status hybridge_tokenizer_id(hybridge_tokenizer tokenizer, const char* token, size_t size, int64_t* id) {
  if (token == nullptr || id == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_text<const Tokenizer>(tokenizer, [&](const auto& open) {
    *id = open->id({token, size});
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_tokenizer_token(
    hybridge_tokenizer tokenizer, int64_t id, char* token, size_t capacity, size_t* size
) {
  if ((token == nullptr && capacity > 0) || size == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_text<const Tokenizer>(tokenizer, [&](const auto& open) {
    return copy(open->token(id_of(id)), token, capacity, size);
  });
}

hybridge_status hybridge_tokenizer_bytes(
    hybridge_tokenizer tokenizer, int64_t id, char* bytes, size_t capacity, size_t* size
) {
  if ((bytes == nullptr && capacity > 0) || size == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_text<const Tokenizer>(tokenizer, [&](const auto& open) {
    return copy(added_bytes(*open, id_of(id)), bytes, capacity, size);
  });
}

hybridge_status hybridge_tokenizer_added(
    hybridge_tokenizer tokenizer, int special, int64_t* ids, size_t capacity, size_t* count
) {
  if ((ids == nullptr && capacity > 0) || count == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_text<const Tokenizer>(tokenizer, [&](const auto& open) {
    const auto all = open->added(special != 0);
    *count = all.size();
    std::copy_n(all.begin(), std::min(capacity, all.size()), ids);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_tokenizer_dry_breakers(
    hybridge_tokenizer tokenizer, int64_t* ids, size_t capacity, size_t* count
) {
  if ((ids == nullptr && capacity > 0) || count == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_text<const Tokenizer>(tokenizer, [&](const auto& open) {
    std::vector<int64_t> found;
    for (uint32_t id = 0; id < open->vocab_size(); ++id) {
      if (added_bytes(*open, id).find_first_of(DRY_BREAKERS) != std::string::npos) found.push_back(id);
    }
    *count = found.size();
    std::copy_n(found.begin(), std::min(capacity, found.size()), ids);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_tokenizer_info(hybridge_tokenizer tokenizer, hybridge_vocabulary* info) {
  if (info == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_text<const Tokenizer>(tokenizer, [&](const auto& open) {
    *info = {open->vocab_size(), open->longest()};
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_text_open(hybridge_tokenizer tokenizer, int skip_special, hybridge_text* text) {
  if (text == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    auto of = handles<const Tokenizer>().find(tokenizer);
    if (of == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    *text = handles<OpenText>().add(std::make_shared<OpenText>(std::move(of), skip_special != 0));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_text_push(hybridge_text text, int64_t token, const char** piece, size_t* size) {
  return add_piece(text, piece, size, [&](OpenText& open) {
    return open.stopping.push(open.stream.push(id_of(token)));
  });
}

hybridge_status hybridge_text_finish(hybridge_text text, const char** piece, size_t* size) {
  return add_piece(text, piece, size, [](OpenText& open) {
    return open.stopping.push(open.stream.finish()) + open.stopping.finish();
  });
}

hybridge_status hybridge_text_stop(hybridge_text text, const char* stop, size_t size) {
  if (stop == nullptr || size == 0) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_one_call<OpenText>(text, [&](OpenText& open) { open.stopping.add({stop, size}); });
}

hybridge_status hybridge_text_stopped(hybridge_text text, int* stopped) {
  if (stopped == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_one_call<OpenText>(text, [&](OpenText& open) { *stopped = open.stopping.is_complete(); });
}

hybridge_status hybridge_text_close(hybridge_text text) {
  return guarded([&] { return handles<OpenText>().remove(text) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

}  // extern "C"
