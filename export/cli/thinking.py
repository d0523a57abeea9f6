"""``--thinking`` and ``--no-thinking``: the variable by which a chat template switches thinking on and off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import Environment, TemplateSyntaxError

from hybridge.cache.errors import UsageError

SWITCHES = ("enable_thinking", "thinking")
"""What templates call it: Qwen, GLM, SmolLM and Nemotron the first, Granite, DeepSeek and Kimi the second."""


def thinking_variables(template: str, thinking: bool | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variable that switches thinking in ``template``; none where nothing was asked for.

    Raises UsageError for a template without such a switch, and for a switch that is ``given`` already.
    """
    if thinking is None:
        return {}
    option = "--thinking" if thinking else "--no-thinking"
    names = set(_names(template))
    switch = next((name for name in SWITCHES if name in names), None)
    if switch is None:
        raise UsageError(
            f"the model's chat template has no switch for thinking ({' or '.join(SWITCHES)}); leave {option} out, or set "
            "what the template has instead by --template-arg, such as reasoning_effort=low."
        )
    if switch in given:
        raise UsageError(f"{option} and --template-arg {switch} say the same thing; give one of them.")
    return {switch: thinking}


def _names(template: str) -> Iterator[str]:
    """Yield the variables that a template reads: names that are no attribute of something else."""
    before = ""
    try:
        for _, kind, value in Environment(autoescape=True).lex(template):
            if kind == "name" and before != ".":
                yield value
            before = before if kind == "whitespace" else value
    except TemplateSyntaxError:
        return  # rendering says what is wrong
