#include "chat_log.h"

#include <cstdlib>
#include <memory>

#include "json.h"

namespace hybridge::text {
namespace {

constexpr size_t MOST_TOKENS = size_t(1) << 32;

struct FreeDocument {
  void operator()(yyjson_mut_doc* document) const { yyjson_mut_doc_free(document); }
};

class Writer {
 public:
  Writer() : document_(yyjson_mut_doc_new(nullptr)) {}

  yyjson_mut_doc* get() const { return document_.get(); }

  yyjson_mut_val* list(yyjson_mut_val* object, const char* key) const {
    return yyjson_mut_obj_add_arr(get(), object, key);
  }

  void add(yyjson_mut_val* object, const char* key, const std::string& text) const {
    yyjson_mut_obj_add_strncpy(get(), object, key, text.data(), text.size());
  }

  // A value of JSON.
  yyjson_mut_val* read(const std::string& json) const {
    const std::unique_ptr<yyjson_doc, decltype(&yyjson_doc_free)> read(
        yyjson_read(json.data(), json.size(), YYJSON_READ_BIGNUM_AS_RAW), yyjson_doc_free
    );
    yyjson_mut_val* const value = read == nullptr ? nullptr
                                                  : yyjson_val_mut_copy(get(), yyjson_doc_get_root(read.get()));
    if (value == nullptr) throw TextError("the arguments of a call are no JSON");
    return value;
  }

  std::string text() const {
    size_t size = 0;
    const std::unique_ptr<char, decltype(&std::free)> written(yyjson_mut_write(get(), 0, &size), &std::free);
    if (written == nullptr) throw TextError("the conversation cannot be written");
    return {written.get(), size};
  }

