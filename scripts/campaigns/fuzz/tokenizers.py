"""The tokenizer, chat templates and the libraries below them, with changed files and odd texts, under the sanitizers."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from compiler_flags import compile_all

from campaigns.fuzz.driver import Compiled, Input
from campaigns.fuzz.files import changed_plain, changed_text
from campaigns.fuzz.kernels import SANITIZERS
from hybridge.runtime.binding import library
from hybridge.runtime.kernels import compiling
from hybridge.runtime.text.answers import AnswerFormat

DRIVER = Path(__file__).with_name("tokenizers.cpp")
C_FLAGS = ("-x", "c", "-w", "-DHAVE_CONFIG_H", "-DPCRE2_CODE_UNIT_WIDTH=8")
FLAGS = ("-O1", "-g1", f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all", f"-I{library.SOURCES}")


class CoreText(Compiled):
    """See ``Target``: what the core does with a file and a text."""

    def prepare(self) -> None:
        """Compile the core's text with the sanitizers: a minute, once for each state of the sources."""
        self.program = compiled()


def pair(file: bytes, text: bytes, *, good: bool = False) -> Input:
    """Return a file and a text as the child reads them."""
    described = f"{len(file)} bytes: {file[:2000]!r}; {text[:80]!r}"
    return Input(struct.pack("<I", len(file)) + file + text, described, good=good)


class Tokenizers(CoreText):
    """Published kinds of tokenizers, changed nine times of ten, and as many of freely drawn parts."""

    name = "native-tokenizers"

    def make(self, seed: int, index: int) -> Input:
        """Return a text of odd pieces or of bytes that are none, for a file as it is or changed."""
        from random_tokenizers import as_bytes, random_text, random_tokenizer
        from tokenizer_zoo import odd_texts

        rng = random.Random(f"{self.name} {seed} {index}")
        if rng.random() < 0.5:
            content = random_tokenizer(rng)
            data = as_bytes(content)
            if rng.random() < 0.2:
                data = as_bytes({**content, **deep(rng)}) if rng.random() < 0.5 else changed_text(rng, data)
            text = random_text(rng).encode() * rng.choice((1, 1, 1, 300))
            return pair(data, text)
        file = rng.choice(files())
        text = odd_texts(2, ("<s>", "<|im_end|>", " <l> "), rng.randrange(1 << 30))[1].encode() * rng.choice((1, 1, 1, 50))
        if rng.random() < 0.3:
            text = rng.randbytes(rng.randint(0, 40)) + text
        good = rng.random() < 0.1
        data = file if good else changed_text(rng, file)
        return pair(data, text, good=good)


def deep(rng: random.Random) -> dict[str, object]:
    """Return a part of a tokenizer.json with many parts inside each other or in a row."""
    part, key, kind = rng.choice(
        (
            ("normalizer", "normalizers", {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}),
            ("pre_tokenizer", "pretokenizers", {"type": "ByteLevel", "add_prefix_space": True, "use_regex": False}),
            ("decoder", "decoders", {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}),
            ("post_processor", "processors", {"type": "BertProcessing", "sep": ["b", 1], "cls": ["a", 0]}),
        )
    )
    made: dict[str, object] = dict(kind)
    for _ in range(rng.choice((3, 60, 63, 64, 300))):
        made = {"type": "Sequence", key: [made]}
    return {part: made} if rng.random() < 0.5 else {part: {"type": "Sequence", key: [kind] * rng.choice((40, 100, 101, 9000))}}


class Chats(CoreText):
    """Our tests' chat templates and descriptions of answers, changed nine times of ten, and logs."""

    name = "native-chats"
    words = ("chats",)

    def make(self, seed: int, index: int) -> Input:
        """Return something said, with the marks of answers in it, for templates as they are or changed, or for a log."""
        rng = random.Random(f"{self.name} {seed} {index}")
        good = rng.random() < 0.1
        file = rng.choice(template_files() if good else [*template_files(), LOG])
        if not good:
            file = changed_text(rng, file) if file.startswith(b'{"') else changed_plain(rng, file)
        said = "".join(rng.choices(SAID, k=rng.randint(0, 30))).encode()
        if rng.random() < 0.3:
            said = rng.randbytes(rng.randint(0, 40)) + said
        return pair(file, said, good=good)


class Grammars(CoreText):
    """JSON schemas and regular expressions, changed nine times of ten, and texts that follow them."""

    name = "native-grammars"
    words = ("grammars",)

    def make(self, seed: int, index: int) -> Input:
        """Return bytes that choose among the tokens that may come, for a grammar as it is or changed."""
        rng = random.Random(f"{self.name} {seed} {index}")
        good, is_regex = rng.random() < 0.1, rng.random() < 0.4
        if is_regex:
            text = rng.choice(REGEXES)
            if not good:
                text = "".join(rng.choices([*PIECES, text], k=rng.randint(1, 9)))
            data = b"r" + (text.encode() if good or rng.random() < 0.95 else rng.randbytes(20))
        else:
            schema = json.dumps(rng.choice(SCHEMAS)).encode()
            data = b"s" + (schema if good else changed_text(rng, schema))
        choices = rng.randbytes(rng.randint(0, 60)) + bytes(rng.choices(range(256), k=rng.randint(0, 60)))
        return pair(data, choices, good=good)


