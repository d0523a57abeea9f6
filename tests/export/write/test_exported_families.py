"""Real .pte files of each kind of layers and of the corners: core operators on the portable backend, few bits, experts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from store import exported
from tiny import save_checkpoint, save_lively_checkpoint, tiny_config
from zoo import VARIANTS

from hybridge.export.check.oracle import load_oracle
from hybridge.export.check.validate import validate
from hybridge.runtime import ExportOptions, Session

pytestmark = pytest.mark.slow

HYBRID = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32}
CASES = {
    "core operators": (
        "lfm2", {}, torch.bfloat16,
        ExportOptions(max_seq_len=64, prefill_chunk=5, verify_len=2, kernels="aten", backend="portable"),
    ),
    "experts of 4 bits, sinks, shorter blocks": (
        "gpt_oss", {}, torch.float16,
        ExportOptions(
            max_seq_len=64, prefill_chunk=9, verify_len=5, shorter_verify_lens=(2,),
            kernels="hybridge", quantize="4w", group_size=8,
        ),
    ),
    "experts of 4 bits beside a delta rule": (
        "qwen3_next", HYBRID | EXPERTS, torch.float16,
        ExportOptions(
            max_seq_len=64, prefill_chunk=9, verify_len=5, shorter_verify_lens=(2, 3),
            kernels="hybridge", quantize="4w", group_size=8,
        ),
    ),
    "tied embeddings, stored once": (
        "qwen3", {"num_hidden_layers": 1, "vocab_size": 12_000, "tie_word_embeddings": True}, torch.float32,
        ExportOptions(max_seq_len=64, prefill_chunk=9, verify_len=3, kernels="llm"),
    ),
    "smallest sizes": (
        "llama", {"num_hidden_layers": 1}, torch.float32,
        ExportOptions(max_seq_len=1, prefill_chunk=1, verify_len=1, snapshot_slots=0, kernels="llm"),
    ),
    "hybridge's kernels, float32": (
        "qwen3_5_text", HYBRID, torch.float32,
        ExportOptions(max_seq_len=64, prefill_chunk=9, verify_len=3, kernels="hybridge"),
    ),
    "weights of 4 bits": (
        "qwen3_5_text", HYBRID, torch.float32,
        ExportOptions(max_seq_len=64, prefill_chunk=9, verify_len=3, kernels="hybridge", quantize="4w", group_size=8),
    ),
    "stock kernels, weights of 4 bits": (
        "qwen3_5_text", HYBRID | {"hidden_size": 96, "intermediate_size": 320, "tie_word_embeddings": True}, torch.float32,
        ExportOptions(max_seq_len=64, prefill_chunk=9, verify_len=3, kernels="llm", quantize="8da4w", embedding_quantize="4w"),
    ),
    "stock kernels, an embedding of 8 bits": (
        "lfm2", {"hidden_size": 64, "tie_word_embeddings": False}, torch.float32,
        ExportOptions(max_seq_len=64, prefill_chunk=5, verify_len=2, kernels="llm", embedding_quantize="8w"),
    ),
    "keys of 16 bits": (
        "qwen3_5_text", HYBRID, torch.float32,
        ExportOptions(max_seq_len=64, prefill_chunk=9, verify_len=3, kernels="hybridge", kv_cache="float16"),
    ),
    "weights of 4 bits, keys and activations of 8": (
        "qwen3_5_text", HYBRID | {"tie_word_embeddings": True}, torch.float32,
        ExportOptions(
            max_seq_len=64, prefill_chunk=9, verify_len=3, kernels="hybridge",
            quantize="8da4w", embedding_quantize="8w", group_size=8, kv_cache="int8",
        ),
    ),
}  # fmt: skip


SMALL = ExportOptions(max_seq_len=40, prefill_chunk=9, verify_len=3, snapshot_slots=1)


KINDS = ("jamba", "minimax")
"""Families of kinds of layers that no other artifact has: test_validate_pictures.py validates those of others."""


@pytest.mark.parametrize(
    "family", [each if each in KINDS else pytest.param(each, marks=pytest.mark.thorough) for each in sorted(VARIANTS)]
)
def test_a_real_program_of_each_family(family: str, tmp_path: Path) -> None:
    assert_is_the_model(tmp_path, family, SMALL)


@pytest.mark.thorough
def test_sliding_windows_and_a_recurrence_by_the_runtimes_own_operators(tmp_path: Path) -> None:
    """Their lowering takes three times as long; test_pte_session.py has the delta rule's."""
    assert_is_the_model(tmp_path, "recurrent_gemma", replace(SMALL, kernels="llm"))


def assert_is_the_model(folder: Path, family: str, options: ExportOptions) -> None:
    save_lively_checkpoint(folder / "checkpoint", tiny_config(family))
    session = Session.load(exported(folder / "checkpoint", options))
    oracle = load_oracle(folder / "checkpoint", session.manifest)
    own = session.manifest.has_same_bits
    report = validate(
        session, oracle, programs=3, prompts=1, new_tokens=10, seed=0, notify=lambda done, total: None, same_bits=own
    )
    report.check()
    assert report.decoded


FEW = ("experts of 4 bits, sinks, shorter blocks", "weights of 4 bits, keys and activations of 8")


@pytest.mark.parametrize("case", [pytest.param(each, marks=[] if each in FEW else pytest.mark.thorough) for each in CASES])
def test_the_program_is_the_model(case: str, tmp_path: Path) -> None:
    model_type, sizes, dtype, options = CASES[case]
    save_checkpoint(tmp_path / "checkpoint", tiny_config(model_type, **sizes), dtype)
    session = Session.load(exported(tmp_path / "checkpoint", options))
    manifest = session.manifest
    oracle = load_oracle(tmp_path / "checkpoint", manifest)
    own = manifest.has_same_bits
    report = validate(
        session, oracle, programs=6, prompts=2, new_tokens=10, seed=0, notify=lambda done, total: None, same_bits=own
    )
    assert report.passed, report
    assert manifest.files["model.pte"].size <= 1.1 * manifest.weight_bytes + 1e6
    operators = {name for method in manifest.methods.values() for name in method.operators}
    assert any(name.startswith("llama::") for name in operators) == (options.kernels == "llm")
    assert any(name.startswith("hybridge::") for name in operators) == (options.kernels == "hybridge")
    delegates = {name for method in manifest.methods.values() for name in method.delegates}
    assert delegates == ({"XnnpackBackend"} if manifest.options.backend == "xnnpack" else set())
    assert {name for name in manifest.methods if "verify_" in name} == {f"verify_{n}" for n in options.shorter_verify_lens}
    assert ("snapshot" in manifest.methods) == (options.snapshot_slots > 0)
