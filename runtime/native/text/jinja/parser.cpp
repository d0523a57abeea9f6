#include "parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <set>

#include "../../third_party/yyjson/yyjson.h"
#include "lexer.h"

namespace hybridge::text::jinja {

namespace {

class Parser {
 public:
  Parser(std::string_view source, Budget& budget) : tokens_(tokenize(source)), budget_(budget) {
    budget.take(source.size() * 8);
  }

  Block all() { return block({}); }

 private:
  using Names = std::initializer_list<std::string_view>;

  const Token& here() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }

  [[noreturn]] void fail(const std::string& what) const {
    throw TextError(what + " (line " + std::to_string(here().line) + ")");
  }

  const Token& take() {
    budget_.spend(1);
    const Token& token = here();
    if (token.type != TokenType::END) ++at_;
    return token;
  }

  bool skip(std::string_view operation) { return here().is(operation) && (take(), true); }
  bool skip_name(std::string_view name) { return here().is_name(name) && (take(), true); }

  void expect(std::string_view operation) {
    if (!skip(operation)) fail("expected '" + std::string(operation) + "', got '" + here().text + "'");
  }

  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail("expected '" + std::string(name) + "', got '" + here().text + "'");
  }

  std::string name() {
    if (here().type != TokenType::NAME) fail("expected a name, got '" + here().text + "'");
    return take().text;
  }

  void end_of(TokenType type) {
    if (here().type != type) fail("unexpected '" + here().text + "' in a tag");
    take();
  }

  std::unique_ptr<Expression> make(ExpressionType type) {
    budget_.take(sizeof(Expression));
    auto made = std::make_unique<Expression>();
    made->type = type;
    return made;
  }

  ExpressionPtr constant(Value value) {
    auto made = make(ExpressionType::CONSTANT);
    made->constant = std::move(value);
    return made;
  }

  std::unique_ptr<Statement> statement(StatementType type) {
    budget_.take(sizeof(Statement));
    auto made = std::make_unique<Statement>();
    made->type = type;
    return made;
  }

  // Statements up to a tag of one of these names, which stays to be read; all to the end without names.
  Block block(Names ends) {
    const Budget::Level level(budget_);
    Block body;
    while (here().type != TokenType::END) {
      if (here().type == TokenType::DATA) {
        body.push_back(statement(StatementType::DATA));
        body.back()->data = take().text;
      } else if (here().type == TokenType::VARIABLE_BEGIN) {
        take();
        body.push_back(statement(StatementType::OUTPUT));
        body.back()->expressions.push_back(tuple());
        end_of(TokenType::VARIABLE_END);
      } else {
        take();  // the begin of a block
        if (here().type != TokenType::NAME) fail("tag name expected");
        if (std::ranges::find(ends, here().text) != ends.end()) return body;
        tag(body);
        end_of(TokenType::BLOCK_END);
      }
    }
    if (ends.size() > 0) fail("unexpected end of template, looking for '" + std::string(*ends.begin()) + "'");
    return body;
  }

  // What is inside a tag, up to the tag that ends it.
  Block inside(Names ends) {
    skip(":");
    end_of(TokenType::BLOCK_END);
    return block(ends);
  }

  void tag(Block& body) {
    const std::string word = take().text;
    if (word == "set") body.push_back(set());
    else if (word == "if") body.push_back(if_());
    else if (word == "for") body.push_back(for_());
    else if (word == "macro") body.push_back(macro());
    else if (word == "call") body.push_back(call());
    else if (word == "filter") body.push_back(filter());
    else if (word == "with") body.push_back(with());
    else if (word == "generation") body.push_back(enclosed("endgeneration"));
    else if (word == "print") print(body);
    else if (word == "break" || word == "continue") {
      if (loops_ == 0) fail("'" + word + "' outside loop");
      body.push_back(statement(word == "break" ? StatementType::BREAK : StatementType::CONTINUE));
    } else if (
        word == "include" || word == "import" || word == "from" || word == "extends" || word == "block" ||
        word == "autoescape"
    ) {
      fail("the tag '" + word + "' is not supported in chat templates");
    } else {
      fail("unknown tag '" + word + "'");
    }
  }