class Calls(CoreText):
    """Tools whose schemas are changed half the time, for the grammar and the parser of each form of answers."""

    name = "native-calls"
    words = ("calls",)

    def make(self, seed: int, index: int) -> Input:
        """Return choices among the tokens that may come in a call, and an answer of the form's marks and odd pieces."""
        from json_schemas import parameters

        rng = random.Random(f"{self.name} {seed} {index}")
        form, looked_for = rng.choice(forms())
        schema = parameters(rng) if rng.random() < 0.8 else rng.choice(SCHEMAS)
        tools = json.dumps([{"type": "function", "function": {"name": "act", "parameters": schema}}]).encode()
        if rng.random() < 0.5:
            tools = changed_text(rng, tools)
        data = form.encode() + b"\n" + tools
        count = rng.randint(0, 255)
        choices = bytes(rng.choices(range(256), k=4 * count))
        said = "".join(rng.choices([*looked_for, *SAID, *ANSWERED], k=rng.randint(0, 30))).encode()
        return pair(data, bytes([count]) + choices + said)


class Templates(CoreText):
    """Our tests' chat templates and hostile ones, changed and put together, and random variables."""

    name = "native-templates"
    words = ("templates",)

    def make(self, seed: int, index: int) -> Input:
        """Return a template that is changed nine times of ten, and a conversation or other values."""
        from public_folders import CHAT_TEMPLATES
        from template_oracle import Conversations

        rng = random.Random(f"{self.name} {seed} {index}")
        text = rng.choice(sorted(CHAT_TEMPLATES.glob("*.jinja"))).read_text(encoding="utf-8")
        if rng.random() < 0.6:
            text = "".join(rng.choices(TEMPLATE_PIECES, k=rng.randint(1, 30)))
        for _ in range(rng.choice((0, 1, 3, 9))):
            at, length = rng.randrange(len(text) + 1), rng.choice((0, 1, 5, 40))
            text = text[:at] + rng.choice((*TEMPLATE_PIECES, text[:30], "")) * rng.choice((1, 1, 2, 300)) + text[at + length :]
        conversations = Conversations(rng.randrange(1 << 30))
        variables = json.dumps(conversations.variables() | {"x": conversations.value(), "y": conversations.value()}).encode()
        if rng.random() < 0.1:
            variables = changed_text(rng, variables)
        data = text.encode()
        if rng.random() < 0.05:
            data = rng.randbytes(5) + data
        return pair(data, variables)


TEMPLATE_PIECES = [
    *"(){}[]|.,:~+-*/%=<>!'\"\\ \n1x",
    *("{{ x }}", "{{ y|tojson }}", "{{", "}}", "{%", "%}", "{%-", "-%}", "{#", "#}"),
    *("{% endif %}", "{% endfor %}", "{% else %}", "{% endmacro %}", "{% endset %}"),
    "{% for x in messages %}",
    "{% for x, y in x|items if loop.last %}",
    "{% for i in range(99999) %}",
    "{% if x is defined and y is not none %}",
    "{% macro x(y, z=x) %}",
    "{{ x(x, *y, **y) }}",
    "{% call(z) x(y) %}{% endcall %}",
    "{% set x = namespace(x=x, y=[y]) %}",
    "{% set x.x = x.x ~ x %}",
    "{% set x = x * 9999 %}",
    "{% set y = x|string ~ x|string %}",
    "{% set x = [x, x, y] %}",
    "{% set x %}",
    "{% break %}",
    "{{ 9223372036854775807 + x - 1.5e300 ** 2 // y }}",
    "{{ messages[0].content[::-1][1:99].split(x).pop }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join(x)|upper }}",
    "{{ x.replace(y, x, 5).title()|indent(9, true)|trim(y) }}",
    "{{ '%5.3f%s%-9d' % (x, y, 3) ~ '{}{x}'.format(x, x=y) }}",
    "{{ tools|tojson(indent=x, sort_keys=true, ensure_ascii=true) }}",
    "{{ messages|sort(attribute='role,content')|unique|batch(2, y)|list }}",
    "{{ loop.changed(x, loop) ~ loop.cycle(x, y) ~ loop.length ~ loop.nextitem }}",
    "{{ x|int(base=16) ~ y|float|round(2) ~ x|abs }}",
    "{{ strftime_now('%Y%j%-d%q') ~ raise_exception(x) }}",
    "{{ ('(' * 99 ~ x)|e|safe + y }}",
    "(" * 300,
    "{% if 1 %}" * 99,
    "é漢\u2028ΑΣ",
]
REGEXES = [
    *(r"(yes|no)", r"[A-Z]{2}-\d{4}", r"(a+)+b", r"\w+@\w+\.(com|org)"),
    *(r"(?i)straße[^x]*", r"^(a|b$)", r"\p{Lu}\P{L}", r"[[:alpha:]&&[^b]]*"),
]
PIECES = [
    *"()[]{}|*+?^$.-\\a9é漢,&~",
    *("[^", "(?:", "(?i)", "{2,9}", "{1000}", r"\w", r"\D", r"\pL", r"\x{1F600}", "&&", "--", "[:alpha:]", "(?P<n>"),
]
SCHEMAS: Sequence[object] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^[A-Z][a-z]+$"},
            "kind": {"enum": ["a", 1, None, {"b": [1.5, True]}]},
            "at": {"type": "string", "format": "date-time"},
            "others": {
                "type": "array",
                "items": {"$ref": "#"},
                "prefixItems": [{"type": "null"}],
                "minItems": 1,
                "maxItems": 4,
            },
            "price": {"type": "number", "minimum": -1.25, "exclusiveMaximum": 1e3, "multipleOf": 0.05},
        },
        "required": ["name", "else"],
        "additionalProperties": {"anyOf": [{"type": "integer", "minimum": -7, "maximum": 1234}, {"const": "x\n"}]},
    },
    {
        "$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}},
        "allOf": [{"$ref": "#/$defs/node"}, {"required": ["next"], "minProperties": 1}],
    },
    {"oneOf": [{"type": "string", "format": "uri"}, {"type": ["integer", "boolean"]}], "title": "x", "nullable": True},
    {"patternProperties": {"^a": {"type": "string"}, "^b": {}}, "type": "object", "minProperties": 2, "maxProperties": 3},
]

