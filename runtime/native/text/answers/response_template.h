// A tokenizer's own description of its model's answers, read into a row of the table of forms.
//
// transformers has two: `response_template` says which texts open and close the fields of a message, in literals and
// regular expressions, and how calls are written between them; `response_schema` is older and is a tree of expressions.
// No expression is run: the texts are taken out of it.
#ifndef HYBRIDGE_NATIVE_TEXT_ANSWERS_RESPONSE_TEMPLATE_H
#define HYBRIDGE_NATIVE_TEXT_ANSWERS_RESPONSE_TEMPLATE_H

#include <optional>
#include <string>

#include "../json.h"
#include "form.h"

namespace hybridge::text {

// form: none if the tokenizer has no description, or one that no row can follow, which `warning` then says.
struct OwnForm {
  std::optional<AnswerForm> form = {};
  std::string warning = {};
};

// Reads the description in a tokenizer_config.json. Where its calls have the marks of a form of the table, the form is
// this one, with the description's marks of reasoning and content; otherwise it is one of its own, called "own".
OwnForm read_own_form(const Json& tokenizer_config);

}  // namespace hybridge::text

#endif
