// Generations that follow a grammar: JSON of a schema, or the texts that a regular expression matches
// (../text/grammar/grammar.h).
//
//   const auto grammar = hybridge::text::Grammar::json_schema(schema, tokenizer);   // once
//   hybridge::Generation options{.max_new_tokens = 256};
//   const auto follower = std::make_shared<hybridge::text::GrammarFollower>(grammar, session.facts().eos_ids);
//   hybridge::follow(options, follower);
//
// A mask that leaves no token ends a generation with INVALID_GRAMMAR, in the follower's words.
#ifndef HYBRIDGE_ENGINE_GRAMMAR_H
#define HYBRIDGE_ENGINE_GRAMMAR_H

#include <memory>

#include "engine/speculative.h"

#include "text/grammar/grammar.h"

namespace hybridge {

// Lets a generation follow a grammar from its first new token on, or in a conversation from the end of its reasoning
// on. A follower serves one generation.
void follow(GenerationOptions& options, std::shared_ptr<text::GrammarFollower> follower);

}  // namespace hybridge

#endif