SAID = [
    *("<think>", "</think>", "<|channel|>analysis<|message|>", "<|end|>", "</"),
    *("a", " ", "\n", "漢", "é", "{{ reasoning }}", "\0"),
]
ANSWERED = [
    *("act", "x", '"x"', '{"name": "act", "arguments": {"x": 1}}', '"', "'", "{", "}", "[", "]", "(", ")", "=", ":", ",", ">"),
    *("1", "-0.5e3", "null", "True", '\\"', "<", "</", "\\", "\r\n", "act(x=1)", '<parameter name="x">', "<parameter=x>"),
]
"""Parts of calls, for texts between a form's marks."""
LOG = json.dumps(
    {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "c"}],
        "turns": [{"start": 0, "answer": 2, "rendered": "a", "said": "b"}],
        "tokens": [1, 2, 3],
    }
).encode()
"""The note of a saved chat."""


@cache
def template_files() -> list[bytes]:
    """Return the chat templates of our tests, each as a tokenizer_config.json has it, and descriptions of answers."""
    from public_folders import CHAT_TEMPLATES
    from response_templates import TEMPLATES

    texts = [path.read_text(encoding="utf-8") for path in sorted(CHAT_TEMPLATES.glob("*.jinja"))]
    configs = [{"chat_template": text, "bos_token": "<s>", "extra_special_tokens": {"image": "<image>"}} for text in texts]
    configs.append({"chat_template": [{"name": "default", "template": texts[0]}, {"name": "tool_use", "template": texts[1]}]})
    configs += [{"chat_template": texts[0], "response_template": template} for _, _, template in TEMPLATES.values()]
    return [*(text.encode() for text in texts), *(json.dumps(each).encode() for each in configs)]


@cache
def forms() -> list[tuple[str, list[str]]]:
    """Return the name of each form of answers that has calls, and its marks."""
    names = re.findall(r'\{\.name = "([^"]+)"', (library.SOURCES / "text/answers/form.cpp").read_text(encoding="utf-8"))
    named = ((name, AnswerFormat.named(name)) for name in names)
    return [(name, form.looked_for.split("\n")) for name, form in named if form.has_calls]


@cache
def files() -> list[bytes]:
    """Return a tokenizer.json of each kind."""
    from tokenizer_zoo import ZOO

    return [make().to_str().encode() for make in ZOO.values()]


def compiled() -> Path:
    """Return the program; what is in the user's cache is not compiled again."""
    compiler = compiling.compiler() or "g++"
    own = [DRIVER, *sorted((library.SOURCES / "text").rglob("*.cpp"))]
    others = [library.SOURCES / "third_party" / name for name in ("utf8proc/utf8proc.c", "yyjson/yyjson.c")]
    others += sorted((library.SOURCES / "third_party/pcre2").glob("*.c"))
    units = [[compiler, "-std=c++20", *FLAGS, path] for path in own]
    units += [[compiler, *C_FLAGS, *FLAGS, f"-I{path.parent}", path] for path in others]
    parts = [*own, *others, *sorted(library.SOURCES.rglob("*.h")), Path(__file__)]
    program = compiling.cache_folder("fuzz") / compiling.key(parts) / "tokenizers"

    def make(unfinished: Path) -> None:
        objects = [unfinished.with_name(f"{number}.o") for number in range(len(units))]
        compile_all([[*unit, "-c", "-o", made] for unit, made in zip(units, objects, strict=True)], unfinished.parent)
        compile_all([[compiler, f"-fsanitize={SANITIZERS}", *objects, "-o", unfinished]], unfinished.parent)

    return compiling.built(program, make)
