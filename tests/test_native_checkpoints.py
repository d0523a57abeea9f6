"""Checkpoints in C++ against Python's: as many bytes, the same logits and tokens behind them, and the same ends of prompts."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hybridge.runtime.sessions.token_runner import TokenRunner
from store import exported

from hybridge.cache.errors import SnapshotError, UsageError
from hybridge.runtime import ExportOptions, Session, open_artifact
from hybridge.runtime.core import Model
from hybridge.runtime.core.checkpoint import PrefixCache, bring_to
from hybridge.runtime.native import NativeSession

FORMS = ("artifact", "int8_artifact")


class Pair:
    """One session of C++ and one of Python, which get the same calls."""

    def __init__(self, native: NativeSession, python: Session) -> None:
        self.native, self.python = native, python
        native.reset()
        python.reset()

    def prefill(self, tokens: list[int]) -> None:
        assert np.allclose(self.native.prefill(tokens), self.python.prefill(tokens), rtol=0, atol=2e-5)

    def greedy(self, token: int) -> list[int]:
        tokens = list(self.native.generate([token], max_new_tokens=8))
        assert tokens == list(self.python.generate([token], max_new_tokens=8))
        return tokens


@pytest.fixture(scope="module")
def int8_artifact(checkpoint: Path) -> Path:
    """One whose keys and values are in 8 bits."""
    options = ExportOptions(
        max_seq_len=96, prefill_chunk=17, verify_len=5, snapshot_slots=2, kernels="hybridge", kv_cache="int8"
    )
    return exported(checkpoint, options)


@pytest.fixture(scope="module", params=FORMS)
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return Model(open_artifact(folder))


@pytest.fixture(scope="module")
def python(folder: Path) -> Session:
    return Session.load(folder)


@pytest.fixture
def pair(model: Model, python: Session) -> Pair:
    return Pair(NativeSession(model), python)


def text(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 100) for _ in range(count)]


def test_it_has_pythons_bytes_and_goes_on_bit_for_bit(pair: Pair) -> None:
    native = pair.native
    pair.prefill(text(1, 23))
    first = native.checkpoint(), pair.python.checkpoint()
    assert first[0].nbytes == first[1].nbytes
    want, tokens = native.decode(7), pair.python.decode(7)
    assert np.allclose(want, tokens, rtol=0, atol=2e-5)
    pair.prefill(text(2, 9))
    second = native.checkpoint(), pair.python.checkpoint()
    assert second[0].nbytes == second[1].nbytes, "its own rows and no others"
    assert second[0].shared_nbytes > 0
    greedy = pair.greedy(5)
    for kept, logits in ((first, want), (second, None)):
        assert native.resume(kept[0]) == pair.python.resume(kept[1]) == native.length
        if logits is not None:
            assert np.array_equal(native.decode(7), logits)
            pair.python.decode(7)
        else:
            assert pair.greedy(5) == greedy
    for kept in (first, second):
        kept[0].close()


def test_it_serves_another_session_and_survives_its_own(pair: Pair, model: Model) -> None:
    other = NativeSession(model)
    pair.native.prefill(text(3, 31))
    kept = pair.native.checkpoint()
    want = list(pair.native.generate([9], max_new_tokens=8))
    pair.native.reset()
    pair.native.prefill(text(4, 40))
    for session in (other, pair.native):
        assert session.resume(kept) == 31
        assert list(session.generate([9], max_new_tokens=8)) == want
    kept.close()
    with pytest.raises(UsageError):
        other.resume(kept)


@pytest.mark.parametrize("seed", range(3))
def test_wandering_it_stays_the_same(pair: Pair, seed: int) -> None:
    """Texts in all ways, with slots and rejections between the checkpoints, in both."""
    rng, native, python = random.Random(seed), pair.native, pair.python
    kept = []
    for _ in range(60):
        if native.room < 30:
            native.reset()
            python.reset()
        step = rng.randrange(7)
        if step < 2:
            pair.prefill(text(rng.randrange(1000), rng.randint(1, 20)))
        elif step == 2:
            block = text(rng.randrange(1000), native.verify_len)
            native.verify(block)
            python.verify(block)
            assert native.commit(2) == python.commit(2)
        elif step == 3 and native.snapshot_slots:
            native.snapshot(0)
            python.snapshot(0)
        elif step == 4 and native.snapshot_slots:
            refused = []
            for session in (native, python):
                try:
                    session.restore(0)
                except SnapshotError:
                    refused.append(session)
            assert len(refused) in (0, 2)
        elif step == 5 and native.length:
            kept.append((native.checkpoint(), python.checkpoint()))
            assert kept[-1][0].nbytes == kept[-1][1].nbytes
        elif kept:
            mine, pythons = rng.choice(kept)
            assert native.resume(mine) == python.resume(pythons)
        assert native.length == python.length
    for mine, pythons in kept:
        assert native.resume(mine) == python.resume(pythons)
        pair.greedy(7)
        mine.close()


def test_a_prefix_cache_reads_what_is_new(pair: Pair) -> None:
    """The same texts, counts and bytes as Python's, and the least recently used goes where the budget ends."""
    native, model, cache = pair.native, pair.native.model, PrefixCache(1 << 30)
    model.cache(1 << 30)
    begin = text(5, 20)
    for end in ([], text(6, 11), text(7, 30), [], text(6, 11)):
        known = native.bring_to([*begin, *end])
        assert known == bring_to(pair.python, [*begin, *end], cache)
        assert (model.cached.checkpoints, model.cached.nbytes) == (len(cache), cache.nbytes)
        pair.greedy(3)
    both = model.cached.nbytes
    model.cache(both // 2)
    native.reset()
    for end in ([], text(6, 11), text(7, 30)):
        native.bring_to([*begin, *end])
        assert model.cached.nbytes <= both // 2
    model.cache(0)
    native.bring_to(begin)
    assert model.cached.checkpoints == 0


@pytest.mark.parametrize("count", [1, 2, 5, 9, 16, 17, 40, 67])
def test_the_end_of_a_prompt_is_read_as_python_reads_it(pair: Pair, count: int) -> None:
    """A few tokens in verified blocks, bit for bit as by hand; and taken back whole where one of them is none."""
    native, tokens = pair.native, text(8, count)
    read = native.prefill(tokens)
    native.reset()
    for chunk in TokenRunner(native.manifest.options).chunks(tokens):
        if len(chunk) in range(2, native.verify_len + 1):
            logits = native.verify(chunk)[-1]
            native.commit(len(chunk))
        else:
            logits = native.prefill(chunk)
    assert np.array_equal(logits, read)
