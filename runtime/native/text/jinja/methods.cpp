// The methods of strings, lists and dicts that Jinja's immutable sandbox lets a template call.
#include <algorithm>
#include <set>
#include <span>

#include "../unicode.h"
#include "interpreter.h"
#include "operators.h"

namespace hybridge::text::jinja {

namespace {

using Method = Value (*)(Interpreter& in, const Value& self, Arguments& given);

struct Entry {
  std::string_view name;
  Method call;
};

const std::string* characters(const Bound& bound, size_t i) {
  return !bound.has(i) || bound[i].is_none() ? nullptr : &bound.text(i).bytes;
}

Value strip(Interpreter& in, const Value& self, Arguments& given, bool left, bool right) {
  const Bound bound("strip", given, {"chars"});
  return in.string(stripped(self.text(), left, right, characters(bound, 0)));
}

// The pieces of a text at whitespace.
std::vector<Value> words(Interpreter& in, const Text& text, int64_t most) {
  std::vector<Value> pieces;
  const std::string_view bytes = text.bytes;
  size_t at = 0;
  const auto skip = [&](bool spaces) {
    while (at < bytes.size() && is_python_space(character_at(bytes, at)) == spaces) at += length_of(bytes[at]);
  };
  skip(true);
  while (at < bytes.size()) {
    const size_t begin = at;
    if (most-- == 0) {
      pieces.push_back(in.string(stripped(text.part(begin, text.size()), false, true)));
      break;
    }
    skip(false);
    pieces.push_back(in.string(text.part(begin, at)));
    skip(true);
  }
  return pieces;
}

Value split(Interpreter& in, const Value& self, Arguments& given) {
  const Bound bound("split", given, {"sep", "maxsplit"});
  const Text& text = self.text();
  int64_t most = bound.integer(1, -1);
  if (characters(bound, 0) == nullptr) return Value::list(in.budget(), words(in, text, most));
  const std::string& separator = *characters(bound, 0);
  if (separator.empty()) throw TextError("empty separator");
  in.budget().spend_search(text.size(), separator.size());
  std::vector<Value> pieces;
  size_t from = 0;
  for (size_t at; most-- != 0 && (at = text.bytes.find(separator, from)) != std::string::npos;
       from = at + separator.size()) {
    pieces.push_back(in.string(text.part(from, at)));
  }
  pieces.push_back(in.string(text.part(from, text.size())));
  return Value::list(in.budget(), std::move(pieces));
}

Value rsplit(Interpreter& in, const Value& self, Arguments& given) {
  const Bound bound("rsplit", given, {"sep", "maxsplit"});
  const Text& text = self.text();
  int64_t most = bound.integer(1, -1);
  if (most < 0) return split(in, self, given);
  std::vector<Value> pieces;
  size_t end = text.size();
  if (const std::string* separator = characters(bound, 0)) {
    if (separator->empty()) throw TextError("empty separator");
    in.budget().spend_search(text.size(), separator->size());
    while (most-- > 0 && end >= separator->size()) {
      const size_t at = text.bytes.rfind(*separator, end - separator->size());
      if (at == std::string::npos) break;
      pieces.push_back(in.string(text.part(at + separator->size(), end)));
      end = at;
    }
    pieces.push_back(in.string(text.part(0, end)));
  } else {
    const auto skip = [&](size_t from, bool spaces) {  // backwards
      while (from > 0) {
        const size_t last = last_character(std::string_view(text.bytes).substr(0, from));
        if (is_python_space(character_at(text.bytes, last)) != spaces) break;
        from = last;
      }
      return from;
    };
    end = skip(end, true);
    while (most-- > 0 && end > 0) {
      const size_t begin = skip(end, false);
      pieces.push_back(in.string(text.part(begin, end)));
      end = skip(begin, true);
    }
    const Text rest = stripped(text.part(0, end), true, false);
    if (rest.size() > 0) pieces.push_back(in.string(rest));
  }
  std::ranges::reverse(pieces);
  return Value::list(in.budget(), std::move(pieces));
}

Value partition(Interpreter& in, const Value& self, Arguments& given, bool is_last) {
  const Bound bound("partition", given, {"sep"}, 1);
  const Text& text = self.text();
  const std::string& separator = bound.text(0).bytes;
  if (separator.empty()) throw TextError("empty separator");
  in.budget().spend_search(text.size(), separator.size());
  const size_t at = is_last ? text.bytes.rfind(separator) : text.bytes.find(separator);
  std::vector<Value> parts;
  if (at == std::string::npos) {
    parts = {self, in.string({}), in.string({})};
    if (is_last) std::swap(parts[0], parts[2]);
  } else {
    parts = {
        in.string(text.part(0, at)), in.string(text.part(at, at + separator.size())),
        in.string(text.part(at + separator.size(), text.size()))
    };
  }
  return Value::tuple(in.budget(), std::move(parts));
}

// The part of a text from one character to another, as slices have it.
Value between(Interpreter& in, const Value& self, const Bound& bound) {
  const auto place = [&](size_t i) { return bound.has(i) ? bound[i] : Value::none(); };
  return slice(in.budget(), self, place(1), place(2), Value::none());
}

Value has_end(Interpreter& in, const Value& self, Arguments& given, bool is_begin) {
  const Bound bound(is_begin ? "startswith" : "endswith", given, {"prefix", "start", "end"}, 1);
  const Value part = bound.has(1) ? between(in, self, bound) : self;
  const auto fits = [&](const Value& each) {
    if (!each.is_string()) throw TextError("startswith first arg must be str or a tuple of str");
    in.budget().spend(1 + each.text().size() / 64);
    const std::string& bytes = part.text().bytes;
    return is_begin ? bytes.starts_with(each.text().bytes) : bytes.ends_with(each.text().bytes);
  };
  if (bound[0].is(Kind::TUPLE)) return Value::boolean(std::ranges::any_of(bound[0].sequence().items, fits));
  return Value::boolean(fits(bound[0]));
}

Value find(Interpreter& in, const Value& self, Arguments& given, bool is_last, bool must) {
  const Bound bound("find", given, {"sub", "start", "end"}, 1);
  const Value part = bound.has(1) ? between(in, self, bound) : self;
  in.budget().spend_search(part.text().size(), bound.text(0).size());
  const std::string& bytes = part.text().bytes;
  const size_t at = is_last ? bytes.rfind(bound.text(0).bytes) : bytes.find(bound.text(0).bytes);
  if (at == std::string::npos) {
    if (must) throw TextError("substring not found");
    return Value::integer(-1);
  }
  auto index = static_cast<int64_t>(count_characters(std::string_view(bytes).substr(0, at)));
  if (const int64_t start = bound.integer(1, 0); start != 0) {
    const auto length = static_cast<int64_t>(count_characters(self.text().bytes));
    index += start < 0 ? std::max<int64_t>(start + length, 0) : start;
  }
  return Value::integer(index);
}

template <typename Is>
Value every(const Value& self, Is&& is) {
  const std::string& bytes = self.text().bytes;
  for (size_t at = 0; at < bytes.size(); at += length_of(bytes[at])) {
    if (!is(character_at(bytes, at))) return Value::boolean(false);
  }
  return Value::boolean(!bytes.empty());
}

Value justified(Interpreter& in, const Value& self, Arguments& given, int side) {
  const Bound bound("ljust", given, {"width", "fillchar"}, 1);
  const int64_t width = bound.integer(0, 0), length = static_cast<int64_t>(count_characters(self.text().bytes));
  const std::string filler = bound.has(1) ? bound.text(1).bytes : " ";
  if (count_characters(filler) != 1) throw TextError("The fill character must be exactly one character long");
  if (width <= length) return self;
  const int64_t missing = width - length;
  const int64_t left = side < 0 ? 0 : side > 0 ? missing : missing / 2 + (missing & width & 1);
  const Value pad = arithmetic(in.budget(), "*", in.string({filler}), Value::integer(left));
  const Value rest = arithmetic(in.budget(), "*", in.string({filler}), Value::integer(missing - left));
  return arithmetic(in.budget(), "+", arithmetic(in.budget(), "+", pad, self), rest);
}

constexpr Entry STRINGS[] = {
    {"strip", [](Interpreter& in, const Value& self, Arguments& given) { return strip(in, self, given, true, true); }},
    {"lstrip",
     [](Interpreter& in, const Value& self, Arguments& given) { return strip(in, self, given, true, false); }},
    {"rstrip",
     [](Interpreter& in, const Value& self, Arguments& given) { return strip(in, self, given, false, true); }},
    {"split", split},
    {"rsplit", rsplit},
    {"splitlines",
     [](Interpreter& in, const Value& self, Arguments& given) {
       const bool keeps = Bound("splitlines", given, {"keepends"}).truth(0, false);
       std::vector<Value> lines;
       for (size_t at = 0; at < self.text().size();) {
         size_t end = 0;
         const size_t next = next_line(self.text().bytes, at, end);
         lines.push_back(in.string(self.text().part(at, keeps ? next : end)));
         at = next;
       }
       return Value::list(in.budget(), std::move(lines));
     }},
    {"partition",
     [](Interpreter& in, const Value& self, Arguments& given) { return partition(in, self, given, false); }},
    {"rpartition",
     [](Interpreter& in, const Value& self, Arguments& given) { return partition(in, self, given, true); }},
    {"startswith", [](Interpreter& in, const Value& self, Arguments& given) { return has_end(in, self, given, true); }},
    {"endswith", [](Interpreter& in, const Value& self, Arguments& given) { return has_end(in, self, given, false); }},
    {"upper", [](Interpreter& in, const Value& self, Arguments&) { return in.string(upper(self.text())); }},
    {"lower", [](Interpreter& in, const Value& self, Arguments&) { return in.string(lower(self.text())); }},
    {"title", [](Interpreter& in, const Value& self, Arguments&) { return in.string(titled(self.text())); }},
    {"capitalize", [](Interpreter& in, const Value& self, Arguments&) { return in.string(capitalized(self.text())); }},
    {"replace",
     [](Interpreter& in, const Value& self, Arguments& given) {
       const Bound bound("replace", given, {"old", "new", "count"}, 2);
       const size_t places = self.text().size() / std::max<size_t>(bound.text(0).size(), 1) + 1;
       const size_t bytes = self.text().size() + places * bound.text(1).size();  // at most
       in.budget().spend_search(self.text().size(), bound.text(0).size());
       in.budget().take(bytes);
       in.budget().give_back(bytes);
       return in.string(replaced(self.text(), bound.text(0).bytes, bound.text(1), bound.integer(2, -1)));
     }},
    {"find", [](Interpreter& in, const Value& self, Arguments& given) { return find(in, self, given, false, false); }},
    {"rfind", [](Interpreter& in, const Value& self, Arguments& given) { return find(in, self, given, true, false); }},
    {"index", [](Interpreter& in, const Value& self, Arguments& given) { return find(in, self, given, false, true); }},
    {"rindex", [](Interpreter& in, const Value& self, Arguments& given) { return find(in, self, given, true, true); }},
    {"count",
     [](Interpreter& in, const Value& self, Arguments& given) {
       const Bound bound("count", given, {"sub", "start", "end"}, 1);
       const Value part = bound.has(1) ? between(in, self, bound) : self;
       const std::string& wanted = bound.text(0).bytes;
       if (wanted.empty()) return Value::integer(static_cast<int64_t>(count_characters(part.text().bytes)) + 1);
       in.budget().spend_search(part.text().size(), wanted.size());
       int64_t count = 0;
       for (size_t at = 0; (at = part.text().bytes.find(wanted, at)) != std::string::npos; at += wanted.size()) ++count;
       return Value::integer(count);
     }},
    {"join",
     [](Interpreter& in, const Value& self, Arguments& given) {
       const Bound bound("join", given, {"iterable"}, 1);
       Text text;
       text.is_markup = self.text().is_markup;
       bool is_first = true;
       for (const Value& each : items_of(in.budget(), bound[0])) {
         if (!each.is_string())
           throw TextError(std::string("sequence item: expected str instance, ") + each.type() + " found");
         if (!is_first) text.append(self.text());
         text.append(each.text());
         in.budget().spend(1 + (self.text().size() + each.text().size()) / 32);
         is_first = false;
       }
       return in.string(std::move(text));
     }},
    {"format", [](Interpreter& in, const Value& self,
                  Arguments& given) { return in.string(brace_format(in.budget(), self.text(), given)); }},
    {"removeprefix",
     [](Interpreter& in, const Value& self, Arguments& given) {
       const std::string& prefix = Bound("removeprefix", given, {"prefix"}, 1).text(0).bytes;
       return self.text().bytes.starts_with(prefix) ? in.string(self.text().part(prefix.size(), self.text().size()))
                                                    : self;
     }},
    {"removesuffix",
     [](Interpreter& in, const Value& self, Arguments& given) {
       const std::string& suffix = Bound("removesuffix", given, {"suffix"}, 1).text(0).bytes;
       return self.text().bytes.ends_with(suffix) ? in.string(self.text().part(0, self.text().size() - suffix.size()))
                                                  : self;
     }},
    {"islower",
     [](Interpreter&, const Value& self, Arguments&) { return Value::boolean(is_lower(self.text().bytes)); }},
    {"isupper",
     [](Interpreter&, const Value& self, Arguments&) { return Value::boolean(is_upper(self.text().bytes)); }},
    {"isspace", [](Interpreter&, const Value& self, Arguments&) { return every(self, is_python_space); }},
    {"isalpha", [](Interpreter&, const Value& self, Arguments&) { return every(self, is_alphabetic); }},
    {"isdigit",
     [](Interpreter&, const Value& self, Arguments&) {
       return every(self, [](char32_t c) { return c < 0x80 ? c >= '0' && c <= '9' : is_numeric(c); });
     }},
    {"isnumeric", [](Interpreter&, const Value& self, Arguments&) { return every(self, is_numeric); }},
    {"isalnum", [](Interpreter&, const Value& self,
                   Arguments&) { return every(self, [](char32_t c) { return is_alphabetic(c) || is_numeric(c); }); }},
    {"ljust", [](Interpreter& in, const Value& self, Arguments& given) { return justified(in, self, given, -1); }},
    {"rjust", [](Interpreter& in, const Value& self, Arguments& given) { return justified(in, self, given, 1); }},
    {"center", [](Interpreter& in, const Value& self, Arguments& given) { return justified(in, self, given, 0); }},
};

Value view_of(Interpreter& in, const Value& self, bool has_keys, bool has_values) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().entries) {
    if (has_keys && has_values) items.push_back(Value::tuple(in.budget(), {key, value}));
    else items.push_back(has_keys ? key : value);
  }
  return Value::sequence(
      in.budget(), Kind::VIEW, std::move(items),
      has_keys && has_values ? "dict_items"
      : has_keys             ? "dict_keys"
                             : "dict_values"
  );
}

