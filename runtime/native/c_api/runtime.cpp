// The functions of hybridge.h about versions, errors and threads.

#include <cstddef>

#include <hybridge/hybridge_dev.h>

#include "engine/runtime.h"
#include "engine/threads.h"

#include "c_api/calls.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"

namespace {

using namespace hybridge::c;

constexpr size_t MOST_THREADS = 1024;

}  // namespace

extern "C" {

const char* hybridge_version(void) { return HYBRIDGE_VERSION; }

const char* hybridge_status_text(hybridge_status status) {
  switch (status) {
    case HYBRIDGE_OK: return "no error";
    case HYBRIDGE_INVALID_ARGUMENT:
      return "a pointer is null that must not be, or a number or an option is out of range";
    case HYBRIDGE_INVALID_HANDLE: return "this handle is closed or was never given out";
    case HYBRIDGE_BUSY:
      return "what is asked for is in use by another call, by its own callback, or by an open session";
    case HYBRIDGE_NO_ROOM:
      return "the tokens do not fit into the context; reset the session, or restore a shorter state";
    case HYBRIDGE_INVALID_STATE: return "there is no generation, message or tool call to continue";
    case HYBRIDGE_INVALID_ARTIFACT: return "a file of the artifact is damaged, of another format, or was changed";
    case HYBRIDGE_UNREADABLE_FILE: return "the file does not exist, cannot be read, or is no regular file";
    case HYBRIDGE_MISSING_OPERATOR:
      return "the app links no kernels for an operator of the program; see its manifest.json";
    case HYBRIDGE_OUT_OF_MEMORY: return "there is not enough memory";
    case HYBRIDGE_INTERNAL: return "this library has a defect; please report it";
    case HYBRIDGE_CANCELLED: return "the generation was cancelled before its first token";
    case HYBRIDGE_NOT_FINITE: return "the logits are NaN or infinite; reset the session, or restore or load a state";
    case HYBRIDGE_BROKEN_STATE:
      return "an earlier call failed in the middle; reset the session, or restore, resume or load";
    case HYBRIDGE_PROGRAM_FAILED:
      return "a method of the program failed, refused what fits, or answered in another form";
    case HYBRIDGE_INVALID_TOKEN: return "a token is outside the vocabulary, or there are none or too many";
    case HYBRIDGE_INVALID_COMMIT: return "there is no verified block, or it has fewer tokens";
    case HYBRIDGE_INVALID_SLOT: return "the slot does not exist, was never filled, or was overwritten since";
    case HYBRIDGE_INVALID_DRAFTER: return "the model has no such drafter, or it does not fit";
    case HYBRIDGE_INVALID_PICTURE: return "the picture is not one that the model takes, or it is closed";
    case HYBRIDGE_INVALID_GRAMMAR: return "the grammar cannot be followed, or it leaves no token";
    case HYBRIDGE_INVALID_TEMPLATE: return "the chat template has an error, or refuses these messages";
    case HYBRIDGE_INVALID_SAVED_STATE: return "the saved state is damaged, or of another model";
    case HYBRIDGE_UNWRITABLE_FILE: return "the file cannot be written";
    case HYBRIDGE_OTHER_MODEL: return "the checkpoint, the cache or the picture is of another model";
    case HYBRIDGE_UNSUPPORTED: return "this model, its tokenizer or its chat template cannot do that";
    case HYBRIDGE_CALLBACK_FAILED: return "a callback threw an exception";
  }
  return "no status of hybridge";
}

const char* hybridge_failure(void) {
  const auto& [code, words] = last_ending();
  return code == HYBRIDGE_OK || !words.empty() ? words.c_str() : hybridge_status_text(code);
}

void hybridge_print_log(int wanted) { hybridge::print_runtime_log(wanted != 0); }

int hybridge_has_operator(const char* name) { return name != nullptr && hybridge::has_operator(name); }

int hybridge_has_backend(const char* name) { return name != nullptr && hybridge::has_backend(name); }

hybridge_status hybridge_set_threads(size_t count) {
  if (count > MOST_THREADS) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] { return answer(hybridge::set_threads(count)); });
}

size_t hybridge_threads(void) { return hybridge::thread_count(); }

}  // extern "C"
