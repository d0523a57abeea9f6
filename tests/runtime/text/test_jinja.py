"""The core's templates against transformers' sandbox: published templates, odd expressions, random ones and hostile ones."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
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

EXPRESSIONS = """
s|upper
s|lower
s|title
s|capitalize
s.title()
s.capitalize()
t.split()
t.split(' ')
t.split('\\n', 1)
t.rsplit(None, 1)
t.rsplit(' ', 1)
t.splitlines()
t.splitlines(true)
t.strip('a e')
t.lstrip('-a') ~ '|' ~ t.rstrip()
t.partition('-')
t.rpartition('-')
t.replace('', '.')
t.replace('a', 'b', 0)
t|replace('a', 'bb')
t.startswith(('x', 'a'))
t.endswith('  ')
t.startswith('b', 2)
t.find('c') ~ t.find('zz') ~ t.rfind(' ') ~ t.count(' ') ~ t.index('b', 1)
t.removeprefix('a-').removesuffix('  ')
t[::-1] ~ t[1:3] ~ t[-2:] ~ t[:-1:2] ~ t[100:] ~ t[5:1:-2]
s[0] ~ s[-1] ~ s[4]
s[99] is defined
s|length
s|list
s|first ~ s|last
s|reverse
q
[q]
q|tojson
q|tojson(ensure_ascii=true)
d|tojson(indent=2)
d|tojson(indent='--', sort_keys=true)
[d, e, o, f, g, h, yes, none_, big]|tojson(separators=(',', ':'))
{1: 2, none: 3, true: 4, 2.5: 5}|tojson
(1, 2)|tojson
undefined_name|tojson
l|map('string')|tojson
[1, 2.0, 'x', none, true, (1,), {}, {'a': []}]
[f, g, h, 0.1, 1e22, 123456789.123, 1e15, 0.0001, -0.0, 5e-324, 1.7976931348623157e308]
1/3
10/5
7//2 ~ -7//2 ~ 7 % -3 ~ -7 % 3 ~ 7.5 // 2 ~ -7.5 % 2
2**10 ~ 2**-1 ~ 2.0**0.5
2**3**2
-2**2
1/0
1 % 0
1 + true
'a' * 3 ~ [1] * 2 ~ 'a' * -1
'a' + 1
'a' ~ 1 ~ none ~ true ~ 1.0
[1] + [2] + e
(1,) + (2,)
1 < 2 < 3
1 < 2 > 3
'a' < 'b'
'a' < 1
[1, 2] < [1, 3]
1 == 1.0 == true
'1' == 1
none == undefined_name
undefined_name == other_name
'a' in 'abc' and 'a' not in 'xyz'
1 in 'abc'
'a' in none
'a' in undefined_name
2 in l and 'a' in d and 'zz' not in d
not 1 == 2
not not e
yes and e
no or 'x'
e or o
yes if no
(yes if no) is defined
'a' if yes else 'b'
undefined_name
undefined_name.x
undefined_name['x']
undefined_name()
undefined_name + 1
undefined_name|length
undefined_name|list
undefined_name|default('x')
undefined_name|default
''|default('x')
''|default('x', true)
none|default('x')
none.x
none['x'] is defined
d.items is callable
d['items']
d.a.b[1].c
d.nothing is defined
d.nothing.x
d._x
d.__class__
d['7'] ~ d[7]
d.get('a') is mapping
d.get('zz', 5)
d.keys()|list
d.items()|list|length
d|items|list
d.values()|list|last
o.values()
{'a': 1}.keys()
{'a': 1}.items()
d.update({})
d.pop('a')
l.append(1)
l.index(2) ~ l.count(2)
l.index(9)
l|sort ~ l|sort(reverse=true)
w|sort ~ w|sort(case_sensitive=true)
[1, 'a']|sort
l|unique|list
w|unique|list
l|sum ~ l|min ~ l|max
e|sum ~ (e|min is defined)
p|sort(attribute='r')|map(attribute='c')|join
p|map(attribute='n')|list
p|map(attribute='n', default=0)|list
p|selectattr('r', 'equalto', 'u')|list|length
p|selectattr('n')|map(attribute='c')|list
p|selectattr('n', 'defined')|list
p|rejectattr('n', 'undefined')|list
p|selectattr('r', 'in', ['a'])|first
p|sum(attribute='n')
l|select('odd')|list ~ l|reject('odd')|list
l|select('>', 1)|list
l|select|list
l|map('nothing')|list
w|map('upper')|join(', ')
p|join(',', attribute='c')
l|join('-') ~ e|join
l|first ~ l|last ~ (e|first is defined)
l|reverse|list
l|batch(3)|list ~ l|batch(3, 0)|list
d|dictsort|map('first')|list
d|dictsort(true)|map('first')|list
{'a': 2, 'b': 1}|dictsort(by='value', reverse=true)
'3.7'|int ~ ' 42 '|int ~ 'x'|int ~ 'x'|int(5) ~ 'ff'|int(base=16) ~ 3.99|int ~ yes|int
none|int
'1.5e3'|float ~ 'x'|float ~ 3|float ~ '.5'|float ~ 'inf'|float
2.5|round ~ 3.5|round ~ 2.675|round(2) ~ 2.1|round(0, 'ceil') ~ 7|round ~ -2.5|round
-3|abs ~ (-2.5)|abs
t|indent ~ '|' ~ t|indent(2, true) ~ '|' ~ t|indent('>', blank=true)
'  x '|trim ~ 'xxaxx'|trim('x')
'%s is %d, %05.2f and %r' % ('a', 3, 2.5, 'b')
'%s' % l
'%5d|%-5d|%x|%%' % (3, 4, 255)
'%(a)s' % {'a': 1}
'%d' % 'x'
'%s %s' % 'x'
'%s-%s'|format('a', 1)
'{} {}'.format(1, 'a') ~ '{1}{0}'.format('a', 'b') ~ '{x}{{}}'.format(x=2)
','.join(['a', 'b'])
','.join([1])
range(5)|list ~ range(5, 0, -2)|list ~ range(3)
range(3)[1] ~ (range(3)|length)
range(1000000)|length
range(0, 5, 0)
'<a>'|safe ~ '<b>'
('<a>'|safe) + '<b>'
'<b>' + ('<a>'|safe)
'<a>'|escape
dict(a=1, b=2)
namespace(a=1).a
namespace(a=1).b is defined
namespace(_a=1)
raise_exception('no')
strftime_now('%Y-%m-%d %H:%M:%S %A %a %B %b %d %j %y %I %p %-d %e %%')
nothing()
n()
n is integer ~ f is float ~ n is number ~ yes is integer ~ yes is number ~ yes is boolean
s is string ~ d is mapping ~ l is sequence ~ s is iterable ~ n is iterable ~ d is sequence ~ s is sequence
n is odd ~ n is even ~ n is divisibleby(7) ~ n is divisibleby 2
none is none ~ n is none ~ undefined_name is none
n is sameas n ~ none is sameas none ~ yes is sameas true
'a' is in 'abc' ~ 1 is in [1]
n is eq(7) ~ n is ne 7 ~ n is gt 3 ~ n is lessthan 3 ~ n is ge 7
'abc' is lower ~ 'ABC' is upper ~ '1' is lower
n is not none and n is defined
n is nothing
n|nothing
1_000 + 0x1f + 0b11 + 0o7
1.5e3 ~ 1e2 ~ 0.5
'a' 'b' "c"
'\\n\\t\\x41\\u00e9\\'\\q'
(1, 2)[0] ~ (1,) ~ ()
[1, 2, 3,]
{'a': 1,}
{'a': 1, 'a': 2}
{[]: 1}
{1: 'a', 1.0: 'b', true: 'c'}
l[0] ~ l[-1] ~ (l[9] is defined)
l[1:] ~ l[::-1] ~ l[::2]
l['x'] is defined
d[1:2]
l[::0]
n[0] is defined
n.x is defined
big ~ [big]
big == big
big is odd ~ big is even ~ big is divisibleby(3)
'a'|upper|lower ~ 'A'|lower
'a b'|title ~ "it's o'neill"|title ~ "it's o'neill".title()
s.isdigit() ~ '12'.isdigit() ~ 'ab'.isalpha() ~ ' '.isspace() ~ 'a1'.isalnum()
'ab'.center(5) ~ 'ab'.ljust(4, '.') ~ 'ab'.rjust(4)
1,
1, 2
""".strip().splitlines()

STATEMENTS = [
    "a\n  {% if yes %}\n b\n  {% endif %}\nc\n",
    "a {%- if yes -%}  b {%- endif +%}\n c {{- 1 -}} d",
    "  {#- x -#}  y {# z #}\n w  {#+ v +#}\n",
    "  {%+ if yes %}x{% endif %}",
    "{% raw %}{{ x }}{% y %}{% endraw %}z{%- raw -%}  a  {%- endraw -%}  b",
    "x\r\ny\rz\n\n",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}"
    "{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }};{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }}{{ loop.length }},{% else %}none{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}",
    "{% for x in none %}{% endfor %}",
    "{% for x in nothing %}a{% else %}b{% endfor %}",
    "{% for x in 'abc' %}{{ x }}.{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{% if loop.index == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% break %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% for i in l %}{% if loop.first %}{% set y = i %}{% endif %}{{ y is defined }}{% endfor %}",
    "{% set ns = namespace(a=0) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns }}",
    "{% for i in l if not ns.done %}{% endfor %}",
    "{% set ns = namespace(done=false) %}{% for i in l if not ns.done %}{{ i }}{% set ns.done = i == 1 %}{% endfor %}",
    "{% set d.x = 1 %}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (a, b) = (b, a) %}{{ a }}{{ b }}",
    "{% set x %} a {{ n }} {% endset %}[{{ x }}]{% set y | trim | upper %} b {% endset %}[{{ y }}]",
    "{% macro f(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3, 4, z=5) }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f() }}{{ f(b=1, a=3) }}{{ f(1)|upper }}",
    "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}",
    "{% macro f() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}",
    "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro f(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) f(3) %}{{ y }}!{% endcall %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}",
    "{% filter upper %}a{{ n }}b{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}",
    "{% generation %}a{{ n }}{% endgeneration %}b",
    "{% if n == 1 %}a{% elif n == 7 %}b{% else %}c{% endif %}",
    "{% if yes %}{% else %}{% endif %}{% if %}{% endif %}",
    "{% for x in l %}{{ loop.index }}{% for y in w %}{{ loop.index }}{% endfor %}{% endfor %}",
    "{% set it = l|map('string') %}{{ it|join }}{{ it|join }}",
    "{% print n %}",
    "{% include 'x' %}",
    "{% nothing %}",
    "{{ n",
    "{% if yes %}",
    "{{ n }} }} %} #}",
    "{{ [1, {'a': '}}'}] }}{{ '%}' }}",
    "{{ {'a': {'b': 1}}.a.b }}{{ {'a': {'b': 1}} }}",
    "{{ (1 }}",
    "{{ n n }}",
    "{% set loop = 3 %}{{ loop }}",
    "{% for x in [1] %}{{ x }}{% endfor %}{{ x is defined }}{{ loop is defined }}",
    "{%- for x in l -%} {{- x -}} {%- endfor -%}",
    "{{ '{{' }}{{ '\\n' }}\n{{ n }}\n",
    "",
    "\n",
    "{",
    "{{ '' }}\n",
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of an escape that Python does not know
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions(native: NativeTemplates, expression: str) -> None:
    template = "{{ " + expression.replace("\\\\", "\\") + " }}"
    assert_same(native, template, VARIABLES)


@pytest.mark.parametrize("template", STATEMENTS)
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
    "{{ 'x' * 99999999999 }}": "too much memory",
    "{{ [1] * 99999999999 }}": "too much memory",
    "{{ '%99999999d' % 1 }}": "too wide",
    "{{ 'x'.center(99999999999) }}": "too much memory",
    "{% set x = 'y' * 9999999 %}{{ x }}{{ x }}{{ x }}": "too long a text",
    "{{ ('y' * 9999).replace('', 'z' * 99999)|length }}": "too",
    "{% set ns = namespace(n=0) %}{% for i in range(9999) %}{% set ns.n = namespace(n=ns.n) %}{% endfor %}": "too deeply",
    "{{ 2 ** 99999 }}": "64 bits",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}": "too deeply",
    "{{ " + "[" * 3000 + "]" * 3000 + " }}": "too deeply",
    "{{ " + "-" * 3000 + "1 }}": "too deeply",
    "{{ " + "not " * 3000 + "1 }}": "too deeply",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000: "too deeply",
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
    "{{ range(99999)|list|tojson(separators=('a' * 999999, '')) }}": "too",
    "{{ loop() }}": "undefined",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}": "recursive",
}


@pytest.mark.parametrize("template", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_templates_are_refused_quickly(native: NativeTemplates, template: str) -> None:
    got = native.render(template, {})
    assert got.text is None
    assert HOSTILE[template] in got.error
    assert got.seconds < 2


INTERRUPTED = [
    "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% for i in range(9) %}{{ f(n - 1) if n else 'x' }}{% endfor %}{% endmacro %}{{ f(4) }}",
    "{{ ('ab' * 99999).replace('a', 'cd')|length }}",
    "{{ range(9999)|join('-' * 99)|length }}",
    "{{ (range(9999)|list)|sort(reverse=true)|length }}",
    "{{ [range(9999)|list] * 9|tojson|length }}",
    "{{ range(9999)|list|tojson|length }}",
    "{{ ('x' * 999999)|length }}",
    "{{ ('x' * 999999)|upper|length }}",
    "{{ ('x ' * 9999).split()|map('upper')|list|length }}",
    "{{ ([1] * 99999)|string|length }}",
    "{{ [1] * 9999 == [1] * 9999 }}",
    "{{ 5 in [1] * 99999 }}",
    "{{ range(99999)|sum }}",
    "{{ ('%s' * 4999) % (range(4999)|list, ) }}",
]


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
