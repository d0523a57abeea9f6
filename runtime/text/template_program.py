"""Render chat templates for another process, as transformers does: in Jinja's sandbox, within limits of the system's.

Run as a script, whose argument is the caller's ``sys.path`` as JSON. A template is a program by the model's author: here it
gets no more memory than the request allows, and the caller kills this process if it takes too long. Only Jinja is imported,
so the process starts within a tenth of a second.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any

if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning; templates read the first, gpt-oss' the second."""


class GenerationTag(jinja2.ext.Extension):
    """``{% generation %}``, which marks the assistant's text and changes none."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Return the nodes inside the tag."""
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Namespace(jinja2.utils.Namespace):
    """Jinja's namespace, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that a template may give it a "self"
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class Dict:
    """Makes dicts, and gives templates no other access to the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return ``dict.fromkeys`` of the arguments."""
        return dict.fromkeys(*args)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}, which begins with an underscore.")


def _raise(message: Any) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(8)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),  # noqa: DTZ005  # local time, as transformers
        "dict": Dict(), "namespace": Namespace,
    }  # fmt: skip
    return environment.from_string(template)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its reasoning under both names that templates read."""
    reason = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if reason is None else {"thinking": reason, **message, "reasoning_content": reason}


def _text(template: str, messages: list[dict[str, Any]], variables: dict[str, Any], characters: int) -> str:
    """Return the rendered text. Raises ValueError if it has more than ``characters``."""
    variables = {"tools": None, "documents": None, **variables}
    pieces, length = [], 0
    for piece in _compiled(template).generate(messages=[*map(_message, messages)], add_generation_prompt=True, **variables):
        pieces.append(piece)
        length += len(piece)
        if length > characters:
            raise ValueError(f"it makes a text of more than {characters} characters")
    return "".join(pieces)


def _clock(now: str | None) -> dict[str, Any]:
    """Return the function by which a template sees the time ``now``; none leaves it the system's.

    In place of a time, ``now`` may be a text with ``{format}``, which stands for every date then.
    """
    if now is None:
        return {}
    return {"strftime_now": (lambda form: now.format(format=form)) if "{" in now else datetime.fromisoformat(now).strftime}


def _limit(memory: int, seconds: int) -> None:
    """Limit the process's bytes of memory, and its seconds of computing from now on: its caller may be gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime)
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, spent + 2 * seconds + 1)):
        try:
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
        except (ValueError, OSError):  # the system's limit is lower, or it has none of this kind
            continue


def answer(line: bytes) -> dict[str, Any]:
    """Return the answer to a request: its text, or an error."""
    try:
        asked = json.loads(line)
        _limit(asked["memory"], asked["seconds"])
        variables = asked["variables"] | _clock(asked.get("now"))
        text = _text(asked["template"], asked["messages"], variables, asked["characters"])
        text.encode()  # half a surrogate pair is no text, and fails here
    except jinja2.TemplateSyntaxError as error:
        return {"syntax": error.message, "line": error.lineno}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except Exception as error:  # a template is a program: it may run into anything
        return {"error": str(error).strip()[:1000] or type(error).__name__}
    return {"text": text}


def main() -> None:
    """Answer requests, a line each, until stdin ends."""
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(answer(line)).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
