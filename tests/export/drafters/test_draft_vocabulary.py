"""Drafters that propose some of the tokens: which are chosen, what is refused, and proposals against the definition."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drafter_programs import compare_blocks, definition_of
from drafter_twins import Twin, dspark_config, random_tensors, save_drafter
from hypothesis import given
from hypothesis import strategies as st
from mtp_reference import MtpReference, save_mtp
from public_folders import save_qwen3_5
from store import exported
from tiny import lively, save_checkpoint, tiny_config, tiny_model

from hybridge.errors import UsageError
from hybridge.export.drafters.mtp import load_mtp
from hybridge.export.drafters.plan import plan_drafter
from hybridge.export.drafters.vocabulary import (
    ROWS,
    DraftVocabulary,
    choose_rows,
    sampled_scores,
    steps_of,
    vocabulary_of,
    whole_panels,
)
from hybridge.export.program.eager import LoadedDrafter, eager_session
from hybridge.export.source.checkpoint import LoadedModel, load_checkpoint
from hybridge.runtime import ExportOptions, OwnDrafter, Session
from hybridge.runtime.binding.session import DraftNoise

OPTIONS = ExportOptions(max_seq_len=48, prefill_chunk=7, verify_len=5, tap_layers=(-1,), mtp=True, draft_len=3)
SPOKEN = dataclasses.replace(OPTIONS, prefill_chunk=8, max_seq_len=64)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("all", None),
        ("32000", DraftVocabulary("first", 32000)),
        (70, DraftVocabulary("first", 70)),
        ("self", DraftVocabulary("self")),
        ("self:500", DraftVocabulary("self", 500)),
        ("corpus.txt", DraftVocabulary(Path("corpus.txt"))),
        ("a/b:c.txt:48", DraftVocabulary(Path("a/b:c.txt"), 48)),
        (Path("70"), DraftVocabulary(Path("70"))),
    ],
)
def test_names_of_vocabularies(name: str | int | Path, wanted: DraftVocabulary | None) -> None:
    assert DraftVocabulary.named(name) == wanted
    if wanted is not None:
        assert DraftVocabulary.named(str(wanted)) == wanted or isinstance(name, Path)


def test_a_large_vocabulary_is_cut_by_default() -> None:
    own, stock = ExportOptions(), ExportOptions(kernels="llm")
    assert vocabulary_of(None, 65_536, own) is None
    assert vocabulary_of(None, 65_537, own) == DraftVocabulary("self", ROWS)
    assert vocabulary_of(None, 65_537, stock) == DraftVocabulary("first", ROWS)
    assert vocabulary_of("all", 65_537, own) is None
    with pytest.raises(UsageError, match="self needs --kernels hybridge, not llm"):
        vocabulary_of("self", 300, stock)


@given(st.lists(st.floats(0, 9), min_size=1, max_size=90), st.integers(1, 90), st.data())
def test_panels_with_the_most_are_chosen(scores: list[float], wanted: int, data: st.DataObject) -> None:
    always = data.draw(st.lists(st.integers(0, len(scores) - 1), max_size=3))
    ids = whole_panels(np.array(scores), wanted, always).tolist()
    assert ids == sorted({*ids})
    assert {*always} <= {*ids} <= {*range(len(scores))}
    panels = {token // 16 for token in ids}
    assert len(ids) == sum(min(16, len(scores) - 16 * panel) for panel in panels), "whole panels"
    assert len(panels) <= max(-(-wanted // 16), len({token // 16 for token in always}))
    sums = {panel: sum(scores[16 * panel : 16 * panel + 16]) for panel in range(len(scores) // 16)}
    left_out = [total for panel, total in sums.items() if panel not in panels]
    free = [total for panel, total in sums.items() if panel in panels - {token // 16 for token in always}]
    assert not left_out or not free or max(left_out) <= min(free)


def save(folder: Path, family: str = "qwen3_5_text", **sizes: Any) -> LoadedModel:
    """A checkpoint with multi-token prediction and a tokenizer of words."""
    save_mtp(folder, tiny_config(family, **sizes))
    return load_checkpoint(folder)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3.5 folder as published: pictures and text, ``mtp.*`` beside the model, a tokenizer."""
    folder = tmp_path_factory.mktemp("public") / "qwen"
    save_qwen3_5(folder)
    return folder


