"""Block drafters in real programs: both kernel sets, against their definition."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from drafter_programs import compare_blocks, definition_of
from drafter_twins import Twin, dflash2_config, dflash_config, dspark_config, random_tensors, save_drafter
from store import exported
from tiny import lively, tiny_config, tiny_model

from hybridge.export.checkpoint.loading import load_checkpoint
from hybridge.runtime import ExportOptions, Sampling, Session
from hybridge.runtime.core.drafters import BlockDrafter

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
    config = dflash2_config(tiny_config("qwen3_5_text"), [SLIDING, FULL], [0, 1])
    options = dataclasses.replace(OPTIONS, kernels=kernels)
    session, twin, model = made(tmp_path, "qwen3_5_text", config, options)
    assert session.manifest.drafter is not None
    assert session.manifest.drafter.kind == "dflash2"
    check(session, twin, model, seed=0)
    session.save(tmp_path / "state")
    session.reset()
    check(session, twin, model, seed=1)
    session.load_state(tmp_path / "state")
    plain = list(session.generate([3], max_new_tokens=10, eos_ids=()))
    session.load_state(tmp_path / "state")
    assert list(session.generate([3], max_new_tokens=10, drafter=BlockDrafter(session), block_length=4, eos_ids=())) == plain
    sampling = Sampling(temperature=1.0)
    session.reset()
    drawn = list(session.generate([3, 4], max_new_tokens=20, drafter=BlockDrafter(session), sampling=sampling, block_length=6))
    assert all(0 <= token < session.vocab_size for token in drawn)


@pytest.mark.slow
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
    drafted = session.generate([3, 4, 5], max_new_tokens=20, drafter=BlockDrafter(session), block_length=6, eos_ids=())
    assert list(drafted) == plain
