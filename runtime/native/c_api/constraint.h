// A grammar as a generation sees it: what follows it is in grammar.cpp, and the core does without.
#ifndef HYBRIDGE_C_API_CONSTRAINT_H
#define HYBRIDGE_C_API_CONSTRAINT_H

#include <memory>

#include <hybridge/hybridge.h>

#include "engine/speculative.h"

namespace hybridge::text {
class Grammar;
}

namespace hybridge::c {

class OpenGrammar {
 public:
  using Handle = hybridge_grammar;

  virtual ~OpenGrammar() = default;

  // Returns whether the grammar names tokens that end a text, in place of the model's.
  virtual bool has_ends() const = 0;

  // Lets a generation of a model with these eos_ids follow the grammar.
  virtual void follow(GenerationOptions& options, Tokens eos_ids) const = 0;
};

std::shared_ptr<OpenGrammar> open_grammar(std::shared_ptr<text::Grammar> grammar);

}  // namespace hybridge::c

#endif