REFUSED: dict[str, tuple[str | bytes | None, str]] = {
    "unreadable": (None, "cannot be read: No such file or directory"),
    "empty": ("", "has no tokens of this model"),
    "no text": (b"\xff\xfe\x00", "is not UTF-8 text"),
    "a list of another tokenizer": ("[5, 330]", "has the token 330, but this model has 330 tokens: it is of another tokenizer"),
    "a list of negative ids": ("[-1]", "has the token -1"),
    "an empty list": ("[]", "should then be one of ids"),
    "a list of words": ('["the"]', "should then be one of ids"),
    "a broken list": ("[1, 2", "should then be one of ids"),
    "nested too deeply": ("[" * 100_000, "should then be one of ids"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_files_that_name_no_tokens_are_refused(public: Path, tmp_path: Path, what: str) -> None:
    content, says = REFUSED[what]
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=says) as error:
        choose_rows(load_checkpoint(public), DraftVocabulary(path))
    assert str(path) in str(error.value)


def test_a_text_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("words")
    save_checkpoint(tmp_path / "model", tiny_config("qwen3_5_text"))
    with pytest.raises(UsageError, match="needs the model's tokenizer, and it has none"):
        choose_rows(load_checkpoint(tmp_path / "model"), DraftVocabulary(tmp_path / "text"))


@pytest.mark.parametrize("tokens", [0, 330, 1000])
def test_numbers_that_are_no_part_are_refused(public: Path, tokens: int) -> None:
    with pytest.raises(UsageError, match=f"--draft-vocab {tokens} is {tokens} tokens, but should be some of the model's 330"):
        choose_rows(load_checkpoint(public), DraftVocabulary("first", tokens))


def test_a_part_that_comes_to_all_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_config("qwen3_5_text", vocab_size=96))
    with pytest.raises(UsageError, match="comes to all of the model's 96 tokens"):
        choose_rows(load_checkpoint(tmp_path), DraftVocabulary("first", 90))


def test_tokens_of_a_text(public: Path, tmp_path: Path) -> None:
    """The most frequent ones, and those that end a text and that the tokenizer adds; the share is of every fourth line."""
    loaded, path = load_checkpoint(public), tmp_path / "text"
    tokenizer = loaded.source.tokenizer.core
    assert tokenizer is not None
    path.write_text("often often often\nseldom\noften often\noften never\n" * 5)
    counts = torch.tensor(tokenizer.encode(path.read_text(), around=False).ids).bincount(minlength=loaded.vocab_size)
    rows = choose_rows(loaded, DraftVocabulary(path, 48))
    assert {*loaded.eos_ids, *tokenizer.added_tokens()} <= {*rows.ids.tolist()}
    assert int(counts.argmax()) in rows.ids
    held = torch.tensor(tokenizer.encode("often never\n", around=False).ids)
    description = rows.description
    assert (description.source, description.tokens) == ("text", len(rows.ids))
    assert description.coverage is not None
    assert 0 < description.coverage <= 1
    assert description.coverage == pytest.approx(float(torch.isin(held, torch.from_numpy(rows.ids)).double().mean()), abs=0.26)


def test_a_list_of_ids(public: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text(json.dumps([200, 201, 100, 40]))
    rows = choose_rows(load_checkpoint(public), DraftVocabulary(tmp_path / "ids.json", 48))
    assert {200, 201, 100} < {*rows.ids.tolist()}
    assert 40 not in rows.ids
    assert rows.description.coverage is None


def test_a_vocabulary_needs_a_drafter_in_the_artifact() -> None:
    with pytest.raises(UsageError, match="--draft-vocab is for a drafter in the artifact: give --mtp or --drafter"):
        plan_drafter(tiny_config("qwen3_5_text"), ExportOptions(), vocabulary="self")


def eager(checkpoint: LoadedModel, vocabulary: str | int) -> tuple[Session, MtpReference]:
    plan, options = plan_drafter(checkpoint.config, OPTIONS, vocabulary=vocabulary)
    assert plan is not None
    assert plan.vocabulary is not None
    rows = choose_rows(checkpoint, plan.vocabulary)
    reference = MtpReference(checkpoint.model, load_mtp(checkpoint))
    reference.allowed = torch.from_numpy(rows.ids)
    return eager_session(checkpoint.model, options, LoadedDrafter(plan, plan.load(checkpoint), rows)), reference


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen3_5_text", {}),
        ("qwen3_next", {}),
        ("bailing_hybrid", {"num_mtp_layers": 2}),
        ("inkling_text", {"num_mtp_layers": 4, "mtp_local_layer_ids": [0, 2], "chain_hidden_post_norm": True}),
    ],
)
def test_proposals_are_the_best_of_the_part(tmp_path: Path, family: str, sizes: dict[str, Any]) -> None:
    """As an argmax over those logits of the whole head, at each step of the chain."""
    checkpoint = save(tmp_path, family, **sizes)
    session, reference = eager(checkpoint, 32)
    assert reference.allowed is not None
    assert len(reference.allowed) < checkpoint.vocab_size
    assert compare_blocks(session, lambda text, count: reference.chain(text, count), seed=0, operations=9) > 3
    plain = list(session_text(session, None))
    assert list(session_text(session, OwnDrafter(session))) == plain


