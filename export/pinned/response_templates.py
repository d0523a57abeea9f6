"""transformers 5.23's parser of answers by a response template, which needs no PyTorch; the other pinned modules do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers.utils.chat_parsing import ResponseParser


def response_parser(template: Mapping[str, Any], prompt: str, tools: Sequence[Mapping[str, Any]]) -> ResponseParser:
    """Return transformers' parser of an answer to ``prompt``, which may begin it. Raises ValueError for what is no template."""
    return ResponseParser(dict(template), prefix=prompt, tools=[dict(tool) for tool in tools] or None)
