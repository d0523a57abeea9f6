"""Block drafters in real programs: both kernel sets, against their definition."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from assistant_reference import AssistantReference, assistant_config
from drafter_programs import compare_blocks, definition_of
from drafter_twins import (
    Twin,
    dflash2_config,
    dflash_config,
    dspark_config,
    eagle_config,
    eagle_tensors,
    random_tensors,
    save_drafter,
)
from store import exported
from tiny import lively, save_lively_checkpoint, tiny_config, tiny_model

from hybridge.errors import ArtifactError, DraftError, HybridgeError, TokenError, UsageError, ValidationError
from hybridge.export.api import export_model
from hybridge.export.check.validate import validate_session
from hybridge.export.progress import ExportProgress
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.export.write import pte as exporter
from hybridge.runtime import ExportOptions, GenerationStats, Sampling, Session
from hybridge.runtime.binding.drafters import OwnDrafter

OPTIONS = ExportOptions(max_seq_len=48, prefill_chunk=8, verify_len=6, snapshot_slots=1, draft_blocks=(4, 6))
FULL, SLIDING = "full_attention", "sliding_attention"


def made(folder: Path, family: str, config: dict[str, Any], options: ExportOptions) -> tuple[Session, Twin, Any]:
    """A session over an artifact with a drafter, its definition, and the target."""
    lively(tiny_model(tiny_config(family))).save_pretrained(folder / "target")
    tensors = random_tensors(config)
    save_drafter(folder / "drafter", config, tensors)
    artifact = exported(folder / "target", options, drafter=folder / "drafter")
    model = load_checkpoint(folder / "target").model
    embedding, head = (each.weight.detach() for each in (model.get_input_embeddings(), model.get_output_embeddings()))
    return Session.load(artifact), Twin(config, tensors, embedding, head), model


def check(session: Session, twin: Twin, model: Any, seed: int) -> None:
    assert compare_blocks(session, definition_of(twin, model), seed, operations=20) > 5


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["hybridge", pytest.param("llm", marks=pytest.mark.thorough)])
def test_guesses_are_those_of_the_definition(tmp_path: Path, kernels: Any) -> None:
    config = dflash2_config(TARGET, LAYERS, [1, 0])  # as block_drafter's, so that the program is the same
    session, twin, model = made(tmp_path, "qwen3_5_text", config, dataclasses.replace(DRAFTED, kernels=kernels))
    assert session.manifest.drafter is not None
    assert session.manifest.drafter.kind == "dflash2"
    check(session, twin, model, seed=0)
    session.save(tmp_path / "state")
    session.reset()
    check(session, twin, model, seed=1)
    session.load_state(tmp_path / "state")
    plain = list(session.generate([3], max_new_tokens=10, eos_ids=()))
    session.load_state(tmp_path / "state")
    assert list(session.generate([3], max_new_tokens=10, drafter=OwnDrafter(session), block_length=4, eos_ids=())) == plain
    sampling = Sampling(temperature=1.0)
    session.reset()
    drawn = list(session.generate([3, 4], max_new_tokens=20, drafter=OwnDrafter(session), sampling=sampling, block_length=6))
    assert all(0 <= token < session.vocab_size for token in drawn)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("lfm2", dspark_config(tiny_config("lfm2"), [FULL, FULL], [0, 1])),
        ("falcon_h1", dflash_config(tiny_config("falcon_h1"), [FULL, SLIDING], [1, 0])),
    ],
)
def test_other_targets_and_kinds(tmp_path: Path, family: str, config: dict[str, Any]) -> None:
    check(*made(tmp_path, family, config, OPTIONS), seed=0)


@pytest.mark.thorough
@pytest.mark.slow
def test_fewer_bits_for_the_drafter_alone(tmp_path: Path) -> None:
    sizes = {"intermediate_size": 48, "head_dim": 8}
    config = dspark_config(tiny_config("lfm2"), [FULL], [0, 1], markov_rank=16, **sizes)
    options = dataclasses.replace(OPTIONS, draft_quantize="8w", group_size=8)
    session, _, _ = made(tmp_path, "lfm2", config, options)
    plain = list(session.generate([3, 4, 5], max_new_tokens=20, eos_ids=()))
    session.reset()
    drafted = session.generate([3, 4, 5], max_new_tokens=20, drafter=OwnDrafter(session), block_length=6, eos_ids=())
    assert list(drafted) == plain


# Sessions over artifacts of every kind

TARGET, GEMMA = tiny_config("qwen3_5_text"), tiny_config("gemma4_text")
LAYERS = [SLIDING, FULL]


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
"""A block at once, a chain, and one that looks at its target's keys; the others are called in the same way."""
DRAFTED = ExportOptions(max_seq_len=67, prefill_chunk=17, verify_len=6, snapshot_slots=1, draft_blocks=(3, 6), tap_layers=(2,))