def session_text(session: Session, drafter: OwnDrafter | None) -> Sequence[int]:
    session.reset()
    block = 4 if drafter else None
    return list(session.generate([5, 6, 7, 8], max_new_tokens=30, drafter=drafter, block_length=block, eos_ids=()))


# In real programs


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", ["self:96", pytest.param(96, marks=pytest.mark.thorough)])
def test_a_program_proposes_the_best_of_its_part(public: Path, vocabulary: str | int) -> None:
    """Try it with the public form; ``self`` is what the artifact itself says, and the same every time."""
    loaded = load_checkpoint(public)
    artifact = exported(public, SPOKEN, draft_vocab=vocabulary)
    session = Session.load(artifact)
    named = DraftVocabulary.named(vocabulary)
    assert named is not None
    scores = None
    if named.source == "self":
        scores = sampled_scores(session, loaded.source.tokenizer.core, steps_of(session.manifest.parameters or 0))
    rows = choose_rows(loaded, named, scores)
    assert session.manifest.drafter is not None
    assert session.manifest.drafter.vocabulary == rows.description
    reference = MtpReference(loaded.model, load_mtp(loaded))
    reference.allowed = torch.from_numpy(rows.ids)
    assert compare_blocks(session, lambda text, count: reference.chain(text, count), seed=0, operations=9) > 3
    assert session_text(session, OwnDrafter(session)) == session_text(session, None)


@pytest.mark.thorough
def test_no_row_is_stored_twice(public: Path) -> None:
    few, whole = (exported(public, SPOKEN, draft_vocab=vocabulary) / "model.pte" for vocabulary in ("self:96", "all"))
    assert abs(few.stat().st_size - whole.stat().st_size) < 8192


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "vocabulary"), [("hybridge", "self:96"), pytest.param("llm", 96, marks=pytest.mark.thorough)]
)
@pytest.mark.thorough
def test_a_block_drafter_says_which_tokens_it_chose_from(tmp_path: Path, kernels: Any, vocabulary: str | int) -> None:
    config = tiny_config("lfm2")
    lively(tiny_model(config)).save_pretrained(tmp_path / "target")
    drafter = dspark_config(config, ["full_attention"], [0, 1])
    tensors = random_tensors(drafter)
    save_drafter(tmp_path / "drafter", drafter, tensors)
    options = ExportOptions(max_seq_len=64, prefill_chunk=8, verify_len=6, draft_blocks=(4, 6), kernels=kernels)
    artifact = exported(tmp_path / "target", options, drafter=tmp_path / "drafter", draft_vocab=vocabulary)
    session, model = Session.load(artifact), load_checkpoint(tmp_path / "target").model
    embedding, head = (each.weight.detach() for each in (model.get_input_embeddings(), model.get_output_embeddings()))
    twin = Twin(drafter, tensors, embedding, head)
    drawn = set[int]()
    for noise in range(0, 2000, 5):
        session.reset()
        session.prefill([4, 5, 6])
        drawn |= {*session.draft(session.hidden, [5, 6, 8], draws=DraftNoise(range(noise, noise + 5), 1e5)).tokens}
    twin.allowed = torch.tensor(sorted(drawn))
    assert session.manifest.drafter is not None
    assert session.manifest.drafter.vocabulary is not None
    assert len(twin.allowed) == session.manifest.drafter.vocabulary.tokens < session.vocab_size
    assert compare_blocks(session, definition_of(twin, model), seed=0, operations=20) > 5
