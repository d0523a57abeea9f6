"""A server over a model that says what a script has for the conversation so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from served import BYTES, END, Served, Slow, serving
from torch import Tensor

from hybridge.runtime import ExportOptions, PromptLookup, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.server.worker import SessionSlot
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.chat_template import ChatTemplate

OPENING = "<|im_start|>assistant\n"
STARTS = BYTES.encode(OPENING).ids
TEMPLATE = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call them as <tool_call>...</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ "\\n" if message.content or not loop.first }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""The form of Qwen3's: tools as JSON, calls in tags, reasoning kept."""
TURNS = """
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Knows of no tools."""

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tell the weather",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["place"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]

Script = Callable[[str], str]
"""What is said after a prompt."""


def speaking(script: Script) -> Callable[[tuple[int, ...]], Tensor]:
    """Logits [V] of a model that follows a script, in bytes."""

    def logits(text: tuple[int, ...]) -> Tensor:
        start = len(text) - 1 - text[::-1].index(STARTS[0]) + len(STARTS)
        rest = script(BYTES.decode(list(text[:start]), skip_special_tokens=False)).encode()[len(text) - start :]
        out = torch.zeros(260)
        out[rest[0] if rest else END] = 9.0
        return out

    return logits


@contextmanager
def speaker(
    script: Script, template: str = TEMPLATE, sessions: int = 2, form: AnswerFormat | None = None, **options: Any
) -> Iterator[Served]:
    """Serve it under the name ``babble``. form: of its answers; left out, that of the template."""
    sizes = ExportOptions(max_seq_len=3000, prefill_chunk=64, verify_len=4, snapshot_slots=0)
    description = ProgramInfo(vocab_size=260, options=sizes, eos_ids=[END], identity="speaker")
    places = [SessionSlot(Session.over(Slow(speaking(script), 3000, 0), description), PromptLookup()) for _ in range(sessions)]

    jinja = JinjaTemplate(template)
    form = form or AnswerFormat.find(jinja, BYTES)
    with serving(places, ChatTemplate(jinja, form=form).render, form=form, **options) as one:
        yield one
