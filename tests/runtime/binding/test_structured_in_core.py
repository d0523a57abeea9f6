"""Generations and chats of the core that follow a grammar: they say what Python's say with llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from ctypes import byref, pointer
from itertools import count
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from babbling import BYTES
from core_grammars import CoreGrammar
from scripted import TURNS
from served import BABBLE, END, ENDLESS, babble, session
from structures import PROMPT, SAMPLINGS, SCHEMA
from torch import Tensor

from hybridge.errors import HybridgeError, UsageError
from hybridge.runtime import PromptLookup, Sampling, Session
from hybridge.runtime.binding.chat import Chat
from hybridge.runtime.binding.interface import (
    DevGenerationStruct,
    DrafterKind,
    Ending,
    GeneratedStruct,
    GenerationStruct,
    GrammarHandle,
    OnClock,
    OnMask,
    OnPropose,
    OnToken,
    SamplingStruct,
    Thinking,
    Tokens,
)
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.library import run
from hybridge.runtime.binding.programs import TextProgram
from hybridge.runtime.text.grammars import Grammars

DRAFTERS = {"none": DrafterKind.NONE, "lookup": DrafterKind.PROMPT_LOOKUP, "wild": DrafterKind.CALLBACK}


def grammar(**given: Any) -> CoreGrammar:
    return CoreGrammar(BYTES, [END], **given)


def generated(
    it: Session,
    prompt: Sequence[int],
    core: CoreGrammar,
    drafter: str = "none",
    sampling: Sampling | None = None,
    most: int = 120,
) -> tuple[list[int], GeneratedStruct]:
    """Return the tokens of ``hybridge_generate`` with a grammar, and what it took."""
    tokens: list[int] = []

    def propose(context: Any, proposal: Any, limit: int, _: object) -> int:  # right or wrong
        drawn = np.random.default_rng(context.contents.count).integers(32, 127, limit)
        for place, token in enumerate(drawn.tolist()):
            proposal.contents.tokens[place] = token
        return limit

    options = GenerationStruct(max_new_tokens=most, drafter=DRAFTERS[drafter], grammar=core.handle, is_cheap=1)
    options.propose = OnPropose(propose)
    seconds = count()
    dev = DevGenerationStruct(clock=OnClock(lambda _: next(seconds)))  # a block takes as long as a token, on each machine
    options.dev = pointer(dev)
    if sampling is not None and sampling.temperature:
        drawn = SamplingStruct(temperature=sampling.temperature, top_p=sampling.top_p, seed=sampling.seed, has_seed=1)
        options.sampling = pointer(drawn)
    given, done = np.array(prompt, np.int64), GeneratedStruct()
    on_token = OnToken(lambda token, _: tokens.append(token) or 1)
    run("generate", it.handle, given.ctypes.data_as(Tokens), len(given), byref(options), on_token, None, byref(done))
    return tokens, done


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_generation_says_what_pythons_says_with_every_drafter(name: str) -> None:
    python = Grammars(BYTES, 260, [END]).json_schema(SCHEMA)
    reference = list(session().generate(PROMPT, max_new_tokens=120, sampling=SAMPLINGS[name], constraint=python.follow()))
    core = grammar(schema=SCHEMA)
    for drafter in DRAFTERS:
        tokens, done = generated(session(), PROMPT, core, drafter, SAMPLINGS[name])
        assert tokens == reference, drafter
        assert done.forced > 20
    said = json.loads(bytes(tokens[:-1]))
    assert list(said) == ["name", "kind", "numbers"]
    assert tokens[-1] == END


def test_a_text_that_is_too_long_ends_in_the_middle() -> None:
    tokens, _ = generated(session(), PROMPT, grammar(regex="[0-9]{50}"), most=20)
    assert len(tokens) == 20
    assert bytes(tokens).isdigit()


def test_what_does_not_go_together_is_refused() -> None:
    core, it = grammar(regex="a"), session()
    given = np.array(PROMPT, np.int64)
    arguments = (it.handle, given.ctypes.data_as(Tokens), len(given))
    both = GenerationStruct(max_new_tokens=4, grammar=core.handle, mask=OnMask(lambda *_: None))
    with pytest.raises(UsageError):
        run("generate", *arguments, byref(both), OnToken(), None, None)
    closed = GenerationStruct(max_new_tokens=4, grammar=GrammarHandle(1 << 40))
    with pytest.raises(UsageError, match="closed"):
        run("generate", *arguments, byref(closed), OnToken(), None, None)
    endless = Session.over(TextProgram(babble, 600, 0), ENDLESS)
    with pytest.raises(HybridgeError, match="no token that ends a text"):
        generated(endless, PROMPT, CoreGrammar(BYTES, [], regex="a"))


def test_a_grammar_that_becomes_too_complex_says_so() -> None:
    """Which of many places had an a decides what may come: reading it is easy, following it is not."""
    many, rng = grammar(regex="([ab]*a[ab]{3000}){4}c[0-9]"), Random(1)
    text = [rng.choice(b"ab") for _ in range(12_000)]
    assert np.flatnonzero(many.mask(text[:100], 260)).tolist() == list(b"ab")
    with pytest.raises(HybridgeError, match="too complex"):
        many.mask(text, 260)
    assert np.flatnonzero(many.mask(text[:100], 260)).tolist() == list(b"ab")


# Chats

THINKING = """
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content and loop.last %}<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}{% endif %}"""


def saying(answer: str) -> Callable[[tuple[int, ...]], Tensor]:
    """A model that says this after each prompt, as far as it may, and otherwise likes letters in their order."""

    def say(text: tuple[int, ...]) -> Tensor:
        logits = -torch.arange(260.0) / 100
        _, _, so_far = bytes(token for token in text if token < 256).rpartition(b"assistant\n")
        rest = answer.encode()[len(so_far.removeprefix(b"<think>\n")) :]
        logits[rest[0] if rest else END] = 10.0
        return logits

    return say


def told(chat: Chat, core: CoreGrammar, most: int = 200) -> tuple[str, str, Ending]:
    parts: list[tuple[str, str]] = []
    options = GenerationStruct(max_new_tokens=most, drafter=DrafterKind.PROMPT_LOOKUP, grammar=core.handle)
    answer = chat.send("a", lambda *each: parts.append(each), options)
    return "".join(content for content, _ in parts), "".join(reasoning for _, reasoning in parts), Ending(answer.ending)


def over(template: str, answer: str, thinking: Thinking = Thinking.AS_USUAL) -> Chat:
    it = Session.over(TextProgram(saying(answer), 600, 0), BABBLE)
    return Chat.over(it, BYTES, JinjaTemplate(template), thinking=thinking)


def test_the_grammar_begins_behind_the_reasoning() -> None:
    """Python's does, with the same text; a model that would end before is kept from it."""
    chat = over(THINKING, "I think {so}.</think>\n\nWell: no")
    content, reasoning, ending = told(chat, grammar(regex="(yes|no), sir"))
    assert (content, reasoning, ending) == ("no, sir", "I think {so}.", Ending.BY_MODEL)
    it = Session.over(TextProgram(saying("I think {so}.</think>\n\nWell: no"), 600, 0), BABBLE)
    prompt = BYTES.encode("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n", around=False).ids
    constraint = Grammars(BYTES, 260, [END]).regex("(yes|no), sir").follow("</think>")
    new = it.generate(prompt, max_new_tokens=200, drafter=PromptLookup(), constraint=constraint)
    assert bytes(token for token in new if token != END).decode() == "I think {so}.</think>\n\nno, sir"