 private:
  std::unique_ptr<yyjson_mut_doc, FreeDocument> document_;
};

Message read_message(const Json& value) {
  Message read{std::string(value["role"].string()), ""};
  if (const Json content = value["content"]; content.is_string()) {
    read.content = content.string();
  } else {
    content.each([&](const Json& each) {  // pictures, and a text after them
      if (each["text"]) read.content += each["text"].string();
      else ++read.pictures;
    });
  }
  read.reasoning = value["reasoning_content"].string_or("");
  if (const Json calls = value["tool_calls"]) {
    calls.each([&](const Json& each) {
      const Json function = each["function"];
      if (!function["arguments"].is_object()) function["arguments"].fail("an object");
      read.calls.push_back(
          {std::string(function["name"].string()), function["arguments"].written(), std::string(each["id"].string())}
      );
    });
  }
  if (read.role == "tool")
    read.call = {std::string(value["name"].string()), "", std::string(value["tool_call_id"].string())};
  else if (read.role != "system" && read.role != "user" && read.role != "assistant")
    value["role"].fail("system, user, assistant or tool");
  return read;
}

Turn read_turn(const Json& value) {
  Turn read{
      .start = value["start"].integer(MOST_TOKENS),
      .answer = value["answer"].integer(MOST_TOKENS),
      .rendered = std::string(value["rendered"].string())
  };
  if (value["lasting"]) read.lasting = value["lasting"].integer(MOST_TOKENS);
  if (value["said"]) read.said = value["said"].string();
  if (const Json spelled = value["spelled"]) {
    spelled.each([&](const Json& each) {
      read.spelled.push_back({each.item(0).integer(MOST_TOKENS), each.item(1).integer(MOST_TOKENS)});
    });
  }
  if (const Json pictures = value["pictures"]) {
    pictures.each([&](const Json& each) {
      read.pictures.push_back(std::make_shared<MessagePicture>(MessagePicture{{}, [saved = std::string(each.string())] {
                                                                                return saved;
                                                                              }}));
    });
  }
  return read;
}

// Turns are about the last messages: a user's or the results of calls, and an assistant's unless it is not answered.
bool is_whole(ChatLog& log) {
  size_t at = 0, next_start = log.tokens.size();
  while (at < log.messages.size() && log.messages[at].role == "system") ++at;
  for (Turn& turn : log.turns) {
    const auto is_result = [&] { return at < log.messages.size() && log.messages[at].role == "tool"; };
    if (is_result()) {
      const size_t calls = &turn == log.turns.data() ? 0 : log.messages[at - 1].calls.size(), first = at;
      while (is_result()) ++at;
      if (at - first != calls) return false;
    } else if (at >= log.messages.size() || log.messages[at++].role != "user") {
      return false;
    }
    const bool is_answered = at < log.messages.size() && log.messages[at].role == "assistant";
    if (is_answered && !turn.said) turn.said = log.messages[at].content;  // as it is in older notes
    if (is_answered != turn.said.has_value()) return false;
    at += is_answered;
  }
  for (size_t i = log.turns.size(); i-- > 0; next_start = log.turns[i].start > 0 ? log.turns[i].start : SIZE_MAX) {
    const Turn& turn = log.turns[i];
    if (turn.answer <= turn.start || turn.answer > next_start || turn.lasting > turn.answer) return false;
  }
  return at == log.messages.size() && (log.turns.empty() || log.turns[0].start == 0);
}

}  // namespace

std::string ChatLog::to_json() const {
  const Writer writer;
  yyjson_mut_val* root = yyjson_mut_obj(writer.get());
  yyjson_mut_doc_set_root(writer.get(), root);
  yyjson_mut_val* said = writer.list(root, "messages");
  for (const Message& each : messages) {
    yyjson_mut_val* message = yyjson_mut_arr_add_obj(writer.get(), said);
    writer.add(message, "role", each.role);
    if (each.pictures == 0) {
      writer.add(message, "content", each.content);
    } else {
      yyjson_mut_val* content = writer.list(message, "content");
      for (size_t i = 0; i < each.pictures; ++i)
        writer.add(yyjson_mut_arr_add_obj(writer.get(), content), "type", "image");
      yyjson_mut_val* text = yyjson_mut_arr_add_obj(writer.get(), content);
      writer.add(text, "type", "text");
      writer.add(text, "text", each.content);
    }
    if (!each.reasoning.empty()) writer.add(message, "reasoning_content", each.reasoning);
    if (!each.calls.empty()) {
      yyjson_mut_val* calls = writer.list(message, "tool_calls");
      for (const ToolCall& call : each.calls) {
        yyjson_mut_val* entry = yyjson_mut_arr_add_obj(writer.get(), calls);
        writer.add(entry, "id", call.id);
        writer.add(entry, "type", "function");
        yyjson_mut_val* function = yyjson_mut_obj_add_obj(writer.get(), entry, "function");
        writer.add(function, "name", call.name);
        yyjson_mut_obj_add_val(writer.get(), function, "arguments", writer.read(call.arguments));
      }
    }
    if (each.role == "tool") {
      writer.add(message, "name", each.call.name);
      writer.add(message, "tool_call_id", each.call.id);
    }
  }
  yyjson_mut_val* taken = writer.list(root, "turns");
  for (const Turn& each : turns) {
    yyjson_mut_val* turn = yyjson_mut_arr_add_obj(writer.get(), taken);
    yyjson_mut_obj_add_uint(writer.get(), turn, "start", each.start);
    yyjson_mut_obj_add_uint(writer.get(), turn, "answer", each.answer);
    if (each.lasting > 0) yyjson_mut_obj_add_uint(writer.get(), turn, "lasting", each.lasting);
    writer.add(turn, "rendered", each.rendered);
    if (each.said) writer.add(turn, "said", *each.said);
    yyjson_mut_val* spelled = writer.list(turn, "spelled");
    for (const TextPart& part : each.spelled) {
      yyjson_mut_val* ends = yyjson_mut_arr_add_arr(writer.get(), spelled);
      for (const size_t end : {part.begin, part.end}) yyjson_mut_arr_add_uint(writer.get(), ends, end);
    }
    if (!each.pictures.empty()) {
      yyjson_mut_val* files = writer.list(turn, "pictures");
      for (const auto& picture : each.pictures) {
        const std::string saved = picture->saved();
        yyjson_mut_arr_add_strncpy(writer.get(), files, saved.data(), saved.size());
      }
    }
  }
  yyjson_mut_val* ids = writer.list(root, "tokens");
  for (const int64_t token : tokens) yyjson_mut_arr_add_int(writer.get(), ids, token);
  return writer.text();
}

ChatLog ChatLog::from_json(std::string_view json) {
  const JsonDocument document(json);
  const Json root = document.root("the note");
  ChatLog read;
  root["messages"].each([&](const Json& each) { read.messages.push_back(read_message(each)); });
  root["turns"].each([&](const Json& each) { read.turns.push_back(read_turn(each)); });
  root["tokens"].each([&](const Json& each) { read.tokens.push_back(each.signed_integer()); });
  if (!is_whole(read)) throw TextError("the note's messages, turns and tokens are not of one conversation");
  return read;
}

}  // namespace hybridge::text
