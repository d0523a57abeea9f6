"""Tokens are whole numbers: nothing is rounded to one, cut to one or read as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from table import table_session

from hybridge.errors import CommitError, SnapshotError, TokenError
from hybridge.runtime import Session
from hybridge.runtime.binding.sampling import token_ids

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
