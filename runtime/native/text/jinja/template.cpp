#include "template.h"

#include "../../third_party/yyjson/yyjson.h"
#include "../json.h"
#include "../unicode.h"
#include "interpreter.h"
#include "parser.h"

namespace hybridge::text::jinja {

namespace {

// Adds the members of a JSON object. is_input: of variables that are people's. Throws TextError.
void add(Budget& budget, std::string_view variables, bool is_input, Value& all) {
  if (JsonDocument::nesting(variables) > MOST_NESTED)
    throw TextError("the variables of the chat template are nested too deeply");
  yyjson_read_err error;
  const std::unique_ptr<yyjson_doc, decltype(&yyjson_doc_free)> document(
      yyjson_read_opts(
          const_cast<char*>(variables.data()), variables.size(), YYJSON_READ_BIGNUM_AS_RAW, nullptr, &error
      ),
      yyjson_doc_free
  );
  yyjson_val* const root = document == nullptr ? nullptr : yyjson_doc_get_root(document.get());
  if (!yyjson_is_obj(root)) throw TextError("the variables of the chat template are no JSON object");
  size_t place, count;
  yyjson_val *key, *value;
  yyjson_obj_foreach(root, place, count, key, value) {
    const std::string name(yyjson_get_str(key), yyjson_get_len(key));
    all.dict().set(
        Value::string(budget, {name}), Value::from_json(budget, value, is_input && !name.ends_with("_token"))
    );
  }
}

}  // namespace

// budget: of reading, which pays for the tree's constants as long as they live.
struct Template::Read {
  explicit Read(std::string_view source)
      : bytes(source.size()), budget(Limits(source.size()), nullptr), block(parse(source, budget)) {}

  size_t bytes;
  Budget budget;
  Block block;
};

Template::Template(std::string_view source) {
  if (!is_valid_utf8(source)) throw TextError("the chat template is no UTF-8");
  read_ = std::make_unique<Read>(source);
}

Template::~Template() = default;

Text Template::render(std::string_view variables, const RenderOptions& options) const {
  const Limits limits(read_->bytes + options.own.size() + variables.size());
  Budget budget(limits, options.interrupted);
  Interpreter interpreter(budget, limits.output, options.now);
  Value all = Value::dict(budget);
  add(budget, options.own, false, all);
  add(budget, variables, true, all);
  return interpreter.render(read_->block, all);
}

}  // namespace hybridge::text::jinja
