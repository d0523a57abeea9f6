// Reads answers by the core's forms: a line of JSON in, a line of JSON out.
//
// {"form": name or null, "config": tokenizer_config.json or null, "template": text, "tokens": [texts], "general": bool,
// "prompt": text,
//  "tools": JSON as a text or null, "pieces": [texts]} gives {"form": name, "warning": of the config, "reasoning_end":
//  text, "events": [[[kind, text, arguments], …] for each piece and the end]}.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "text/answers/answer_parser.h"
#include "text/answers/response_template.h"
#include "text/answers/value.h"
#include "text/error.h"
#include "text/json.h"

using namespace hybridge::text;

namespace {

std::string written(const std::vector<AnswerEvent>& events) {
  static constexpr const char* KINDS[] = {"reasoning", "content", "call"};
  std::string json = "[";
  for (const AnswerEvent& each : events) {
    if (json.size() > 1) json += ",";
    json += "[" + to_json(KINDS[static_cast<int>(each.kind)]) + "," + to_json(each.text) + "," +
            to_json(each.arguments) + "]";
  }
  return json + "]";
}

std::string answer(std::string_view line) {
  const JsonDocument document(line);
  const Json asked = document.root("request");
  AnswerForm form;
  const OwnForm own = read_own_form(asked["config"]);
  if (own.form) {
    form = *own.form;
  } else if (asked["form"]) {
    form = *answer_form(asked["form"].string());
  } else {
    std::vector<std::string> tokens;
    if (asked["tokens"]) asked["tokens"].each([&](const Json& each) { tokens.emplace_back(each.string()); });
    const auto is_token = [&](const std::string& text) {
      return std::find(tokens.begin(), tokens.end(), text) != tokens.end();
    };
    form = find_answer_form(asked["template"].string_or(""), is_token);
  }
  if (asked["general"].boolean_or(false)) form = with_general_calls(form);
  const auto tools = asked["tools"] ? std::make_shared<ToolSchemas>(asked["tools"].string()) : nullptr;
  AnswerParser parser(form, asked["prompt"].string(), tools);
  std::string json = "{\"form\": " + to_json(form.name) + ", \"warning\": " + to_json(own.warning) +
                     ", \"content_lead\": " + to_json(form.content_lead) +
                     ", \"reasoning_end\": " + to_json(parser.reasoning_end()) + ", \"events\": [";
  asked["pieces"].each([&](const Json& piece) { json += written(parser.push(piece.string())) + ","; });
  return json + written(parser.finish()) + "]}";
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::cout << answer(line) << std::endl;
    } catch (const TextError& error) {
      std::cout << "{\"error\": " << to_json(error.what()) << "}" << std::endl;
    }
  }
}
