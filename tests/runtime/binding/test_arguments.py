"""Wrong arguments of public functions: each is taken or raises an error of hybridge's, never one of Python's."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from table import table_session

from hybridge.errors import CommitError, HybridgeError, SnapshotError, TokenError
from hybridge.runtime import AutoDrafter, DraftModel, OwnDrafter, PrefixCache, Sampling, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.library import set_threads
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.programs import TextProgram
from hybridge.runtime.binding.sampling import token_ids
from hybridge.runtime.binding.tokenizer import Tokenizer

VOCABULARY = 7
TOKENIZER = b'{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}'
VALUES: list[Any] = [
    None, True, False, 0, -1, 3, 2**31, 2**63, 2**64 + 1, -(2**70), 1.0, 1.5, -0.5, math.nan, math.inf, -math.inf, 1e308,
    "", "a", "é", "\udc00", "0", b"", b"ab", [], [1], [1.5], [None], [[1]], [2**70], (), {}, {1: 2}, {"a"}, object(),
    np.int64(2), np.float32(2), np.nan, np.ones(3), np.ones((2, 2), np.int64), np.array(1), Path("x"), range(3), iter([1]),
]  # fmt: skip


def new_session() -> Session:
    """A session over a program in Python, in which each text has its own logits."""

    def logits(text: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.random.default_rng(hash(text) % 1000).random(VOCABULARY, np.float32)

    options = ExportOptions(max_seq_len=64, verify_len=4, snapshot_slots=2)
    return Session(Model.over(TextProgram(logits), ProgramInfo(vocab_size=VOCABULARY, options=options)))


def is_whole(value: object) -> bool:
    is_array = isinstance(value, np.ndarray) and value.ndim == 0
    return is_array or (isinstance(value, int | np.integer) and not isinstance(value, bool))


def is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)


def are_tokens(value: object) -> bool:
    return isinstance(value, list | tuple | bytes | range | np.ndarray | set | dict) or hasattr(value, "__next__")


def or_none(allowed: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or allowed(value)


Doors = dict[str, tuple[Callable[..., object], dict[str, tuple[object, Callable[[object], bool]]]]]
"""Each public function, and of each argument a right value and which others may be taken."""


def never(value: object) -> bool:
    return False


def doors(session: Session) -> Doors:
    model, kept, tokenizer = session.model, session.checkpoint(), Tokenizer(TOKENIZER)
    tokens, slot, path = (
        ([1, 2], are_tokens),
        (0, is_whole),
        (Path("/nonexistent/x"), lambda value: isinstance(value, str | Path)),
    )
    generation = {
        "tokens": tokens,
        "max_new_tokens": (3, is_whole),
        "drafter": (None, or_none(never)),
        "temperature": (0.0, is_number),
        "seed": (None, or_none(is_whole)),
        "sampling": (None, or_none(never)),
        "block_length": (None, or_none(is_whole)),
        "eos_ids": (None, or_none(are_tokens)),
        "until": (None, or_none(callable)),
        "watch": (None, or_none(callable)),
        "constraint": (None, or_none(never)),
        "stats": (None, or_none(never)),
        "clock": (None, or_none(callable)),
        "noise": (None, or_none(is_whole)),
    }
    numbers = ("temperature", "top_p", "min_p", "repetition_penalty")
    return {
        "prefill": (session.prefill, {"tokens": tokens}),
        "prefill_image": (session.prefill_image, {"picture": (None, never)}),
        "decode": (session.decode, {"token": (1, is_whole)}),
        "verify": (session.verify, {"tokens": tokens}),
        "commit": (session.commit, {"count": slot}),
        "snapshot": (session.snapshot, {"slot": slot}),
        "restore": (session.restore, {"slot": slot}),
        "resume": (session.resume, {"checkpoint": (kept, never)}),
        "read_checkpoint": (
            session.read_checkpoint,
            {"parts": ([b"x"], never), "like": (None, or_none(never)), "shared": slot},
        ),
        "generate": (session.generate, generation),
        "keep_hidden": (session.keep_hidden, {"wanted": (True, lambda value: isinstance(value, bool))}),
        "draft": (
            session.draft,
            {"hidden": (np.ones((1, 4)), are_tokens), "following": tokens, "limit": (None, or_none(is_whole))},
        ),
        "load_state": (session.load_state, {"path": path}),
        "save": (session.save, {"path": path, "note": ("", lambda value: isinstance(value, str))}),
        "Sampling": (Sampling, {**dict.fromkeys(numbers, (1.0, is_number)), "top_k": slot, "seed": (1, or_none(is_whole))}),
        "OwnDrafter": (OwnDrafter, {"target": (session, never)}),
        "DraftModel": (DraftModel, {"model": (model, never), "target": (session, never)}),
        "AutoDrafter": (AutoDrafter, {"target": (session, never), "beside": (None, or_none(never))}),
        "PrefixCache": (PrefixCache, {"model": (model, never), "budget": (0, is_whole), "used": (None, or_none(callable))}),
        "PrefixCache.find": (PrefixCache(model).find, {"tokens": tokens}),
        "PrefixCache.has": (PrefixCache(model).has, {"tokens": tokens}),
        "PrefixCache.add": (PrefixCache(model).add, {"checkpoint": (kept, never)}),
        "Checkpoint.part": (kept.part, {"place": slot}),
        "Session": (Session, {"model": (model, never)}),
        "Tokenizer.id_to_token": (tokenizer.id_to_token, {"token": slot}),
        "Tokenizer.token_to_id": (tokenizer.token_to_id, {"token": ("a", lambda value: isinstance(value, str))}),
        "Tokenizer.stream": (tokenizer.stream, {"stop": ((), lambda value: value in ([], ()))}),
        "set_threads": (set_threads, {"count": (1, or_none(is_whole))}),
    }


NAMES = sorted(doors(new_session()))


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_argument_is_refused_by_name(name: str) -> None:
    session, faults = new_session(), []
    call, arguments = doors(session)[name]
    for argument, (_, is_right) in arguments.items():
        for value in VALUES:
            given = {each: right for each, (right, _) in arguments.items()} | {argument: value}
            session.reset()
            try:
                found = call(**given)
                if inspect.isgenerator(found):
                    list(found)
            except HybridgeError:
                pass
            except Exception as error:
                faults.append(f"{argument} = {value!r}: {type(error).__name__}: {error}")
            else:
                if not is_right(value):
                    faults.append(f"{argument} = {value!r} is taken")
    set_threads()
    assert not faults, "\n".join(faults)


# Tokens


NOT_TOKENS: list[Any] = [
    [1.5], [2.0], ["3"], [True], [None], [[1]], [b"1"], [1, 2.0], "12", None, 5, 1.5, [torch.tensor(1.0)], [torch.tensor([1])],
    torch.tensor([1.7]), torch.tensor([[1, 2]]), torch.tensor(3), torch.tensor([True]), np.array([1.0]), np.array([[1]]),
]  # fmt: skip
CALLS: dict[str, Callable[[Session, Any], object]] = {
    "prefill": lambda session, tokens: session.prefill(tokens),
    "verify": lambda session, tokens: session.verify(tokens),
    "generate": lambda session, tokens: list(session.generate(tokens, max_new_tokens=2)),
}


@pytest.mark.parametrize("tokens", NOT_TOKENS, ids=repr)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_token_is_refused(call: str, tokens: Any) -> None:
    session = table_session()
    session.prefill([1, 2])
    with pytest.raises(TokenError, match="token"):
        CALLS[call](session, tokens)
    assert session.tokens == [1, 2]


@pytest.mark.parametrize("token", [1.5, "1", True, None, [1], torch.tensor(1.0)], ids=repr)
def test_one_token_too(token: Any) -> None:
    with pytest.raises(TokenError, match="is no token id; give whole numbers"):
        table_session().decode(token)


@pytest.mark.parametrize(
    "tokens", [[1, 2], (1, 2), torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int16), np.array([1, 2]),
               [np.int64(1), torch.tensor(2)], range(1, 3)], ids=repr,
)  # fmt: skip
def test_whole_numbers_of_any_kind_are_tokens(tokens: Any) -> None:
    assert token_ids(tokens) == [1, 2]
    assert all(type(token) is int for token in token_ids(tokens))


def test_counts_and_slots_are_whole_numbers_too() -> None:
    session: Any = table_session()
    session.prefill([1])
    for slot in (1.5, "1", None):
        with pytest.raises(SnapshotError):
            session.snapshot(slot)
    session.verify([1, 2])
    for count in (1.5, "1", None):
        with pytest.raises(CommitError):
            session.commit(count)
    assert session.commit(1) == 2
