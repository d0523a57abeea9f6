"""Drafters inside artifacts in the native core: it proposes what Python proposes, and the text is plain decoding's."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from assistant_reference import AssistantReference, assistant_config
from drafter_twins import (
    dflash2_config,
    eagle_config,
    eagle_tensors,
    random_tensors,
    save_drafter,
)
from store import demo_folder, exported
from tiny import save_lively_checkpoint, tiny_config

from hybridge.cache.errors import DraftError, SnapshotError, ValidationError
from hybridge.export.api import export_model
from hybridge.export.checks.validation import ValidationReport
from hybridge.export.output.progress import ExportProgress
from hybridge.export.pte import exporter
from hybridge.export.reference.validate import validate_native, validate_session
from hybridge.runtime import Context, ExportOptions, GenerationStats, Sampler, Sampling, Session
from hybridge.runtime.core.drafters import BlockDrafter
from hybridge.runtime.native import NativeSession

pytestmark = pytest.mark.slow

TARGET = tiny_config("qwen3_5_text")
LAYERS = ["sliding_attention", "full_attention"]
GEMMA = tiny_config("gemma4_text")


def block_drafter(folder: Path) -> Path:
    config = dflash2_config(TARGET, LAYERS, [1, 0])
    return save_drafter(folder, config, random_tensors(config))


def chain(folder: Path) -> Path:
    config = eagle_config(TARGET, 61)
    return save_drafter(folder, config, eagle_tensors(config, 2))


def assistant(folder: Path) -> Path:
    return AssistantReference(assistant_config(GEMMA)).save(folder)


KINDS: dict[str, tuple[Any, Callable[[Path], Path]]] = {
    "dflash2": (TARGET, block_drafter),
    "eagle3": (TARGET, chain),
    "gemma4_assistant": (GEMMA, assistant),
}
"""A block at once, a chain, and one that looks at its target's keys; the methods of the others are called in the same way."""
OPTIONS = ExportOptions(max_seq_len=67, prefill_chunk=17, verify_len=6, snapshot_slots=1, draft_blocks=(3, 6), tap_layers=(2,))