  void print(Block& body) {
    while (here().type != TokenType::BLOCK_END) {
      if (!body.empty() && here().is(",")) take();
      body.push_back(statement(StatementType::OUTPUT));
      body.back()->expressions.push_back(expression());
    }
  }

  std::unique_ptr<Statement> enclosed(std::string_view end) {
    auto made = statement(StatementType::SCOPE);
    const size_t loops = std::exchange(loops_, 0);  // its text is a macro's in transformers
    made->blocks.push_back(inside({end}));
    loops_ = loops;
    take();
    return made;
  }

  std::unique_ptr<Statement> set() {
    auto made = statement(StatementType::SET);
    made->targets.push_back(target(true));
    if (skip("=")) {
      made->expressions.push_back(tuple());
      return made;
    }
    made->type = StatementType::SET_BLOCK;
    while (skip("|")) made->steps.push_back(filter_step());
    made->blocks.push_back(inside({"endset"}));
    take();
    return made;
  }

  std::unique_ptr<Statement> if_() {
    auto made = statement(StatementType::IF);
    while (true) {
      made->expressions.push_back(tuple(false));
      made->blocks.push_back(inside({"elif", "else", "endif"}));
      const std::string word = take().text;
      if (word == "elif") continue;
      if (word == "else") {
        made->blocks.push_back(inside({"endif"}));
        take();
      }
      return made;
    }
  }