constexpr Entry DICTS[] = {
    {"get",
     [](Interpreter&, const Value& self, Arguments& given) {
       const Bound bound("get", given, {"key", "default"}, 1);
       const Value* found = self.dict().find(bound[0]);
       return found != nullptr ? *found : bound.has(1) ? bound[1] : Value::none();
     }},
    {"items", [](Interpreter& in, const Value& self, Arguments&) { return view_of(in, self, true, true); }},
    {"keys", [](Interpreter& in, const Value& self, Arguments&) { return view_of(in, self, true, false); }},
    {"values", [](Interpreter& in, const Value& self, Arguments&) { return view_of(in, self, false, true); }},
    {"copy", [](Interpreter& in, const Value& self, Arguments&) {
       Value made = Value::dict(in.budget());
       for (const auto& [key, value] : self.dict().entries) made.dict().set(key, value);
       return made;
     }},
};

Value index_of(Interpreter& in, const Value& self, Arguments& given) {
  const Bound bound("index", given, {"value"}, 1);
  const auto& items = self.sequence().items;
  const auto found = std::ranges::find_if(items, [&](const Value& each) { return equal(in.budget(), each, bound[0]); });
  if (found == items.end()) throw TextError("the value is not in the list");
  return Value::integer(found - items.begin());
}