@pytest.fixture(
    scope="module", params=["dflash2", *(pytest.param(each, marks=pytest.mark.thorough) for each in KINDS if each != "dflash2")]
)
def drafter_artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with the drafter, and hidden states that the drafter does not read."""
    folder, (target, save) = tmp_path_factory.mktemp("drafted"), KINDS[request.param]
    save_lively_checkpoint(folder / "target", target)
    made = exported(folder / "target", DRAFTED, drafter=save(folder / "drafter"))
    return Path(shutil.copytree(made, folder / "out"))


@pytest.fixture
def session(drafter_artifact: Path) -> Session:
    return Session.load(drafter_artifact)


def read(session: Session, count: int = 41) -> list[int]:
    """Read a prompt that takes several chunks, from the start."""
    prompt = [7 * i % 90 for i in range(count)]
    session.reset()
    session.prefill(prompt)
    return prompt


@pytest.mark.slow
def test_a_long_prompt_is_read_in_chunks(session: Session) -> None:
    prompt = read(session)
    hidden, whole = session.hidden, None
    assert len(hidden) == len(prompt)
    for pieces in ((41,), (17, 17, 7), (1, 40)):
        read(session)
        start = 0
        for size in pieces:
            found = session.draft(hidden[start : start + size], [*prompt, 5][start + 1 : start + size + 1], limit=4).tokens
            start += size
        whole = whole or found
        assert found == whole != []


@pytest.mark.slow
def test_a_checkpoint_has_the_rows_that_the_drafter_has_read(session: Session) -> None:
    prompt = read(session)
    unread, hidden = session.checkpoint(), session.hidden
    assert session.draft(hidden, [*prompt[1:], 5], limit=4).tokens != []
    been_read = session.checkpoint()
    assert been_read.nbytes >= unread.nbytes
    proposed = []
    for _ in range(2):
        session.resume(been_read)
        session.decode(5)
        proposed.append(session.draft(session.hidden, [6], limit=4).tokens)
        session.resume(unread)
    assert proposed[0] == proposed[1] != []
    session.draft(hidden, [*prompt[1:], 5], limit=4)
    session.decode(5)
    assert session.draft(session.hidden, [6], limit=4).tokens == proposed[0], "what had not been read can be read then"


@pytest.mark.slow
def test_the_same_noise_gives_the_same_draws(session: Session) -> None:
    texts, accepted = set(), 0
    for noise in range(4):
        for block in (2, 3, 6):
            drawn = []
            for _ in range(2):
                session.reset()
                stats = GenerationStats()
                new = session.generate(
                    [3, 1, 4, 1, 5], max_new_tokens=40, temperature=0.7, drafter=OwnDrafter(session), noise=noise,
                    block_length=block, stats=stats,
                )  # fmt: skip
                drawn.append((list(new), stats.proposed, stats.accepted))
            assert drawn[0] == drawn[1]
            texts.add(tuple(drawn[0][0]))
            accepted += stats.accepted
    assert len(texts) == 4, "a block changes nothing"
    assert accepted > 0


@pytest.mark.slow
def test_a_validation_generates_with_the_drafter(drafter_artifact: Path) -> None:
    report = validate_session(
        drafter_artifact, resolve_checkpoint(drafter_artifact.with_name("target")), ExportProgress(), programs=1, seed=0
    )
    check = report.generation
    assert report.passed
    assert check.drafted_matches == check.drafted_prompts == check.prompts
    assert check.drafted_rejected > 100
    check.drafted_matches -= 1
    assert not report.passed
    with pytest.raises(ValidationError, match="with its own drafter 19 of 20"):
        report.check()


@pytest.mark.slow
def test_what_is_no_draft_is_refused(session: Session) -> None:
    prompt = read(session, 3)
    hidden = session.hidden
    calls: list[tuple[type[HybridgeError], Any, list[int], int]] = [
        (TokenError, hidden, [*prompt[1:], -1], 3),
        (TokenError, hidden, [*prompt[1:], 10**6], 3),
        (TokenError, hidden, [*prompt[1:], 10**30], 3),
        (UsageError, hidden, [*prompt[1:], 5], 0),
        (DraftError, hidden[:, :-1], [*prompt[1:], 5], 3),
        (TokenError, hidden, [5], 3),
        (TokenError, hidden[:0], [], 3),
        (TokenError, hidden[0], [5], 3),
    ]
    for error, rows, following, limit in calls:
        with pytest.raises(error):
            session.draft(rows, following, limit=limit)
    assert session.draft(hidden, [*prompt[1:], 5], limit=1).tokens != []


@pytest.mark.thorough
@pytest.mark.slow
def test_a_program_that_says_nothing_of_its_drafter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session without the manifest would have no drafter."""
    save_lively_checkpoint(tmp_path / "target", TARGET)
    drafter = block_drafter(tmp_path / "drafter")
    monkeypatch.setattr(exporter, "drafter_constants", lambda *_: {})
    export_model(tmp_path / "target", tmp_path / "out", DRAFTED, drafter=drafter)
    with pytest.raises(ArtifactError, match="has no method hybridge_draft_blocks; export the model again"):
        Session.load(tmp_path / "out")
