"""What a config may ask for and keys in a cache cannot follow is refused by name; what no model reads changes nothing."""

import copy
from typing import Any

import pytest
import torch
from tiny import lively, tiny_config, tiny_model

from hybridge.cache.families import plan
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.model.adapt import hold_rope
from hybridge.export.pinned.torch_export import known_operators, quick_overrides
from hybridge.export.program.build import build_cache
from hybridge.export.program.eager import eager_session
from hybridge.export.program.methods import build_methods
from hybridge.export.program.state import State
from hybridge.runtime.artifact.options import ExportOptions

DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
LONG = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0] * 6, "long_factor": [4.0] * 6}
LOCAL = {"rope_type": "default", "rope_theta": 10.0}
LIMIT = 48
MOVING: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": LIMIT}),
    ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": LIMIT, "partial_rotary_factor": 1.0}),
    ("olmo3", {"rope_parameters": {"full_attention": DYNAMIC, "sliding_attention": LOCAL}, "max_position_embeddings": LIMIT}),
]
"""Families with rope that changes all angles once a text is longer than LIMIT."""


def new_cache(family: str, variant: int = 0, max_seq_len: int = LIMIT, **options: Any) -> HybridCache:
    return HybridCache.from_config(tiny_config(family, variant, **copy.deepcopy(options)), max_seq_len=max_seq_len)


@pytest.mark.parametrize(("family", "options"), MOVING)
def test_a_text_may_not_outgrow_its_rope(family: str, options: dict[str, Any]) -> None:
    new_cache(family, **options)
    with pytest.raises(UnsupportedModelError, match=rf"rope type '\w+' .* longer than {LIMIT} tokens.*must be {LIMIT} at most"):
        new_cache(family, max_seq_len=LIMIT + 1, **options)


@pytest.mark.parametrize(("family", "options"), MOVING)
@torch.no_grad()
def test_rope_is_held_still_up_to_its_limit(family: str, options: dict[str, Any]) -> None:
    """To the last position, also where the model ran a longer text before; and that model keeps the angles it has."""
    model = lively(tiny_model(tiny_config(family, **copy.deepcopy(options))))
    text = torch.arange(LIMIT)[None] * 7 % 131
    want = model(text, use_cache=False).logits[0, -1]
    model(torch.zeros(1, 2 * LIMIT, dtype=torch.long), use_cache=False)
    moved = {name: buffer.clone() for name, buffer in model.named_buffers()}
    session = eager_session(model, ExportOptions(max_seq_len=LIMIT, prefill_chunk=17, verify_len=5))
    torch.testing.assert_close(torch.from_numpy(session.prefill(text[0].tolist())), want, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(buffer, moved[name]) for name, buffer in model.named_buffers())


@pytest.mark.slow
@pytest.mark.parametrize(("family", "options"), MOVING)
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_held_rope_exports_and_writes_to_nothing_but_the_cache(family: str, options: dict[str, Any]) -> None:
    model = tiny_model(tiny_config(family, **copy.deepcopy(options)))
    state = State(model, build_cache(model.config, ExportOptions(max_seq_len=LIMIT, prefill_chunk=17, verify_len=5)))
    with known_operators(), quick_overrides():
        program = torch.export.export(*build_methods(state)["decode"], strict=False).run_decompositions({})
    assert all(name.startswith("state.cache.") for name in program.graph_signature.buffers_to_mutate.values())


def test_other_rope_is_left_as_it_is() -> None:
    model = tiny_model(tiny_config("olmo3", 1))
    before = dict(model.model.rotary_emb.rope_type)
    hold_rope(model)
    assert model.model.rotary_emb.rope_type == before == {"full_attention": "yarn", "sliding_attention": "default"}


@pytest.mark.parametrize(
    ("family", "option", "value"),
    [
        ("llama", "is_causal", False),
        ("gemma2", "use_bidirectional_attention", True),
        ("gemma3_text", "use_bidirectional_attention", True),
        ("gemma4_text", "use_bidirectional_attention", "all"),
    ],
)
def test_tokens_that_see_later_ones_are_refused(family: str, option: str, value: Any) -> None:
    config = tiny_config(family, **{option: value})
    for refuse in (plan, lambda config: HybridCache.from_config(config, max_seq_len=64)):
        with pytest.raises(UnsupportedModelError, match=r"tokens of this .* see later ones"):
            refuse(config)


def test_images_that_see_later_ones_do_not_matter_to_text() -> None:
    seen, plain = (new_cache("gemma4_text", use_bidirectional_attention=each) for each in ("vision", None))
    assert seen.layout() == plain.layout()


@pytest.mark.parametrize("window", [0, -3, None])
@pytest.mark.parametrize(
    ("family", "option"), [("gemma2", "sliding_window"), ("mistral", "sliding_window"), ("llama4_text", "attention_chunk_size")]
)
def test_a_window_of_nothing_is_refused(family: str, option: str, window: int | None) -> None:
    if (family, window) == ("mistral", None):
        assert {layer.kind for layer in new_cache(family, sliding_window=None).cache_layers()} == {"full_attention"}
        return
    with pytest.raises(CheckpointError, match=rf"{option} = {window}, .*expected 1 or more tokens"):
        new_cache(family, **{option: window})


@pytest.mark.parametrize(("family", "variant"), [("llama", 0), ("mistral", 0), ("phi3", 0), ("qwen3_moe", 1)])
def test_layer_types_that_the_model_does_not_read_change_nothing(family: str, variant: int) -> None:
    plain = tiny_config(family, variant)
    for kind in ("full_attention", "sliding_attention"):
        assert plan(tiny_config(family, variant, layer_types=[kind] * plain.num_hidden_layers)) == plan(plain)


def test_shared_keys_that_transformers_cannot_run_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="num_kv_shared_layers = 2 and hidden_size_per_layer_input = 0"):
        new_cache("gemma4_text", num_kv_shared_layers=2, hidden_size_per_layer_input=0)


def test_shared_keys_with_nobody_to_share_with_are_refused() -> None:
    types = ["full_attention", "full_attention", "sliding_attention", "full_attention"]
    with pytest.raises(CheckpointError, match="no earlier layer is sliding_attention to share keys and values with"):
        new_cache("gemma4_text", num_hidden_layers=4, layer_types=types, num_kv_shared_layers=2)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"attn": {"layers": [1], "num_heads": 3}}, UnsupportedModelError, "says attn = "),
        ({"value_dim": [48, 96, 48]}, UnsupportedModelError, "says value_dim = "),
        ({"hidden_act": "silu"}, UnsupportedModelError, "says hidden_act = 'silu'"),
        ({"head_dim": 20}, CheckpointError, "expected heads that fill it"),
        ({"v_low_rank_dim": 0}, CheckpointError, "says v_low_rank_dim = 0"),
    ],
)
def test_an_rwkv7_of_other_parts_is_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        new_cache("rwkv7", **options)
