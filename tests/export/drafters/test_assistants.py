"""Gemma 4's assistants, which look at the target's own keys and values, against transformers' own."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from assistant_reference import CLUSTERS, AssistantReference, assistant_config
from drafter_programs import compare_blocks
from store import exported
from tiny import lively, loaded_model, save_lively_checkpoint, tiny_config, tiny_model
from transformers import Gemma4Config

from hybridge.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.export.drafters.plan import plan_drafter
from hybridge.export.program.build import build_cache
from hybridge.export.program.eager import LoadedDrafter, eager_session
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.runtime import ExportOptions, Session
from hybridge.runtime.binding.drafters import OwnDrafter
from hybridge.runtime.binding.session import DraftNoise

OPTIONS = ExportOptions(max_seq_len=45, prefill_chunk=7, verify_len=6, snapshot_slots=1, draft_blocks=(2, 4, 6))
VOCAB = {"vocab_size": 132, "vocab_size_per_layer_input": 132}
FORMS: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    "target shares": ("gemma4_text", 0, {}, {}),
    "clusters": ("gemma4_text", 0, VOCAB, CLUSTERS),
    "target shares nothing": ("gemma4_text", 1, {}, {}),
    "12B": ("gemma4_unified_text", 0, {}, {}),
}
"""The target's family, which of its configs it has, what is other in that, and in the assistant's."""


def open_session(folder: Path, target: Any, options: ExportOptions = OPTIONS) -> tuple[Session, Any]:
    """A session of a target with the assistant in ``folder``, and the target's model."""
    model = lively(tiny_model(target))
    plan, options = plan_drafter(target, options, folder)
    assert plan is not None
    return eager_session(model, options, LoadedDrafter(plan, plan.load(loaded_model(folder, model)))), model


@pytest.mark.parametrize("form", FORMS)
def test_proposals_are_those_of_transformers(tmp_path: Path, form: str) -> None:
    family, variant, own, changes = FORMS[form]
    target = tiny_config(family, variant, **own)
    reference = AssistantReference(assistant_config(target, **changes))
    session, model = open_session(reference.save(tmp_path), target)
    definition = reference.definition(model)
    assert sum(compare_blocks(session, definition, seed, operations=25) for seed in range(2)) > 25
    texts = []
    for drafter, block in ((None, None), (OwnDrafter(session), 6), (OwnDrafter(session), None)):
        session.reset()
        texts.append(list(session.generate([5, 6, 7], max_new_tokens=42, drafter=drafter, block_length=block, eos_ids=())))
    assert texts[1:] == texts[:1] * 2
    assert len(texts[0]) == 42, "the context is full within a block"