constexpr Entry LISTS[] = {
    {"index", index_of},
    {"count",
     [](Interpreter& in, const Value& self, Arguments& given) {
       const Bound bound("count", given, {"value"}, 1);
       return Value::integer(std::ranges::count_if(self.sequence().items, [&](const Value& each) {
         return equal(in.budget(), each, bound[0]);
       }));
     }},
    {"copy",
     [](Interpreter& in, const Value& self, Arguments&) { return Value::list(in.budget(), self.sequence().items); }},
};

// What exists in Python and changes its object, or is not for templates.
bool is_forbidden(const Value& of, std::string_view name) {
  static const std::set<std::string_view> OF_LISTS = {"append", "clear", "pop",    "reverse",
                                                      "insert", "sort",  "extend", "remove"};
  static const std::set<std::string_view> OF_DICTS = {"clear", "pop", "popitem", "setdefault", "update"};
  static const std::set<std::string_view> OF_ALL = {"__class__", "__init__",     "__doc__",          "__eq__",
                                                    "__hash__",  "__new__",      "__str__",          "__repr__",
                                                    "__dir__",   "__reduce__",   "__getattribute__", "__len__",
                                                    "__iter__",  "__contains__", "__getitem__",      "__format__"};
  return (name.starts_with("__") && OF_ALL.contains(name)) || (of.is(Kind::LIST) && OF_LISTS.contains(name)) ||
         (of.is_dict() && OF_DICTS.contains(name));
}

}  // namespace

std::optional<Value> method(Interpreter& in, const Value& of, const std::string& name) {
  std::span<const Entry> entries;
  if (of.is_string()) entries = STRINGS;
  else if (of.is_dict()) entries = DICTS;
  else if (of.is(Kind::LIST)) entries = LISTS;
  else if (of.is(Kind::TUPLE)) entries = std::span(LISTS).first(2);
  for (const Entry& each : entries) {
    if (each.name != name) continue;
    return Value::function(
        in.budget(), name, of.levels(), [of, call = each.call](Interpreter& inside, Arguments& given) {
          if (of.is_string()) inside.budget().spend(of.text().size() / 32);
          return call(inside, of, given);
        }
    );
  }
  if (is_forbidden(of, name))
    return in.undefined("access to attribute '" + name + "' of '" + of.type() + "' object is unsafe.");
  return std::nullopt;
}

}  // namespace hybridge::text::jinja