@pytest.fixture(
    scope="module", params=["dflash2", *(pytest.param(each, marks=pytest.mark.thorough) for each in KINDS if each != "dflash2")]
)
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with the drafter, and hidden states that the drafter does not read."""
    folder, (target, save) = tmp_path_factory.mktemp("drafted"), KINDS[request.param]
    save_lively_checkpoint(folder / "target", target)
    made = exported(folder / "target", OPTIONS, drafter=save(folder / "drafter"))
    return Path(shutil.copytree(made, folder / "out"))


@pytest.fixture(scope="module")
def native(artifact: Path) -> NativeSession:
    return NativeSession.load(artifact)


def test_it_proposes_what_python_proposes(artifact: Path, native: NativeSession) -> None:
    """Random commits in all ways, rejections, and going back to a snapshot."""
    python, rng = Session.load(artifact), random.Random(3)
    context, drafter = Context([], Sampler(Sampling())), BlockDrafter(python)
    native.reset()
    native.keep_hidden(True)
    following, kept, compared = 1, (0, False), 0
    for _ in range(60):
        if python.room < 12 or (kept[1] and rng.random() < 0.2):
            context.pop_hidden()
            following = go_back(python, native, kept)
            continue
        commit(python, native, context, following, rng)
        following, limit = rng.randrange(90), rng.choice([1, 2, 3, 5, 9])
        context.tokens = [*python.tokens, following]
        proposed = drafter.propose(context, limit).tokens
        assert native.draft(following, limit) == proposed
        compared += bool(proposed)
        if rng.random() < 0.2:
            assert native.snapshot(0) == python.snapshot(0)
            kept = following, True
    assert compared > 25


def go_back(python: Session, native: NativeSession, kept: tuple[int, bool]) -> int:
    """Restore what is kept in both, or begin anew in both; the token that was known behind it."""
    try:
        assert python.restore(0) == native.restore(0)
    except SnapshotError:
        python.reset()
        native.reset()
        return 1
    return kept[0]


def commit(python: Session, native: NativeSession, context: Context, first: int, rng: random.Random) -> None:
    """Commit ``first`` and some tokens behind it in one of the ways that there are."""
    tokens = [first, *(rng.randrange(90) for _ in range(rng.randint(0, 8)))]
    way = rng.choice(["prefill", "decode", "verify"])
    if way == "prefill":
        native.prefill(tokens)
        python.prefill(tokens)
        context.add_hidden(python.hidden)
    elif way == "decode":
        native.decode(first)
        python.decode(first)
        context.add_hidden(python.hidden)
    else:
        block = tokens[: python.verify_len]
        native.verify(block)
        python.verify(block)
        accepted = rng.randint(1, len(block))
        context.add_hidden(python.hidden[:accepted])
        assert native.commit(accepted) == python.commit(accepted)


def test_a_long_prompt_is_read_in_chunks(artifact: Path, native: NativeSession) -> None:
    python, prompt = Session.load(artifact), [7 * i % 90 for i in range(41)]
    native.reset()
    native.keep_hidden(True)
    native.prefill(prompt)
    python.prefill(prompt)
    assert native.draft(5, 4) == python.draft(python.hidden, [*prompt[1:], 5], limit=4).tokens != []
    assert native.draft(5, 4) == []  # nothing new was committed


def test_a_checkpoint_has_the_rows_that_the_drafter_has_read(artifact: Path, native: NativeSession) -> None:
    python, prompt = Session.load(artifact), [7 * i % 90 for i in range(41)]
    native.reset()
    native.keep_hidden(True)
    native.prefill(prompt)
    python.prefill(prompt)
    unread = native.checkpoint(), python.checkpoint()
    assert native.draft(5, 4) == python.draft(python.hidden, [*prompt[1:], 5], limit=4).tokens != []
    read = native.checkpoint(), python.checkpoint()
    assert [each.nbytes for each, _ in (unread, read)] == [each.nbytes for _, each in (unread, read)]
    proposed = []
    for _ in range(2):
        native.resume(read[0])
        native.decode(5)
        proposed.append(native.draft(6, 4))
        native.resume(unread[0])
    assert proposed[0] == proposed[1] != []


def test_the_text_is_plain_decodings(native: NativeSession) -> None:
    prompt, stats = [3, 1, 4, 1, 5, 9, 2, 6], GenerationStats()
    native.reset()
    plain = list(native.generate(prompt, max_new_tokens=40))
    for block in (None, 2, 4):
        native.reset()
        assert list(native.generate(prompt, max_new_tokens=40, block_length=block, stats=stats, drafter="own")) == plain
        assert block is None or stats.verifies > 3


@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_the_same_noise_gives_pythons_draws(artifact: Path, native: NativeSession, temperature: float) -> None:
    """Its own and those of the target, which accepts and rejects them."""
    python, sampling, prompt = Session.load(artifact), Sampling(temperature=temperature), [3, 1, 4, 1, 5, 9, 2, 6]
    drafter, accepted = BlockDrafter(python), 0
    for noise in range(6):
        for block in (2, 3, 6):
            wanted, counted = GenerationStats(), GenerationStats()
            python.reset()
            native.reset()
            with mock.patch("hybridge.runtime.core.drafters.secrets.randbits", return_value=noise):
                drawn = python.generate(
                    prompt, max_new_tokens=40, drafter=drafter, sampling=sampling, block_length=block, stats=wanted
                )
            natively = native.generate(
                prompt, max_new_tokens=40, drafter="own", sampling=sampling, noise=noise, block_length=block, stats=counted
            )
            assert list(natively) == list(drawn)
            assert (counted.proposed, counted.accepted) == (wanted.proposed, wanted.accepted)
            accepted += counted.accepted
    assert accepted > 0


@pytest.mark.parametrize("validated", [validate_session, validate_native])
def test_a_validation_generates_with_the_drafter(artifact: Path, validated: Callable[..., ValidationReport]) -> None:
    report = validated(artifact, artifact.with_name("target"), ExportProgress(), programs=1, seed=0)
    check = report.generation
    assert report.passed
    assert check.drafted_matches == check.drafted_prompts == check.prompts
    assert check.drafted_rejected > 100
    check.drafted_matches -= 1
    assert not report.passed
    with pytest.raises(ValidationError, match="with its own drafter 19 of 20"):
        report.check()


def test_what_is_no_draft_is_refused(native: NativeSession) -> None:
    native.reset()
    native.keep_hidden(True)
    assert native.draft(5, 4) == []  # nothing was committed
    native.prefill([1, 2, 3])
    for following, limit in ((-1, 3), (10**6, 3), (5, 0)):
        with pytest.raises(DraftError):
            native.draft(following, limit)
    assert native.draft(5, 1) != []
    native.keep_hidden(False)
    native.prefill([1, 2, 3])
    assert native.draft(5, 1) == []


def test_multi_token_prediction_of_the_demo() -> None:
    """A trained drafter, whose methods take no noise."""
    prompt, stats = [*b"class Point:\n    def __init__(self, x, y):\n"], GenerationStats()
    session = NativeSession.load(demo_folder() / "hybridge-demo")
    plain = list(session.generate(prompt, max_new_tokens=120))
    session.reset()
    assert list(session.generate(prompt, max_new_tokens=120, drafter="own", block_length=4, stats=stats)) == plain
    assert stats.accepted > stats.proposed / 3


def test_an_artifact_without_a_drafter_has_none(own_artifact: Path) -> None:
    session = NativeSession.load(own_artifact)
    session.prefill([1, 2, 3])
    with pytest.raises(DraftError):
        session.draft(4, 2)
    with pytest.raises(DraftError):
        session.generate([4], drafter="own")


@pytest.mark.thorough
def test_a_program_that_says_nothing_of_its_drafter_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As exports of --mtp were before the native session had drafters: Python reads the manifest, C++ has none."""
    config = dflash2_config(TARGET, LAYERS, [0, 1])
    save_lively_checkpoint(tmp_path / "target", TARGET)
    drafter = save_drafter(tmp_path / "drafter", config, random_tensors(config))
    monkeypatch.setattr(exporter, "drafter_constants", lambda *_: {})
    export_model(tmp_path / "target", tmp_path / "out", OPTIONS, drafter=drafter)
    session = Session.load(tmp_path / "out")
    plain = list(session.generate([1, 2, 3], max_new_tokens=20))
    session.reset()
    assert list(session.generate([1, 2, 3], max_new_tokens=20, drafter=BlockDrafter(session), block_length=3)) == plain
    native = NativeSession.load(tmp_path / "out")
    assert list(native.generate([1, 2, 3], max_new_tokens=20)) == plain
    with pytest.raises(DraftError):
        native.draft(1, 2)
