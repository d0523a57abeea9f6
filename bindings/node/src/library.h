// The functions of hybridge.h, found in a libhybridge that is opened while the process runs.
#pragma once

#include <string>
#include <vector>

#include <hybridge/hybridge.h>

namespace hybridge_node {

// Each function that the addon calls, without its prefix.
#define HYBRIDGE_FUNCTIONS(each)                                                                                       \
  each(version) each(status_text) each(failure) each(print_log) each(has_operator) each(has_backend) each(set_threads) \
      each(threads) each(model_open) each(model_close) each(model_limit) each(model_delegate_from)                     \
          each(model_strict_reuse) each(model_info) each(validate) each(model_eos_ids) each(picture_open)              \
              each(picture_close) each(picture_ids) each(session_open) each(session_close) each(session_prompts)       \
                  each(delegated) each(tokens) each(prefill) each(decode) each(verify) each(commit) each(snapshot)     \
                      each(restore) each(reset) each(save) each(load) each(checkpoint_make) each(checkpoint_info)      \
                          each(checkpoint_close) each(resume) each(cache_open) each(cache_close) each(bring_to)        \
                              each(tokenizer_open) each(tokenizer_close) each(tokenizer_encode) each(tokenizer_decode) \
                                  each(text_open) each(text_push) each(text_finish) each(text_close)                   \
                                      each(grammar_open) each(grammar_close) each(sampling_init) each(generation_init) \
                                          each(generate) each(cancel) each(artifact_open) each(artifact_close)         \
                                              each(artifact_model) each(artifact_tokenizer) each(artifact_sampling)    \
                                                  each(chat_options_init) each(chat_open) each(chat_close)             \
                                                      each(chat_show) each(chat_send) each(chat_give_results)          \
                                                          each(chat_retry) each(chat_continue) each(chat_set_system)   \
                                                              each(chat_undo) each(chat_reset) each(chat_cancel)       \
                                                                  each(chat_save) each(chat_load) each(chat_messages)

struct Library {
#define HYBRIDGE_FIELD(name) decltype(&hybridge_##name) name = nullptr;
  HYBRIDGE_FUNCTIONS(HYBRIDGE_FIELD)
#undef HYBRIDGE_FIELD
};

// Opens the files in their order, the last of which is libhybridge, and finds its functions. A libhybridge that the
// process has already is used instead of a second one: two of them would register the same kernels with one runtime,
// which ends the process. Returns what is wrong, or nothing. Calls of several threads wait for each other.
std::string open_library(const std::vector<std::string>& files);

// Returns the opened library; null before that.
const Library* library();

}  // namespace hybridge_node
