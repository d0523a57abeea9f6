// The options and results of generations and chats, between JavaScript and hybridge.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <hybridge/hybridge.h>

#include "jobs.h"
#include "values.h"

namespace hybridge_node {

// Options of a generation, with all that they point to.
class GenerationOptions {
 public:
  // options: the package's, complete and of the right types.
  explicit GenerationOptions(const Value& options);
  GenerationOptions(const GenerationOptions&) = delete;

  const hybridge_generation* get() const { return &options_; }
  const std::vector<const char*>& stops() const { return stop_pointers_; }

 private:
  hybridge_generation options_;
  hybridge_sampling sampling_;
  std::string tool_choice_;
  std::vector<int64_t> breakers_;
  std::vector<hybridge_bias> biases_;
  std::vector<std::string> stops_;
  std::vector<const char*> stop_pointers_;
};

// Callbacks of a job: they hand on what a token adds, and answer whether the generation continues. user: the job.
int on_token(int64_t token, void* user);
int on_piece(const hybridge_piece* piece, void* user);

// Makes those options of a sampling that a model may have of its own.
napi_value sampling_of(const Maker& make, const hybridge_sampling& sampling);

napi_value generated_of(const Maker& make, const hybridge_generated& generated);
napi_value answer_of(const Maker& make, const hybridge_answer& answer);

// A call of a tool and a message of a chat, copied while they are valid.
struct Call {
  explicit Call(const hybridge_call& call)
      : id(call.id), name(call.name, call.name_size), arguments(call.arguments, call.arguments_size) {}

  std::string id, name, arguments;
};

std::vector<Call> calls_of(const hybridge_call* calls, size_t count);

napi_value calls_of(const Maker& make, const std::vector<Call>& calls);

}  // namespace hybridge_node
