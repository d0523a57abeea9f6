"""The grammar that ``--json-schema``, ``--regex`` or ``--grammar`` asks for."""

from __future__ import annotations

import json
from pathlib import Path

from hybridge.cache.errors import GrammarError, UsageError
from hybridge.runtime.cli.generating import Model
from hybridge.runtime.cli.run import Constrain
from hybridge.runtime.core.generation import Constraint
from hybridge.runtime.files import read_regular
from hybridge.runtime.text.chat_template import answer_format_of
from hybridge.runtime.text.grammars import LARGEST_GRAMMAR, Grammar, Grammars, behind


def constrain_of(model: Model, json_schema: Path | None, regex: str | None, grammar: Path | None) -> Constrain | None:
    """Return what makes constraints of the options, behind the reasoning that a prompt has begun, if any is given.

    Raises what ``grammar_of`` does.
    """
    follows = grammar_of(model, json_schema, regex, grammar)
    if follows is None:
        return None
    form = answer_format_of(model.artifact, model.tokenizer)

    def constrain(prompt: str) -> Constraint:
        end = form.reasoning_end(prompt) if form is not None and prompt else ""
        return behind(end, follows.follow, model.tokenizer, model.session.manifest.eos_ids)

    return constrain


def grammar_of(model: Model, json_schema: Path | None, regex: str | None, grammar: Path | None) -> Grammar | None:
    """Return what texts must follow, if anything. Raises UsageError for two of them, and GrammarError for what is none."""
    given = [each for each in (json_schema, regex, grammar) if each is not None]
    if len(given) > 1:
        raise UsageError("--json-schema, --regex and --grammar exclude each other; give one of them.")
    if not given:
        return None
    grammars = Grammars.of(model.artifact)
    if regex is not None:
        return grammars.regex(regex)
    return grammars.json_schema(read_schema(json_schema)) if json_schema is not None else grammars.lark(_text(given[0]))


def read_schema(path: Path) -> dict[str, object]:
    """Read a JSON schema. Raises GrammarError."""
    try:
        schema = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{path} is no JSON: {error}.") from None
    if not isinstance(schema, dict):
        raise GrammarError(f'{path} is no JSON schema, which is an object such as {{"type": "object"}}.')
    return schema


def _text(path: Path | str) -> str:
    try:
        return read_regular(Path(path), LARGEST_GRAMMAR).decode("utf-8")
    except OSError as error:
        raise GrammarError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise GrammarError(f"{path} is no text in UTF-8.") from None