@pytest.fixture(scope="module")
def clustered_assistant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an assistant with clusters, for ``TARGET``."""
    return AssistantReference(assistant_config(TARGET, **CLUSTERS)).save(tmp_path_factory.mktemp("assistant"))


TARGET = tiny_config("gemma4_text", **VOCAB)


def test_a_row_behind_the_window_and_a_length_are_all_it_needs(clustered_assistant: Path) -> None:
    plan, options = plan_drafter(TARGET, OPTIONS, clustered_assistant)
    with torch.device("meta"):
        own, alone = build_cache(TARGET, options, plan), build_cache(TARGET, replace(OPTIONS, draft_blocks=()))
    before = {name: math.prod(shape) for name, shape in alone.layout()}
    grown = {name: math.prod(shape) - before.get(name, 0) for name, shape in own.layout()}
    row = {f"layers.0.{name}{slots}": 16 for name in ("keys", "values") for slots in ("", "_slots")}
    length = {"layers.4.drafted_length": 1, "layers.4.drafted_length_slots": 1}
    assert {name: numbers for name, numbers in grown.items() if numbers} == {**row, **length}


def test_what_is_drawn_is_of_the_best_clusters(clustered_assistant: Path) -> None:
    session, _ = open_session(clustered_assistant, TARGET)
    drawn = set[int]()
    for noise in range(150):
        session.reset()
        session.prefill([4, 5, 6, 7])
        drawn |= {*session.draft(session.hidden, [5, 6, 7, 8], limit=1, draws=DraftNoise([noise], 1e4)).tokens}
    assert 30 < len(drawn) <= 3 * 132 // 11


def test_an_empty_target_gives_nothing_to_look_at(clustered_assistant: Path) -> None:
    session, _ = open_session(clustered_assistant, TARGET)
    hidden = np.zeros((1, TARGET.hidden_size), np.float32)
    assert session.draft(hidden, [5]).tokens == []
    session.prefill([1, 2, 3])
    assert len(session.draft(session.hidden, [2, 3, 4], limit=3).tokens) == 3


def test_a_multimodal_target_is_its_text_model(clustered_assistant: Path) -> None:
    plan, options = plan_drafter(Gemma4Config(text_config=TARGET), OPTIONS, clustered_assistant)
    assert plan is not None
    assert (plan.description.kind, plan.description.taps, options.tap_layers) == ("gemma4_assistant", (4,), (4,))


def test_older_configs_name_the_full_layers_heads_apart(clustered_assistant: Path, tmp_path: Path) -> None:
    """As the published ones do."""
    config = json.loads((clustered_assistant / "config.json").read_text())
    wide = config["text_config"].pop("per_layer_config")["2"]
    config["text_config"]["global_head_dim"] = wide["head_dim"]
    del config["text_config"]["num_kv_shared_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    plans = [plan_drafter(TARGET, OPTIONS, folder)[0] for folder in (clustered_assistant, tmp_path)]
    assert vars(plans[0])["config"] == vars(plans[1])["config"]


def spoil(clustered: Path, folder: Path, changes: dict[str, Any], tensors: dict[str, Any] | None = None) -> None:
    """Write the assistant with other fields, those of its text model by ``text_config``, and other or without tensors."""
    config = json.loads((clustered / "config.json").read_text())
    inside = changes.get("text_config", {})
    if isinstance(inside, dict):
        changes = {**changes, "text_config": {**config["text_config"], **inside}}
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    found = safetensors.torch.load_file(clustered / "model.safetensors") | (tensors or {})
    safetensors.torch.save_file({name: each for name, each in found.items() if each is not None}, folder / "model.safetensors")


def text(**changes: Any) -> dict[str, Any]:
    return {"text_config": changes}


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"backbone_hidden_size": 80}, UsageError, "another target: its target's hidden size is 80"),
        (text(vocab_size=264), UsageError, "another target: its target's vocabulary is 264"),
        (text(head_dim=8), UsageError, "its target's sliding_attention has head dim 8, and this model's 16"),
        (text(per_layer_config={"2": {"head_dim": 32}}), UsageError, "its target's full_attention has head dim 32"),
        (text(num_key_value_heads=2), UsageError, "sliding_attention has key/value heads 2, and this model's 1"),
        (text(sliding_window=9), UsageError, "sliding_attention has window 9, and this model's 5"),
        ({"model_type": "gemma4_unified_assistant"}, UsageError, "for a gemma4_unified_text, and this model is a gemma4_text"),
        ({"text_config": None}, CheckpointError, "text_config is None, but should be an object"),
        (text(hidden_size="wide"), CheckpointError, "its text_config cannot be read"),
        (text(hidden_size=0), CheckpointError, "hidden_size is 0"),
        (text(num_hidden_layers=10**6), CheckpointError, "num_hidden_layers is 1000000, but should be .* 1 to 64"),
        (text(num_kv_shared_layers=1), CheckpointError, "num_kv_shared_layers is 1, but should be all 3 layers"),
        (text(layer_types=["full_attention"]), CheckpointError, "its text_config cannot be read"),
        (text(per_layer_config={"1": {"hidden_size": 4}}), CheckpointError, "its text_config cannot be read"),
        (text(rope_parameters={"full_attention": {}}), CheckpointError, "an object that has sliding_attention"),
        (text(num_attention_heads=3, num_key_value_heads=2), CheckpointError, "a divisor of the 3 heads"),
        (text(num_key_value_heads=0), CheckpointError, "a divisor of the 4 heads"),
        (text(rms_norm_eps=float("inf")), CheckpointError, "rms_norm_eps is inf"),
        ({"num_centroids": 7}, CheckpointError, "num_centroids is 7, but should be a divisor of the 132 tokens"),
        ({"centroid_intermediate_top_k": 12}, CheckpointError, "centroid_intermediate_top_k is 12"),
        ({"use_ordered_embeddings": 1}, CheckpointError, "use_ordered_embeddings is 1"),
        ({"tie_word_embeddings": False}, UnsupportedModelError, "tie_word_embeddings False"),
        (text(enable_moe_block=True), UnsupportedModelError, "enable_moe_block True"),
        (text(hidden_activation="silu"), UnsupportedModelError, "hidden_activation 'silu'"),
    ],
)
def test_configs_that_make_no_assistant_are_refused(
    clustered_assistant: Path, tmp_path: Path, changes: dict[str, Any], error: type, says: str
) -> None:
    spoil(clustered_assistant, tmp_path, changes)
    with pytest.raises(error, match=says):
        plan_drafter(TARGET, OPTIONS, tmp_path)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (tiny_config("qwen3_5_text"), "a gemma4_assistant is for a gemma4_text, and this model is a qwen3_5_text"),
        (tiny_config("gemma4_text", **VOCAB, layer_types=["full_attention"] * 4), "only those of full_attention"),
    ],
)
def test_targets_that_it_cannot_read_are_refused(clustered_assistant: Path, target: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan_drafter(target, OPTIONS, clustered_assistant)


def test_a_draft_vocabulary_is_for_others(clustered_assistant: Path) -> None:
    with pytest.raises(UsageError, match="assistants have their own"):
        plan_drafter(TARGET, OPTIONS, clustered_assistant, vocabulary=70)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"post_projection.weight": None}, "lacks post_projection.weight"),
        ({"model.layers.2.self_attn.q_proj.weight": torch.zeros(2, 2)}, r"q_proj.weight in .* has shape \[2, 2\]"),
        ({"model.layers.3.layer_scalar": torch.ones(1)}, "has the unknown model.layers.3.layer_scalar"),
        ({"model.norm.weight": torch.full((20,), float("nan"))}, "not finite"),
        ({"masked_embedding.token_ordering": None}, "lacks masked_embedding.token_ordering"),
        ({"masked_embedding.token_ordering": torch.zeros(132, dtype=torch.long)}, "is not 132 tokens in some order"),
    ],
)
def test_weights_that_make_no_assistant_are_refused(
    clustered_assistant: Path, tmp_path: Path, tensors: dict[str, Any], says: str
) -> None:
    spoil(clustered_assistant, tmp_path, {}, tensors)
    with pytest.raises(CheckpointError, match=says):
        open_session(tmp_path, TARGET)


def test_copies_and_what_has_no_use_are_left_out(clustered_assistant: Path, tmp_path: Path) -> None:
    """Layers without keys have no use for their projections, and the head is the embedding."""
    more = {"lm_head.weight": torch.zeros(132, 20), "model.layers.0.self_attn.k_proj.weight": torch.zeros(16, 20)}
    spoil(clustered_assistant, tmp_path, {}, more)
    drafted: list[Any] = []
    for folder in (clustered_assistant, tmp_path):
        session, _ = open_session(folder, TARGET)
        session.prefill([1, 2, 3])
        drafted.append(session.draft(session.hidden, [2, 3, 4]).tokens)
    assert drafted[0] == drafted[1]


@pytest.mark.slow
@pytest.mark.thorough
def test_a_real_program_proposes_the_same(tmp_path: Path) -> None:
    reference = AssistantReference(assistant_config(TARGET, **CLUSTERS))
    save_lively_checkpoint(tmp_path / "target", TARGET)
    artifact = exported(tmp_path / "target", OPTIONS, drafter=reference.save(tmp_path / "drafter"))
    definition = reference.definition(load_checkpoint(tmp_path / "target").model)
    assert compare_blocks(Session.load(artifact), definition, seed=0, operations=25) > 10