  std::unique_ptr<Statement> for_() {
    auto made = statement(StatementType::FOR);
    made->targets.push_back(target(false));
    expect_name("in");
    made->expressions.push_back(tuple(false));
    made->expressions.push_back(skip_name("if") ? expression() : nullptr);
    if (here().is_name("recursive")) fail("recursive loops are not supported in chat templates");
    ++loops_;
    made->blocks.push_back(inside({"endfor", "else"}));
    --loops_;
    if (take().text == "else") {
      made->blocks.push_back(inside({"endfor"}));
      take();
    }
    return made;
  }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> all;
    expect("(");
    while (!here().is(")")) {
      if (!all.empty()) expect(",");
      if (here().is(")")) break;
      Parameter each{name(), nullptr};
      if (skip("=")) each.standard = expression();
      else if (!all.empty() && all.back().standard != nullptr) fail("non-default argument follows default argument");
      all.push_back(std::move(each));
    }
    expect(")");
    return all;
  }

  // The body of a macro, and of what a call gives to it.
  std::shared_ptr<const MacroNode> macro_node(
      std::string name, std::vector<Parameter> parameters, std::string_view end
  ) {
    auto made = std::make_shared<MacroNode>();
    made->name = std::move(name);
    made->parameters = std::move(parameters);
    const size_t loops = std::exchange(loops_, 0);
    const size_t begin = at_;
    made->body = inside({end});
    for (size_t i = begin; i < at_; ++i) {
      made->uses_caller |= tokens_[i].is_name("caller");
      made->uses_varargs |= tokens_[i].is_name("varargs");
      made->uses_kwargs |= tokens_[i].is_name("kwargs");
    }
    loops_ = loops;
    take();
    return made;
  }

  std::unique_ptr<Statement> macro() {
    auto made = statement(StatementType::MACRO);
    std::string called = name();
    auto given = parameters();
    made->macro = macro_node(std::move(called), std::move(given), "endmacro");
    return made;
  }

  std::unique_ptr<Statement> call() {
    auto made = statement(StatementType::CALL);
    std::vector<Parameter> given;
    if (here().is("(")) given = parameters();
    made->expressions.push_back(expression());
    const auto& steps = made->expressions[0]->steps;
    if (steps.empty() || steps.back().type != StepType::CALL) fail("expected call");
    made->macro = macro_node("caller", std::move(given), "endcall");
    return made;
  }

  std::unique_ptr<Statement> filter() {
    auto made = statement(StatementType::FILTER);
    do made->steps.push_back(filter_step());
    while (skip("|"));
    made->blocks.push_back(inside({"endfilter"}));
    take();
    return made;
  }

  std::unique_ptr<Statement> with() {
    auto made = statement(StatementType::WITH);
    while (here().type != TokenType::BLOCK_END) {
      if (!made->targets.empty()) expect(",");
      made->targets.push_back(target(false));
      expect("=");
      made->expressions.push_back(expression());
    }
    made->blocks.push_back(inside({"endwith"}));
    take();
    return made;
  }

  Target one_target(bool with_namespace) {
    const Budget::Level level(budget_);
    if (skip("(")) {
      Target all = target(false);
      expect(")");
      return all;
    }
    Target made{name()};
    static const std::set<std::string_view> CONSTANTS = {"true", "false", "none", "True", "False", "None"};
    if (CONSTANTS.contains(made.name)) fail("can't assign to '" + made.name + "'");
    if (with_namespace && skip(".")) made.attribute = name();
    return made;
  }

  Target target(bool with_namespace) {
    Target first = one_target(with_namespace);
    if (!here().is(",")) return first;
    Target all{""};
    all.parts.push_back(std::move(first));
    while (skip(",")) {
      if (here().type != TokenType::NAME && !here().is("(")) break;
      if (here().is_name("in")) break;
      all.parts.push_back(one_target(with_namespace));
    }
    return all;
  }

  // Expressions

  // One expression, or several with commas between them.
  ExpressionPtr tuple(bool with_condition = true) {
    ExpressionPtr first = with_condition ? expression() : or_();
    if (!here().is(",")) return first;
    auto all = make(ExpressionType::TUPLE);
    all->parts.push_back(std::move(first));
    while (skip(",")) {
      if (here().type == TokenType::VARIABLE_END || here().type == TokenType::BLOCK_END || here().is(")")) break;
      all->parts.push_back(with_condition ? expression() : or_());
    }
    return all;
  }

  ExpressionPtr expression() {
    const Budget::Level level(budget_);
    ExpressionPtr value = or_();
    while (skip_name("if")) {
      auto made = make(ExpressionType::CONDITION);
      made->parts.push_back(or_());
      made->parts.push_back(std::move(value));
      if (skip_name("else")) made->parts.push_back(expression());
      value = std::move(made);
      if (value->parts.size() == 2) continue;
    }
    return value;
  }

  template <typename Part>
  ExpressionPtr chain(ExpressionType type, std::string_view word, Part&& part) {
    ExpressionPtr first = part();
    if (!here().is_name(word)) return first;
    auto all = make(type);
    all->parts.push_back(std::move(first));
    while (skip_name(word)) all->parts.push_back(part());
    return all;
  }

  ExpressionPtr or_() {
    return chain(ExpressionType::OR, "or", [&] { return chain(ExpressionType::AND, "and", [&] { return not_(); }); });
  }

  ExpressionPtr not_() {
    const Budget::Level level(budget_);
    if (!here().is_name("not") || after().is_name("in")) return comparison();
    take();
    auto made = make(ExpressionType::NOT);
    made->parts.push_back(not_());
    return made;
  }

  ExpressionPtr comparison() {
    ExpressionPtr first = arithmetic(0);
    std::unique_ptr<Expression> all;
    while (true) {
      std::string operation;
      if (here().type == TokenType::OPERATOR &&
          std::string_view("== != < > <= >=").find(here().text) != std::string_view::npos && !here().is("=")) {
        operation = take().text;
      } else if (here().is_name("in")) {
        operation = take().text;
      } else if (here().is_name("not") && after().is_name("in")) {
        take();
        take();
        operation = "not in";
      } else {
        break;
      }
      if (all == nullptr) {
        all = make(ExpressionType::COMPARE);
        all->parts.push_back(std::move(first));
      }
      all->operators.push_back(operation);
      all->parts.push_back(arithmetic(0));
    }
    return all == nullptr ? std::move(first) : std::move(all);
  }

  // Level 0 is + and -, 1 is ~, 2 is * / // and %, 3 is **.
  ExpressionPtr arithmetic(int strength) {
    if (strength == 4) return unary(true);
    ExpressionPtr first = arithmetic(strength + 1);
    std::unique_ptr<Expression> all;
    while (here().type == TokenType::OPERATOR) {
      const std::string& word = here().text;
      const int found = word == "+" || word == "-"                                  ? 0
                        : word == "~"                                               ? 1
                        : word == "*" || word == "/" || word == "//" || word == "%" ? 2
                        : word == "**"                                              ? 3
                                                                                    : -1;
      if (found != strength) break;
      if (all == nullptr) {
        all = make(strength == 1 ? ExpressionType::CONCAT : ExpressionType::ARITHMETIC);
        all->parts.push_back(std::move(first));
      }
      all->operators.push_back(take().text);
      all->parts.push_back(arithmetic(strength + 1));
    }
    return all == nullptr ? std::move(first) : std::move(all);
  }

  ExpressionPtr unary(bool with_filters) {
    ExpressionPtr value;
    if (here().is("-") || here().is("+")) {
      const Budget::Level level(budget_);
      value = make(take().text == "-" ? ExpressionType::NEGATIVE : ExpressionType::POSITIVE);
      value->parts.push_back(unary(false));
    } else {
      value = primary();
    }
    steps(*value, with_filters);
    return value;
  }

  void steps(Expression& of, bool with_filters) {
    while (true) {
      if (skip(".")) {
        if (here().type == TokenType::INTEGER) {
          of.steps.push_back({StepType::ITEM});
          of.steps.back().parts.push_back(constant(integer(take().text)));
        } else {
          of.steps.push_back({StepType::ATTRIBUTE, name()});
        }
      } else if (skip("[")) {
        of.steps.push_back(subscript());
      } else if (here().is("(")) {
        of.steps.push_back({StepType::CALL});
        of.steps.back().arguments = arguments();
      } else if (with_filters && skip("|")) {
        of.steps.push_back(filter_step());
      } else if (with_filters && skip_name("is")) {
        of.steps.push_back(test_step());
      } else {
        return;
      }
      budget_.take(sizeof(Step));
    }
  }

  Step subscript() {
    Step step{StepType::ITEM};
    ExpressionPtr first;
    if (!here().is(":")) first = expression();
    if (here().is(":")) {
      step.type = StepType::SLICE;
      step.parts.push_back(std::move(first));
      while (skip(":") && step.parts.size() < 3) {
        step.parts.push_back(here().is(":") || here().is("]") ? nullptr : expression());
      }
      step.parts.resize(3);
    } else if (here().is(",")) {
      auto all = make(ExpressionType::TUPLE);
      all->parts.push_back(std::move(first));
      while (skip(",")) all->parts.push_back(expression());
      step.parts.push_back(std::move(all));
    } else {
      step.parts.push_back(std::move(first));
    }
    expect("]");
    return step;
  }

  std::string dotted_name() {
    std::string all = name();
    while (skip(".")) all += "." + name();
    return all;
  }

  Step filter_step() {
    Step step{StepType::FILTER, dotted_name()};
    if (here().is("(")) step.arguments = arguments();
    return step;
  }

  Step test_step() {
    Step step{StepType::TEST};
    if (skip_name("not")) step.type = StepType::TEST_NOT;
    step.name = dotted_name();
    const Token& next = here();
    const bool is_value = next.type == TokenType::NAME || next.type == TokenType::STRING ||
                          next.type == TokenType::INTEGER || next.type == TokenType::FLOAT || next.is("[") ||
                          next.is("{");
    if (next.is("(")) {
      step.arguments = arguments();
    } else if (is_value && !next.is_name("else") && !next.is_name("or") && !next.is_name("and")) {
      if (next.is_name("is")) fail("You cannot chain multiple tests with is");
      ExpressionPtr given = primary();
      steps(*given, false);
      step.arguments.push_back({"", std::move(given)});
    }
    return step;
  }

  std::vector<ArgumentNode> arguments() {
    std::vector<ArgumentNode> all;
    expect("(");
    while (!here().is(")")) {
      if (!all.empty()) expect(",");
      if (here().is(")")) break;
      std::string called;
      if (here().is("*") || here().is("**")) {
        called = take().text;
      } else if (here().type == TokenType::NAME && after().is("=")) {
        called = take().text;
        take();
      }
      const bool has_named = !all.empty() && !all.back().name.empty();
      if (called.empty() && has_named) fail("invalid syntax for function call expression");
      all.push_back({std::move(called), expression()});
    }
    expect(")");
    return all;
  }

  Value integer(const std::string& digits) {
    int base = 10;
    size_t begin = 0;
    if (digits.size() > 1 && digits[0] == '0') {
      base = digits[1] == 'x' || digits[1] == 'X'   ? 16
             : digits[1] == 'o' || digits[1] == 'O' ? 8
             : digits[1] == 'b' || digits[1] == 'B' ? 2
                                                    : 10;
      begin = base == 10 ? 0 : 2;
    }
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data() + begin, digits.data() + digits.size(), value, base);
    if (error == std::errc::result_out_of_range && base == 10) return Value::large(budget_, digits);
    if (error != std::errc() || end != digits.data() + digits.size()) fail("no number: '" + digits + "'");
    return Value::integer(value);
  }

  Value floating(const std::string& digits) {
    const std::unique_ptr<yyjson_doc, decltype(&yyjson_doc_free)> read(
        yyjson_read(digits.data(), digits.size(), 0), yyjson_doc_free
    );
    if (read == nullptr) fail("no number: '" + digits + "'");
    return Value::number(yyjson_get_num(yyjson_doc_get_root(read.get())));
  }

  ExpressionPtr primary() {
    const Token& token = here();
    switch (token.type) {
      case TokenType::NAME: {
        const std::string& word = take().text;
        if (word == "true" || word == "True") return constant(Value::boolean(true));
        if (word == "false" || word == "False") return constant(Value::boolean(false));
        if (word == "none" || word == "None") return constant(Value::none());
        auto made = make(ExpressionType::NAME);
        made->name = word;
        return made;
      }
      case TokenType::STRING: {
        Text text;
        while (here().type == TokenType::STRING) text.append(take().text);
        return constant(Value::string(budget_, std::move(text)));
      }
      case TokenType::INTEGER: return constant(integer(take().text));
      case TokenType::FLOAT: return constant(floating(take().text));
      default: break;
    }
    if (skip("(")) {
      if (skip(")")) return make(ExpressionType::TUPLE);
      ExpressionPtr value = tuple();
      expect(")");
      return value;
    }
    if (skip("[")) return collection(ExpressionType::LIST, "]");
    if (skip("{")) return collection(ExpressionType::DICT, "}");
    fail("unexpected '" + token.text + "'");
  }

  // The parts of a list, or keys and values of a dict, up to `end`, before which there may be a comma.
  ExpressionPtr collection(ExpressionType type, const char* end) {
    auto made = make(type);
    while (!here().is(end)) {
      if (!made->parts.empty()) expect(",");
      if (here().is(end)) break;
      made->parts.push_back(expression());
      if (type != ExpressionType::DICT) continue;
      expect(":");
      made->parts.push_back(expression());
    }
    expect(end);
    return made;
  }

  const std::vector<Token> tokens_;
  Budget& budget_;
  size_t at_ = 0, loops_ = 0;
};

}  // namespace

Block parse(std::string_view source, Budget& budget) { return Parser(source, budget).all(); }

}  // namespace hybridge::text::jinja
