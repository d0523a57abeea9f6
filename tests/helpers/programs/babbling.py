"""Conversations over a model that babbles, in the embedded model's bytes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hybridge.export.cli.embedded import EMBEDDED
from hybridge.runtime import ExportOptions, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.chat import OpenChat
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.interface import GenerationStruct
from hybridge.runtime.binding.jinja import JinjaTemplate, RenderedChat
from hybridge.runtime.binding.programs import TextProgram
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.chat_template import ChatTemplate
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings

BYTES = Tokenizer.from_file(EMBEDDED / "tokenizer.json")
END = ord(".")
TEMPLATE = (EMBEDDED / "chat_template.jinja").read_text()


@cache
def template_of(source: str) -> ChatTemplate:
    return ChatTemplate(JinjaTemplate(source))


def rendered(source: str, messages: list[dict[str, Any]], variables: Mapping[str, Any] | None = None) -> RenderedChat:
    """Render a template that is given as its text."""
    return template_of(source).render(messages, variables)


def babbler(letters: int, end: int, readiness: float) -> Callable[[tuple[int, ...]], Tensor]:
    """Return a model of 260 tokens that says so many letters, by the three tokens before, and now and then ends."""

    def babble(text: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash(text[-3:]) % 2**31)
        logits = torch.full((260,), -10.0)
        logits[97 : 97 + letters] = torch.randn(letters, generator=generator)
        logits[end] = torch.randn((), generator=generator) + readiness
        return logits

    return babble


babble = babbler(26, END, 0.6)


def fresh_session(slots: int = 2, max_seq_len: int = 600, program: TextProgram | None = None) -> Session:
    options = ExportOptions(max_seq_len=max_seq_len, verify_len=4, snapshot_slots=slots)
    description = ProgramInfo(vocab_size=260, options=options, eos_ids=[END])
    return Session.over(program or TextProgram(babble, snapshot_slots=slots), description)


def talk(
    slots: int = 2, max_seq_len: int = 600, cache_bytes: int = 10**6, program: TextProgram | None = None, **options: Any
) -> Conversation:
    settings, session = GenerationSettings(**({"max_new_tokens": 25} | options)), fresh_session(slots, max_seq_len, program)
    kept = PrefixCache(session.model, cache_bytes)
    return Conversation(session, BYTES, template_of(TEMPLATE), settings, checkpoints=kept)


@dataclass(frozen=True)
class Turn:
    """A turn of a conversation's note."""

    start: int
    answer: int
    rendered: str
    lasting: int = 0
    said: str | None = None
    spelled: list[list[int]] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)


def turns_of(conversation: OpenChat) -> list[Turn]:
    return [Turn(**each) for each in json.loads(conversation.note)["turns"]]


def tokens_of(conversation: OpenChat) -> list[int]:
    """All tokens of a conversation; the session has not read the last one of an answer."""
    tokens: list[int] = json.loads(conversation.note)["tokens"]
    return tokens


def options(count: int = 25, **further: Any) -> GenerationStruct:
    """The options of an answer of the core."""
    return GenerationStruct(max_new_tokens=count, **further)


def told(ask: Callable[..., Any], *words: Any, **named: Any) -> str:
    """The content of the answer that ``ask`` gives: a chat's ``send`` or ``retry``."""
    pieces: list[str] = []
    ask(*words, lambda content, reasoning: pieces.append(content), options(), **named)
    return "".join(pieces)