@pytest.mark.parametrize(
    ("answer", "content", "reasoning"),
    [
        ("x</think>", "yes", "x"),  # the blank line is written for the model
        ("x</think>\n\nyes", "yes", "x"),
        ("", "", ""),  # the end that the model wants may not come: it thinks until there is no room
    ],
)
def test_ways_to_end_a_reasoning(answer: str, content: str, reasoning: str) -> None:
    said, thought, ending = told(over(THINKING, answer), grammar(regex="yes"), most=40)
    if answer:
        assert (said, thought, ending) == (content, reasoning, Ending.BY_MODEL)
    else:
        assert said == ""
        assert thought
        assert ending is Ending.BY_LENGTH


def test_without_a_reasoning_the_grammar_begins_at_once() -> None:
    content, reasoning, _ = told(over(THINKING, "hm", thinking=Thinking.OFF), grammar(regex="(yes|no)"))
    assert content in ("yes", "no")
    assert reasoning == ""


def test_answers_with_and_without_a_grammar_take_turns() -> None:
    chat, core = over(TURNS, "hello"), grammar(schema={"type": "integer", "minimum": 10, "maximum": 99})
    first, _, _ = told(chat, core)
    chat.send("b", lambda *_: None, GenerationStruct(max_new_tokens=20))
    second, _, _ = told(chat, core)
    assert 10 <= int(first) == int(second) <= 99
    assert [each["content"] for each in chat.messages if each["role"] == "assistant"] == [first, "hello", second]
