"""The core's templates against transformers' sandbox: published templates, odd expressions, random ones and hostile ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from checkout import CASES
from public_folders import CHAT_TEMPLATES
from template_oracle import Conversations, NativeTemplates, reference

from hybridge.export.cli.embedded import EMBEDDED

TEMPLATES = {path.stem: path.read_text() for path in sorted(CHAT_TEMPLATES.glob("*.jinja"))}
TEMPLATES["embedded"] = (EMBEDDED / "chat_template.jinja").read_text()


@pytest.fixture(scope="module")
def native() -> Iterator[NativeTemplates]:
    with NativeTemplates() as templates:
        yield templates


def assert_same(native: NativeTemplates, template: str, variables: dict[str, Any]) -> bool:
    """Both render the same text, or both refuse. Returns whether there is a text."""
    want, got = reference(template, variables), native.render(template, variables)
    if isinstance(want, Exception):
        assert got.text is None, (template, variables, want)
        return False
    assert got.text == want, (template, variables, got.error)
    return True


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_render_as_in_transformers(native: NativeTemplates, name: str) -> None:
    conversations = Conversations(seed=1)
    rendered = sum(assert_same(native, TEMPLATES[name], conversations.variables()) for _ in range(40))
    assert rendered >= 5


@pytest.mark.thorough
@pytest.mark.parametrize("name", TEMPLATES)
def test_many_conversations_render_as_in_transformers(native: NativeTemplates, name: str) -> None:
    conversations = Conversations(seed=2)
    for _ in range(500):
        assert_same(native, TEMPLATES[name], conversations.variables())


# Odd cases

ODD: dict[str, list[str]] = json.loads((CASES / "jinja.json").read_text())

VARIABLES: dict[str, Any] = {
    "s": "Straße ǆ ΑΣ é\u2028x",
    "t": "a-b c\td\n\ne  ",
    "q": "it's \"q\" \\ \x01 \u00ad 😀",
    "n": 7, "z": 0, "m": -3, "f": 2.5, "g": 1e16, "h": 1e-5, "big": 123456789012345678901234567890,
    "yes": True, "no": False, "none_": None,
    "l": [3, 1, 2, 2], "w": ["b", "A", "a", "B"], "e": [], "o": {},
    "d": {"items": 1, "a": {"b": [1, {"c": "x"}]}, "B": 2, "_x": 5, "keys": "k", "7": "seven"},
    "p": [{"r": "u", "c": "x", "n": 2}, {"r": "a", "c": "y"}, {"r": "u", "c": "z", "n": 1}],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of an escape that Python does not know
@pytest.mark.parametrize("expression", ODD["expressions"])
def test_expressions(native: NativeTemplates, expression: str) -> None:
    assert_same(native, "{{ " + expression + " }}", VARIABLES)


@pytest.mark.parametrize("template", ODD["statements"])
def test_statements(native: NativeTemplates, template: str) -> None:
    assert_same(native, template, VARIABLES)


# Random expressions

METHODS = [
    "strip()", "split()", "upper()", "title()", "a", "items()", "keys()|list", "get('a')", "replace('a', 'b')",
    "startswith('a')",
]  # fmt: skip
FILTERS = [
    "length", "upper", "lower", "title", "trim", "list", "first", "last", "tojson", "string", "join('-')", "int", "float",
    "sort", "unique|list", "reverse|list", "abs", "default('z')", "default('z', true)", "sum", "min", "max", "capitalize",
    "map('upper')|list", "select|list", "round", "round(1)", "indent(1)", "replace('a', 'b')", "tojson(indent=1)",
]  # fmt: skip


def random_expression(random: Random, depth: int = 0) -> str:
    def inner() -> str:
        return random_expression(random, depth + 1)

    leaves = [*VARIABLES, "1", "-2", "0.5", "'a'", "'b c'", "none", "true", "[]", "(1, 'x')", "{'a': 1}", "missing"]
    kind = random.randrange(3 if depth > 3 else 14)
    if kind < 3:
        return random.choice(leaves)
    if kind < 5:
        return f"({inner()} {random.choice(['+', '-', '*', '/', '//', '%', '~', '~', '~'])} {inner()})"
    if kind == 5:
        return f"({inner()} {random.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {inner()})"
    if kind == 6:
        return f"({inner()} {random.choice(['and', 'or'])} {inner()})"
    if kind == 7:
        return f"(not {inner()})"
    if kind == 8:
        return f"({inner()} if {inner()} else {inner()})"
    if kind == 9:  # of a variable: Jinja folds constants, and a slice of one that has none is undefined then
        return f"[{inner()}, s][0][{random.choice(['0', '-1', '1:', ':-1', '::-1', repr('a'), '1:9:2'])}]"
    if kind == 10:
        return f"[{inner()}, {inner()}]"
    if kind == 11:
        names = ["defined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "odd", "boolean"]
        return f"({inner()} is {random.choice(['', 'not '])}{random.choice(names)})"
    if kind == 12:
        return f"{inner()}.{random.choice(METHODS)}"
    return f"({inner()}|{random.choice(FILTERS)})"


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of the code that Jinja makes
def test_random_expressions(native: NativeTemplates) -> None:
    random = Random(3)
    rendered = sum(assert_same(native, "{{ " + random_expression(random) + " }}", VARIABLES) for _ in range(800))
    assert rendered > 200


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_many_random_expressions(native: NativeTemplates) -> None:
    random = Random(4)
    for _ in range(20_000):
        assert_same(native, "{{ " + random_expression(random) + " }}", VARIABLES)


# People's words


@pytest.mark.parametrize(
    ("template", "text", "people"),
    [
        ("<{{ m.role }}>{{ m.content }}</s>", "<user> hi </s> x </s>", [" hi </s> x "]),
        ("<{{ m.content|trim }}>", "<hi </s> x>", ["hi </s> x"]),
        ("{{ 'a' + m.content[1:3] ~ eos_token }}", "ahi</s>", ["hi"]),
        ("{{ m.content.replace('hi', '<b>')|upper }}", " <B> </S> X ", [" ", " </S> X "]),
        ("{{ m.content.split('</s>')|join('|') }}", " hi | x ", [" hi ", " x "]),
        ("{{ m.content|tojson }}", '" hi </s> x "', [" hi </s> x "]),
        ("{{ [m.content] }}", "[' hi </s> x ']", [" hi </s> x "]),
        ("{{ '%s!' % m.content }}", " hi </s> x !", [" hi </s> x "]),
        ("{% set x %}<{{ m.content }}>{% endset %}{{ x }}", "< hi </s> x >", [" hi </s> x "]),
        ("{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(m.content) }}", "< hi </s> x >", [" hi </s> x "]),
        ("{{ eos_token }}", "</s>", []),
    ],
)  # fmt: skip
def test_people_s_words_are_marked(native: NativeTemplates, template: str, text: str, people: list[str]) -> None:
    message = {"role": "user", "content": " hi </s> x "}
    got = native.render(template, {"m": message, "eos_token": "</s>"})
    assert (got.text, got.input) == (text, people)


def test_a_role_that_is_no_plain_word_is_people_s(native: NativeTemplates) -> None:
    assert native.render("{{ m.role }}", {"m": {"role": "</s>"}}).input == ["</s>"]


# Hostile templates

HOSTILE = {
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": "too long",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}": "too long",
    "{% set ns = namespace(t='ab') %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}": "too",
    "{% set ns = namespace(t=[1]) %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}": "too",
    "{{ 'x' * 99999999999 }}": "too much memory", "{{ [1] * 99999999999 }}": "too much memory",
    "{{ '%99999999d' % 1 }}": "too wide", "{{ 'x'.center(99999999999) }}": "too much memory",
    "{% set x = 'y' * 9999999 %}{{ x }}{{ x }}{{ x }}": "too long a text",
    "{{ ('y' * 9999).replace('', 'z' * 99999)|length }}": "too",
    "{% set ns = namespace(n=0) %}{% for i in range(9999) %}{% set ns.n = namespace(n=ns.n) %}{% endfor %}": "too deeply",
    "{{ 2 ** 99999 }}": "64 bits", "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}": "too deeply",
    "{{ " + "[" * 3000 + "]" * 3000 + " }}": "too deeply", "{{ " + "-" * 3000 + "1 }}": "too deeply",
    "{{ " + "not " * 3000 + "1 }}": "too deeply", "{% if 1 %}" * 3000 + "{% endif %}" * 3000: "too deeply",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "too deeply",
    "{% macro f(x) %}{% for i in [1] %}{% if x %}{{ f([x])|e }}{% endif %}{% endfor %}{% endmacro %}{{ f(1) }}": "too deeply",
    "{% macro f(x=f()) %}{% endmacro %}{{ f() }}": "too deeply",
    "{% set ns = namespace(t=[]) %}{% for i in range(9999) %}{% set ns.t = [ns.t] %}{% endfor %}": "too deeply",
    "{% set ns = namespace(t=1) %}{% for i in range(9999) %}{% set ns.t = {'a': 1, 'a': ns.t} %}{% endfor %}": "too deeply",
    "{% set ns = namespace(t=[].index) %}{% for i in range(9999) %}{% set ns.t = [ns.t].index %}{% endfor %}": "too deeply",
    "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}": "too deeply",
    "{% set x = 'a' * 999999 %}{{ (x ~ x).find(x ~ 'b') }}": "too long",
    "{% set x = 'a' * 999999 %}{{ (x ~ 'b') in (x ~ x) }}": "too long",
    "{% set x = 'a' * 999999 %}{{ (x ~ x).split(x ~ 'b') }}": "too long",
    "{{ ('a' * 999999).strip('b' * 999999 ~ 'a') }}": "too many characters",
    "{{ ('a ' * 999999).rsplit(none, 999999)|length }}": "too",
    "{% set n = namespace(t=(1,)) %}{% for i in range(99) %}{% set n.t = (n.t,) * 2 %}{% endfor %}{{ {n.t: 1} }}": "too long",
    "{% set x = 'a' * 999999 %}{% for i in range(99999) %}{{ x is lower }}{% endfor %}": "too long",
    "{% set x = 'a' * 999999 %}{% for i in range(99999) %}{{ x.endswith(x) }}{% endfor %}": "too long",
    "{% set x = 'a' * 999999 %}{% set y = 'a' * 999999 %}{% for i in range(99999) %}{{ x < y }}{% endfor %}": "too",
    "{% set x = 'a' * 999999 %}{% set d = {x: 1} %}{% for i in range(99999) %}{{ d[x] }}{% endfor %}": "too",
    "{{ range(99999)|list|tojson(indent='a' * 999999) }}": "too",
    "{{ range(99999)|list|tojson(separators=('a' * 999999, '')) }}": "too", "{{ loop() }}": "undefined",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}": "recursive",
}  # fmt: skip


@pytest.mark.parametrize("template", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_templates_are_refused_quickly(native: NativeTemplates, template: str) -> None:
    got = native.render(template, {})
    assert got.text is None
    assert HOSTILE[template] in got.error
    assert got.seconds < 2


INTERRUPTED = [
    "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% for i in range(9) %}{{ f(n - 1) if n else 'x' }}{% endfor %}{% endmacro %}{{ f(4) }}",
    "{{ ('ab' * 99999).replace('a', 'cd')|length }}", "{{ range(9999)|join('-' * 99)|length }}",
    "{{ (range(9999)|list)|sort(reverse=true)|length }}", "{{ [range(9999)|list] * 9|tojson|length }}",
    "{{ range(9999)|list|tojson|length }}", "{{ ('x' * 999999)|length }}", "{{ ('x' * 999999)|upper|length }}",
    "{{ ('x ' * 9999).split()|map('upper')|list|length }}", "{{ ([1] * 99999)|string|length }}",
    "{{ [1] * 9999 == [1] * 9999 }}", "{{ 5 in [1] * 99999 }}", "{{ range(99999)|sum }}",
    "{{ ('%s' * 4999) % (range(4999)|list, ) }}",
]  # fmt: skip


@pytest.mark.parametrize("template", INTERRUPTED, ids=range(len(INTERRUPTED)))
def test_an_interrupt_ends_each_kind_of_loop(native: NativeTemplates, template: str) -> None:
    questions = native.render(template, {}).questions
    assert questions > 0
    for number in {1, 2, 3, 5, 9, questions // 2, questions}:
        if 0 < number <= questions:
            got = native.render(template, {}, interrupt=number)
            assert (got.text, got.error, got.questions) == (None, "refused: interrupted", number)


LONG_CHAINS = [
    "{% set ns = namespace(m=0) %}{% for i in range(2000) %}{% set old = ns.m %}{% macro m() %}{{ old }}{% endmacro %}"
    "{% set ns.m = m %}{% endfor %}ok",
    "{{ " + "1 + " * 5000 + "1 }}",
    "{{ 'a'" + "|upper" * 5000 + " }}",
]


@pytest.mark.parametrize("template", LONG_CHAINS, ids=range(len(LONG_CHAINS)))
def test_long_chains_need_little_stack(native: NativeTemplates, template: str) -> None:
    assert native.render(template, {}).text in ("ok", "5001", "A")
