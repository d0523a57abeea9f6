"""EAGLE-3 drafters against their published definition, and their checkpoints' forms."""

from pathlib import Path
from typing import Any

import pytest
import torch
from drafter_programs import compare_blocks, definition_of
from drafter_twins import EagleTwin, eagle_config, eagle_tensors, save_drafter
from store import exported
from tiny import lively, loaded_model, tiny_config, tiny_model

from hybridge.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.export.drafters.eagle import read_eagle_config
from hybridge.export.drafters.plan import plan_drafter
from hybridge.export.program.eager import LoadedDrafter, eager_session
from hybridge.runtime import ExportOptions, Session
from hybridge.runtime.binding.drafters import OwnDrafter
from hybridge.runtime.binding.session import DraftNoise

OPTIONS = ExportOptions(max_seq_len=45, prefill_chunk=7, verify_len=6, snapshot_slots=1, draft_blocks=(3, 5))
TARGET = tiny_config("qwen3_5_text")
FEW = 61
FORMS: dict[str, tuple[dict[str, Any], bool]] = {
    "authors": ({"draft_vocab_size": FEW}, False),
    "own embedding": ({"norm_before_residual": True}, True),
    "narrow": ({"hidden_size": 40, "target_hidden_size": TARGET.hidden_size, "draft_vocab_size": FEW}, True),
}


def made(folder: Path, changes: dict[str, Any], own: bool) -> tuple[Session, EagleTwin, Any]:
    config = eagle_config(TARGET, TARGET.vocab_size, **changes)
    tensors = eagle_tensors(config, 2, own)
    model = lively(tiny_model(TARGET))
    plan, options = plan_drafter(TARGET, OPTIONS, save_drafter(folder, config, tensors))
    assert plan is not None
    session = eager_session(model, options, LoadedDrafter(plan, plan.load(loaded_model(folder, model))))
    return session, EagleTwin(config, tensors, model.get_input_embeddings().weight.detach()), model


@pytest.mark.parametrize("form", FORMS)
def test_guesses_are_those_of_the_definition(tmp_path: Path, form: str) -> None:
    session, twin, model = made(tmp_path, *FORMS[form])
    assert sum(compare_blocks(session, definition_of(twin, model), seed, operations=25) for seed in range(3)) > 30
    texts = []
    for drafter in (None, OwnDrafter(session)):
        session.reset()
        texts.append(list(session.generate([1, 2, 3, 4], max_new_tokens=30, drafter=drafter, block_length=drafter and 5)))
    assert texts[0] == texts[1]


def test_what_is_drawn_is_of_the_drafters_own_tokens(tmp_path: Path) -> None:
    session, twin, _ = made(tmp_path, *FORMS["authors"])
    session.prefill([4, 5, 6, 7])
    drafted = session.draft(session.hidden, [5, 6, 7, 8], limit=4, draws=DraftNoise([1, 2, 3, 4], 1e4))
    own = {i + int(offset) for i, offset in enumerate(twin.tensors["d2t"])}
    assert {*drafted.tokens} <= own


@pytest.mark.slow
@pytest.mark.thorough
def test_a_real_program_guesses_the_same(tmp_path: Path) -> None:
    _, twin, model = made(tmp_path / "drafter", *FORMS["authors"])
    model.save_pretrained(tmp_path / "target")
    session = Session.load(exported(tmp_path / "target", OPTIONS, drafter=tmp_path / "drafter"))
    assert compare_blocks(session, definition_of(twin, model), seed=0, operations=20) > 5


def test_the_layers_that_are_read_have_two_names() -> None:
    sglang, vllm = (eagle_config(TARGET, 9), {**eagle_config(TARGET, 9), "eagle_aux_hidden_state_layer_ids": [1, 2]})
    found = [read_eagle_config(Path("config.json"), config) for config in (sglang, vllm)]
    assert [each and each.taps for each in found] == [(1, 2), (1, 2)]


def test_a_speculators_config_has_its_layer_inside() -> None:
    config = eagle_config(TARGET, 9)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "model_type")
    inside = {name: config.pop(name) for name in names}
    config |= {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "transformer_layer_config": inside}
    found = read_eagle_config(Path("config.json"), config)
    assert found is not None
    assert (found.hidden_size, found.vocab_size, found.draft_vocab) == (TARGET.hidden_size, TARGET.vocab_size, 9)


def load(folder: Path) -> None:
    plan, _ = plan_drafter(TARGET, OPTIONS, folder)
    assert plan is not None
    plan.load(loaded_model(folder, tiny_model(TARGET)))


@pytest.mark.parametrize(
    ("changes", "spoilt", "error", "says"),
    [
        ({"num_hidden_layers": 2}, {}, UnsupportedModelError, "num_hidden_layers 2"),
        ({"hidden_size": 40}, {}, UsageError, "hidden size is 40"),
        ({}, {"d2t": None}, CheckpointError, "lacks d2t"),
        ({}, {"d2t": torch.full((FEW,), 1000)}, CheckpointError, "does not say 61 tokens"),
        ({}, {"fc.weight": None}, CheckpointError, "lacks fc.weight"),
    ],
)
def test_what_makes_no_drafter_is_refused(
    tmp_path: Path, changes: dict[str, Any], spoilt: dict[str, Any], error: type, says: str
) -> None:
    config = eagle_config(TARGET, FEW, **changes)
    tensors = {name: each for name, each in (eagle_tensors(config, 2) | spoilt).items() if each is not None}
    save_drafter(tmp_path, config, tensors)
    with pytest.raises(error, match=says):
        load(tmp_path)
