// The tokens of a Jinja template, with trim_blocks and lstrip_blocks as transformers sets them.
#ifndef HYBRIDGE_NATIVE_TEXT_JINJA_LEXER_H
#define HYBRIDGE_NATIVE_TEXT_JINJA_LEXER_H

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hybridge::text::jinja {

enum class TokenType {
  DATA,
  VARIABLE_BEGIN,
  VARIABLE_END,
  BLOCK_BEGIN,
  BLOCK_END,
  NAME,
  STRING,
  INTEGER,
  FLOAT,
  OPERATOR,
  END
};

struct Token {
  TokenType type;
  std::string text;  // of a string, without its quotes and escapes
  size_t line;

  bool is(std::string_view operation) const { return type == TokenType::OPERATOR && text == operation; }
  bool is_name(std::string_view name) const { return type == TokenType::NAME && text == name; }
};

// The tokens of a template in UTF-8; the last is END. Throws TextError.
std::vector<Token> tokenize(std::string_view source);

}  // namespace hybridge::text::jinja

#endif
