// Libraries that are loaded one after another, as a host loads plug-ins: loads ARTIFACT LIBRARY... Each libhybridge
// answers.
#include <dlfcn.h>

#include <cstdio>

#include <hybridge/hybridge.h>

namespace {

int show(const hybridge_piece* piece, void*) {
  return std::printf("%.*s", int(piece->content_size), piece->content) >= 0;
}

}  // namespace

#define FUNCTION(name) reinterpret_cast<decltype(&hybridge_##name)>(dlsym(library, "hybridge_" #name))

int main(int count, char** words) {
  for (int i = 2; i < count; ++i) {
    void* library = dlopen(words[i], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return std::puts(dlerror()), 1;
    if (FUNCTION(version) == nullptr) continue;  // the kernels
    hybridge_artifact artifact = {};
    hybridge_chat chat = {};
    hybridge_generation options;
    FUNCTION(generation_init)(&options, sizeof options);
    options.max_new_tokens = 20;
    if (FUNCTION(artifact_open)(words[1], &artifact) != HYBRIDGE_OK ||
        FUNCTION(chat_open)(artifact, nullptr, &chat) != HYBRIDGE_OK ||
        FUNCTION(chat_send)(chat, "how to read a file", 18, &options, nullptr, 0, show, nullptr, nullptr) !=
            HYBRIDGE_OK) {
      std::printf("%s", FUNCTION(failure)());
    }
    std::puts("");
  }
}
