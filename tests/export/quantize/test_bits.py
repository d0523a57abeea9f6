"""Bits by recipe and pattern: what gets how many, what stays float32, what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tiny import tiny_config, tiny_model
from torch import nn

from hybridge.errors import UsageError
from hybridge.export.quantize.bits import RECIPES, bits_of, parse_bits, rounded_names, with_recipe
from hybridge.export.quantize.quantize import check_quantization, quantize
from hybridge.export.weights import PackedEmbedding, PackedLinear
from hybridge.export.write.manifest import WeightFigures
from hybridge.runtime.artifact.options import ExportOptions

FLOAT = {"in_proj_a", "in_proj_b", "in_proj_ba", "b_proj", "f_a_proj", "f_b_proj", "dt_proj", "x_proj", "gate", "router"}


def bits(family: str, **choices: Any) -> dict[str, int]:
    model = tiny_model(tiny_config(family))
    quantize(model, with_recipe(ExportOptions(group_size=8, **choices)))
    return dict(WeightFigures.of(model).bits)


@pytest.mark.parametrize("choices", [{}, {"quantize": "8da4w", "embedding_quantize": "8w"}])
@pytest.mark.parametrize("family", ["qwen3_5_text", "lfm2_moe", "gpt_oss", "llama"])
def test_weights_are_counted_whatever_they_are_kept_as(family: str, choices: dict[str, Any]) -> None:
    model = tiny_model(tiny_config(family))
    model.tie_weights()
    numbers = sum(weight.numel() for weight in {id(weight): weight for weight in model.parameters()}.values())
    quantize(model, ExportOptions(group_size=8, **choices))
    assert WeightFigures.of(model).parameters == numbers


@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text"])
@torch.no_grad()
def test_a_table_with_rows_for_every_layer_has_the_bits_of_the_embedding(family: str) -> None:
    """It is most of the weights of Gemma 3n and 4: in float32 it would take 8 GB for E2B."""
    model = tiny_model(tiny_config(family))
    tokens = torch.arange(50)[None]
    want = model.model.embed_tokens_per_layer(tokens)
    quantize(model, ExportOptions(group_size=8, quantize="8da4w", embedding_quantize="8w"))
    table = model.model.embed_tokens_per_layer
    assert isinstance(table, PackedEmbedding)
    largest = want.unflatten(-1, (-1, 8)).abs().amax(-1, keepdim=True)
    assert bool(((table(tokens) - want).unflatten(-1, (-1, 8)).abs() <= largest / 127).all())


def test_the_last_pattern_decides() -> None:
    options = ExportOptions(quantize="8da4w", bits=(("*_proj", 8), ("mlp.down_proj", 32), ("layers.0.mlp.down_proj", 4)))
    names = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "model.layers.0.mlp.down_proj", "lm_head")
    assert [bits_of(name, options) for name in names] == [8, 32, 4, 4]


def test_what_goes_into_32_bits_is_not_rounded() -> None:
    """The kernels have no such product, and refuse to run it."""
    model = tiny_model(tiny_config("qwen3"))
    quantize(model, ExportOptions(group_size=8, quantize="8da4w", bits=(("o_proj", 32),)))
    layers = {name.rpartition(".")[2]: each for name, each in model.named_modules() if isinstance(each, PackedLinear)}
    assert (layers["o_proj"].integer, layers["q_proj"].integer) == (False, True)


def test_a_pattern_is_for_whole_parts_of_a_name() -> None:
    options = ExportOptions(quantize="4w", bits=(("proj", 8), ("attn.k_proj", 8)))
    assert bits_of("model.layers.0.self_attn.k_proj", options) == 4


def test_patterns_reach_the_weights_of_a_model() -> None:
    found = bits("qwen3_5_text", quantize="4w", bits=(("out_proj", 8), ("self_attn.*", 32), ("embed_tokens", 8)))
    assert {bits for name, bits in found.items() if name.endswith("out_proj")} == {8}
    assert not any("self_attn" in name for name in found)
    assert {bits for name, bits in found.items() if "mlp" in name} == {4}
    assert found["model.embed_tokens"] == 8


def test_patterns_alone_round_what_they_name() -> None:
    assert set(bits("qwen3", bits=(("mlp.up_proj", 8),)).values()) == {8}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_implies_the_kind_of_quantization_and_gives_the_embedding_bits(recipe: Any) -> None:
    options = with_recipe(ExportOptions(recipe=recipe))
    assert (options.quantize, options.embedding_quantize) == ("8da4w", RECIPES[recipe].embedding)
    assert with_recipe(ExportOptions(recipe=recipe, quantize="4w")).quantize == "4w"
    assert with_recipe(ExportOptions(recipe=recipe, embedding_quantize="4w")).embedding_quantize == "4w"


def test_recipes_spend_more_from_small_to_quality() -> None:
    spent = [sum(bits("qwen3_5_text", recipe=recipe).values()) for recipe in RECIPES]
    assert spent == sorted(set(spent))


@pytest.mark.parametrize("family", ["qwen3_5_text", "kimi_linear", "mamba2", "jamba", "recurrent_gemma", "lfm2", "minimax"])
def test_gates_convolutions_and_norms_stay_float32(family: str) -> None:
    names = rounded_names(tiny_model(tiny_config(family)))
    assert names
    assert not {name.rpartition(".")[2] for name in names} & FLOAT
    assert not any("norm" in name or "conv1d" in name for name in names)


@pytest.mark.parametrize(("family", "variant", "router"), [("gemma4_text", 1, "router"), ("zaya", 0, "gate")])
def test_what_chooses_experts_stays_float32_whatever_it_is_made_of(family: str, variant: int, router: str) -> None:
    """Gemma 4's router has its layer inside, and ZAYA's is a small model."""
    model = tiny_model(tiny_config(family, variant))
    assert any(router in name.split(".")[:-1] for name, module in model.named_modules() if isinstance(module, nn.Linear))
    names = rounded_names(model)
    assert any("experts" in name for name in names)
    assert not any(router in name.split(".") for name in names)


@pytest.mark.parametrize("pattern", ["no_such_proj", "conv1d", "input_layernorm", "in_proj_a"])
def test_a_pattern_that_is_for_no_weight_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--bits {pattern}=8 is for no weight that can have fewer bits")):
        bits("qwen3_5_text", quantize="4w", bits=((pattern, 8),))


@pytest.mark.parametrize("text", ["out_proj", "out_proj=7", "=8", "a=8,,b=4", "a=8;b=4", "out_proj=8bits"])
def test_what_is_no_list_of_patterns_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected patterns of names and 4, 5, 6, 8 or 32 bits"):
        parse_bits(text)


def test_patterns_are_parsed() -> None:
    assert parse_bits("") == ()
    assert parse_bits("out_proj=8, self_attn.*=32") == (("out_proj", 8), ("self_attn.*", 32))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"recipe": "balanced", "kernels": "llm"}, "--recipe balanced needs --kernels hybridge, not llm"),
        ({"bits": (("out_proj", 8),), "quantize": "8da4w", "kernels": "llm"}, "--bits with 8 needs --kernels hybridge"),
        ({"recipe": "quality", "quantize": "8w"}, "--recipe quality gives most weights 4 bits, --quantize 8w gives all 8"),
    ],
)
def test_what_does_not_go_together_is_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        check_quantization(with_recipe(ExportOptions(**choices)))
