// The functions of hybridge.h about checkpoints and caches.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <hybridge/hybridge_dev.h>

#include "c_api/calls.h"
#include "c_api/generation.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"

namespace {

using namespace hybridge::c;

// Returns call(a cache of the session's model, or an empty one for no handle).
template <typename Call>
hybridge_status with_cache(const OpenSession& open, hybridge_cache cache, Call call) {
  const auto found = handles<OpenCache>().find(cache);
  if (cache.id != 0 && found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
  if (found != nullptr && found->model->model->fingerprint() != open.model->model->fingerprint())
    return refused(HYBRIDGE_OTHER_MODEL);
  hybridge::PrefixCache none(0);
  return call(found != nullptr ? *found->cache : none);
}

}  // namespace

extern "C" {

hybridge_status hybridge_checkpoint_make(hybridge_session session, hybridge_checkpoint* checkpoint) {
  if (checkpoint == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session_in_turn(session, [&](OpenSession& open) {
    auto created = open.session->checkpoint();
    if (!created.ok()) return answer(created.status());
    auto made = std::make_shared<OpenCheckpoint>(open.model, std::move(*created));
    *checkpoint = handles<OpenCheckpoint>().add(std::move(made));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_checkpoint_info(hybridge_checkpoint checkpoint, hybridge_kept* kept) {
  if (kept == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open<OpenCheckpoint>(checkpoint, [&](const OpenCheckpoint& open) {
    *kept = {open.checkpoint->length(), open.checkpoint->bytes(), open.checkpoint->shared_bytes()};
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_checkpoint_close(hybridge_checkpoint checkpoint) {
  return guarded([&] { return handles<OpenCheckpoint>().remove(checkpoint) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_resume(hybridge_session session, hybridge_checkpoint checkpoint) {
  return with_session_ending_generation(session, [&](OpenSession& open) {
    const auto found = handles<OpenCheckpoint>().find(checkpoint);
    if (found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    return answer(open.session->resume(*found->checkpoint));
  });
}

hybridge_status hybridge_checkpoint_parts(
    hybridge_checkpoint checkpoint, uint64_t* ids, size_t capacity, size_t* count
) {
  if (count == nullptr || (ids == nullptr && capacity > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open<OpenCheckpoint>(checkpoint, [&](const OpenCheckpoint& open) {
    std::vector<uint64_t> all;
    for (const auto& segment : hybridge::chain(open.checkpoint->segment)) all.push_back(segment->id);
    all.push_back(open.checkpoint->id);
    *count = all.size();
    std::copy_n(all.data(), std::min(capacity, all.size()), ids);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_checkpoint_part(
    hybridge_checkpoint checkpoint, size_t part, uint8_t* bytes, size_t capacity, size_t* size
) {
  if (size == nullptr || (bytes == nullptr && capacity > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open<OpenCheckpoint>(checkpoint, [&](const OpenCheckpoint& open) {
    const auto segments = hybridge::chain(open.checkpoint->segment);
    if (part > segments.size()) return refused(HYBRIDGE_INVALID_ARGUMENT);
    const auto encoded = part < segments.size() ? hybridge::encode(*segments[part])
                                                : hybridge::encode(*open.checkpoint);
    *size = encoded.size();
    std::copy_n(encoded.data(), std::min(capacity, encoded.size()), bytes);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_checkpoint_read(
    hybridge_session session, hybridge_checkpoint like, size_t shared, const hybridge_part* parts, size_t count,
    hybridge_checkpoint* checkpoint
) {
  if (parts == nullptr || count == 0 || checkpoint == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session_in_turn(session, [&](OpenSession& open) {
    const auto other = handles<OpenCheckpoint>().find(like);
    if (shared > 0 && other == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    std::vector<hybridge::Part> given;
    for (const hybridge_part& each : std::span(parts, count))
      given.emplace_back(each.bytes, each.bytes == nullptr ? 0 : each.size);
    auto made = open.session->read_checkpoint(shared > 0 ? other->checkpoint.get() : nullptr, shared, given);
    if (!made.ok()) return answer(made.status());
    *checkpoint = handles<OpenCheckpoint>().add(std::make_shared<OpenCheckpoint>(open.model, std::move(*made)));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_open(hybridge_model model, size_t bytes, hybridge_cache* cache) {
  if (cache == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    *cache = handles<OpenCache>().add(
        std::make_shared<OpenCache>(opened, std::make_shared<hybridge::PrefixCache>(bytes))
    );
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_close(hybridge_cache cache) {
  return guarded([&] { return handles<OpenCache>().remove(cache) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_cache_watch(hybridge_cache cache, hybridge_on_use on_use, void* user) {
  return with_open_in_turn<OpenCache>(cache, [&](OpenCache& open) {
    if (on_use == nullptr) return open.cache->watch(nullptr), HYBRIDGE_OK;
    open.cache->watch([=, model = open.model](const hybridge::PrefixCache::Kept& used) {
      call_back(on_use, handles<OpenCheckpoint>().add(std::make_shared<OpenCheckpoint>(model, used)), user);
    });
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_add(hybridge_cache cache, hybridge_checkpoint checkpoint) {
  return with_open_in_turn<OpenCache>(cache, [&](OpenCache& open) {
    const auto found = handles<OpenCheckpoint>().find(checkpoint);
    if (found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    if (found->model->model->fingerprint() != open.model->model->fingerprint()) return refused(HYBRIDGE_OTHER_MODEL);
    open.cache->add(found->checkpoint);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_find(
    hybridge_cache cache, const int64_t* tokens, size_t count, hybridge_checkpoint* checkpoint
) {
  if (checkpoint == nullptr || (tokens == nullptr && count > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_in_turn<OpenCache>(cache, [&](OpenCache& open) {
    auto found = open.cache->find(span(tokens, count));
    *checkpoint = found == nullptr
                      ? hybridge_checkpoint{}
                      : handles<OpenCheckpoint>().add(std::make_shared<OpenCheckpoint>(open.model, std::move(found)));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_clear(hybridge_cache cache) {
  return with_open_in_turn<OpenCache>(cache, [&](OpenCache& open) {
    open.cache->clear();
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_info(hybridge_cache cache, hybridge_cached* cached) {
  if (cached == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open<OpenCache>(cache, [&](const OpenCache& open) {
    *cached = {open.cache->size(), open.cache->bytes()};
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_resume_prefix(
    hybridge_session session, hybridge_cache cache, const int64_t* tokens, size_t count
) {
  if (tokens == nullptr && count > 0) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session_ending_generation(session, [&](OpenSession& open) {
    return with_cache(open, cache, [&](hybridge::PrefixCache& kept) {
      return answer(hybridge::resume_prefix(*open.session, span(tokens, count), kept));
    });
  });
}

hybridge_status hybridge_keep_checkpoint(hybridge_session session, hybridge_cache cache) {
  return with_session_in_turn(session, [&](OpenSession& open) {
    return with_cache(open, cache, [&](hybridge::PrefixCache& kept) {
      hybridge::keep_checkpoint(*open.session, kept);
      return HYBRIDGE_OK;
    });
  });
}

hybridge_status hybridge_bring_to(
    hybridge_session session, hybridge_cache cache, const int64_t* tokens, size_t count, size_t* cached_tokens
) {
  if (tokens == nullptr || count == 0) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session_ending_generation(session, [&](OpenSession& open) {
    return with_cache(open, cache, [&](hybridge::PrefixCache& kept) {
      const bool reads = open.session->info().has_drafter() && !open.session->hidden().is_kept() &&
                         get_own_drafter(open).ok();
      if (reads) open.own_drafter->listen(true);
      const auto cached = hybridge::bring_to(*open.session, span(tokens, count), kept, nullptr, let_others_run(open));
      if (reads) open.own_drafter->listen(false);
      if (cached.ok() && cached_tokens != nullptr) *cached_tokens = static_cast<size_t>(*cached);
      return answer(cached);
    });
  });
}

}  // extern "C"
