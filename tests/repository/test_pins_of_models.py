"""What the ``pinned`` modules assume of transformers, onnxscript and onnxruntime is still so; see ``test_pins.py``."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType, quants
from onnxruntime.capi import onnxruntime_pybind11_state as ort
from tiny import tiny_config, tiny_model
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache

from hybridge.cache.families import FAMILIES
from hybridge.cache.transformers_api import TransformersCacheApi
from hybridge.errors import ArtifactError
from hybridge.export.lower.lower import quiet
from hybridge.export.model import adapt
from hybridge.export.model.families.family import ACTIVATION_NAMES
from hybridge.export.pinned import checkpoints, torchao
from hybridge.export.pinned import onnx as onnx_pins
from hybridge.export.pinned import transformers as pinned
from hybridge.export.pinned.transformers import Glm5NextConfig, Glm5NextTextConfig, rotate
from hybridge.export.source.text_model import Glm5NextTextForCausalLM
from hybridge.runtime.integrations import causal_lm
from hybridge.runtime.integrations import pinned as generation_pins
from hybridge.runtime.onnx.graph import OnnxGraph
from hybridge.runtime.pinned import ONNX_OPTIONS, onnx_dtype, onnx_message

IDS = torch.arange(6)[None]

# transformers: tokenizers


def test_a_tokenizer_class_is_found_by_its_name() -> None:
    """``tokenizer_conversion`` looks for the class that tokenizer_config.json names; see where transformers lists them now."""
    named = {name.removesuffix("Fast") for name in pinned.tokenizer_classes.values() if name}
    assert {"LlamaTokenizer", "GemmaTokenizer", "Qwen2Tokenizer"} <= named


# transformers: what is called in place of its own

OWNERS = {
    "recomposition_frequencies": ["qwen3_5", "qwen3_5_moe", "qwen4_exp"],
    "expand_kv": ["bailing_hybrid", "glm4_moe_lite", "glm5_next", "kimi_linear", "minicpm3", "youtu"],
    "build_attention_mask_from_topk": ["glm5_next"],
    "_gaussian_topk": ["gemma3n"],
    "_short_conv": ["qwen4_exp"],
}


@pytest.mark.parametrize("name", pinned.replaceable)
def test_a_replaced_method_is_called_by_its_own_class(name: str) -> None:
    for family in OWNERS[name]:
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        owners = [each for _, each in inspect.getmembers(module, inspect.isclass) if name in vars(each)]
        calling = [each for each in owners if any(f"self.{name}(" in code for code in sources(each))]
        assert calling, f"{family} calls no method {name} on itself: replacing it has no effect (export/families)"


def sources(kind: type) -> list[str]:
    return [inspect.getsource(inspect.unwrap(each)) for each in vars(kind).values() if inspect.isfunction(inspect.unwrap(each))]


def test_only_a_method_that_is_there_is_replaced() -> None:
    with pytest.raises(AssertionError, match="has no method expand_kv"):
        pinned.replace_method(nn.Linear(1, 1), "expand_kv", print)
    with pytest.raises(AssertionError, match="is not among"):
        pinned.replace_method(nn.Linear(1, 1), "forward", print)


@pytest.mark.slow
@torch.no_grad()
def test_the_chosen_functions_are_called() -> None:
    calls: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **given: Any) -> Any:
            calls.append(name)
            return function(*args, **given)

        return run

    model = tiny_model(tiny_config("qwen3_5_moe_text"))
    plain = pinned.attention_function("sdpa", None)
    AttentionInterface.register("counted", counted("attention", plain))
    AttentionMaskInterface.register("counted", counted("mask", pinned.mask_function("sdpa")))
    pinned.register_experts("counted", counted("experts", pinned.gather_experts))
    want = model(IDS, use_cache=False).logits
    assert not calls
    pinned.choose_attention(model.config, "counted")
    pinned.choose_experts(model.config, "counted")
    assert pinned.chosen_attention(model) == "counted"
    torch.testing.assert_close(model(IDS, use_cache=False).logits, want)
    missing = {"attention", "mask", "experts"} - set(calls)
    assert not missing, f"a config's private attribute no longer decides on {missing}: the model would run transformers' own"


@torch.no_grad()
def test_an_experts_module_has_what_is_read_of_it() -> None:
    model = tiny_model(tiny_config("qwen3_5_moe_text"))
    (module, *_) = (each for each in model.modules() if pinned.is_experts(each))
    m: Any = module
    kinds = {name: type(getattr(m, name)) for name in ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm")}
    assert set(kinds.values()) == {bool}, f"experts describe themselves otherwise: {kinds}"
    assert m.gate_up_proj.shape[0] == m.down_proj.shape[0] == m.num_experts
    x = torch.randn(3, 2 * m.down_proj.shape[2])
    gate, up = x.chunk(2, dim=-1)
    torch.testing.assert_close(pinned.gated(m, x), m.act_fn(gate) * up, msg="the gate is another: see experts.py")


HANDLED = set(inspect.signature(adapt.attend).parameters) - {"_"}
IGNORED = {
    "dropout": "no training",
    "sliding_window": "the cache layer's",
    "is_causal": "always",
    **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"), "of pictures"),
    **dict.fromkeys(("position_bias", "sinks"), "of Inkling, whose attention is a mixer of ours"),
}


@pytest.mark.slow
def test_attention_is_given_no_argument_that_is_not_known() -> None:
    """Our attention function takes and ignores any: a new one would change results without a word."""
    given = {keyword.arg for tree in modeling_files() for call in attention_calls(tree) for keyword in call.keywords}
    unknown = given - HANDLED - IGNORED.keys() - {None}
    assert not unknown, f"transformers hands attention {unknown}: adapt.attend must take them, or IGNORED say why not"
    assert {"scaling", "softcap", "s_aux"} <= given, "transformers has other names for what adapt.attend takes"


def modeling_files() -> list[ast.Module]:
    folder = Path(transformers.__file__).parent / "models"
    modules = {transformers.CONFIG_MAPPING[each].__module__ for each in FAMILIES}
    names = sorted(each.split(".")[2] for each in modules if each.startswith("transformers."))
    return [ast.parse((folder / name / f"modeling_{name}.py").read_text(encoding="utf-8")) for name in names]


def attention_calls(tree: ast.Module) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "attention_interface"]


# transformers: rope


@pytest.mark.parametrize("family", ["cohere2", "gemma3_text"])
@torch.no_grad()
def test_rope_says_what_kind_it_is_and_keeps_its_first_angles(family: str) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    layered = family == "gemma3_text"
    parameters = {"full_attention": dynamic, "sliding_attention": dynamic} if layered else dynamic
    model = tiny_model(tiny_config(family, rope_parameters=parameters, max_position_embeddings=16))
    (rotary,) = (each for each in model.modules() if pinned.rope_types(each))
    kinds = pinned.rope_types(rotary)
    assert kinds == dict.fromkeys(["full_attention_", "sliding_attention_"] if layered else [""], "dynamic"), "see rope_types"
    far, x = torch.arange(64)[None], torch.zeros(1, 64, 8)
    names = ["full_attention", "sliding_attention"] if layered else []
    moving = [rotary(x, far, *each)[0] for each in [[name] for name in names] or [[]]]
    for prefix in kinds:
        pinned.keep_first_angles(rotary, prefix)
    held = [rotary(x, far, *each)[0] for each in [[name] for name in names] or [[]]]
    assert set(pinned.rope_types(rotary).values()) == {"default"}
    for before, after, prefix in zip(moving, held, kinds, strict=True):
        assert not torch.equal(before, after), "dynamic rope does not follow the length any more: drop hold_rope"
        angles = far[0, :, None] * getattr(rotary, f"{prefix}original_inv_freq")
        want = torch.cat([angles, angles], -1).cos().sort(-1).values  # families order them differently
        torch.testing.assert_close(after[0].sort(-1).values, want, msg="angles are kept under other names")


def test_rotate_takes_queries_alone() -> None:
    x, angles = torch.randn(1, 5, 2, 8), torch.randn(1, 5, 8)
    (both, _), alone = (rotate(x, *other, cos=angles, sin=angles, unsqueeze_dim=2) for other in ([x], []))
    torch.testing.assert_close(both, alone)


# transformers: loading, generation, text


def test_a_text_model_is_found_by_both_configs_and_tied() -> None:
    found = [transformers.MODEL_FOR_CAUSAL_LM_MAPPING[each] for each in (Glm5NextConfig, Glm5NextTextConfig)]
    assert found == [Glm5NextTextForCausalLM] * 2, "AutoModelForCausalLM keeps its classes elsewhere: see register_text_model"
    tied: Any = tiny_model(tiny_config("glm5_next_text", tie_word_embeddings=True))
    assert tied.lm_head.weight is tied.model.embed_tokens.weight, "weights are tied by another attribute: see tie_head"
    for name in ("_tied_weights_keys", "_keys_to_ignore_on_load_unexpected"):
        assert name in vars(PreTrainedModel), f"transformers reads no {name} any more: see tie_head"


def test_an_empty_model_takes_no_memory() -> None:
    model = pinned.build_empty(tiny_config("qwen3_5_text"))
    assert {each.device.type for each in model.parameters()} == {"meta"}


def test_generations_defaults_are_complete() -> None:
    defaults = generation_pins.generation_defaults()
    assert set(causal_lm.USED) | generation_pins.ORIGIN <= defaults.keys(), "GenerationConfig has other names"
    assert {name: defaults[name] for name in ("max_length", "temperature", "top_k", "top_p", "repetition_penalty")} == {
        "max_length": 20, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0,
    }, "transformers' defaults have changed: model.generate gives another text than a script's author has tested"  # fmt: skip


def test_a_streamer_is_handed_tokens_and_an_end() -> None:
    assert all(callable(getattr(generation_pins.BaseStreamer, name, None)) for name in ("put", "end"))


def test_activations_have_their_names() -> None:
    x = torch.linspace(-2, 2, 9)
    for name, own in ACTIVATION_NAMES.items():
        want = nn.functional.gelu(x, approximate="tanh") if own == "gelu_tanh" else nn.functional.silu(x)
        torch.testing.assert_close(pinned.activations[name](x), want, msg=f"{name} is not the kernels' {own}")


OWN_OF_THE_CACHE = {"get_conv_state", "get_recurrent_state"}
"""Of the mixin alone, or of the layers of transformers' cache."""


def test_the_cache_has_the_methods_of_transformers_own() -> None:
    methods = {name: each for name, each in vars(TransformersCacheApi).items() if inspect.isfunction(each) and name[0] != "_"}
    for name, method in methods.items():
        theirs = getattr(Cache, name, None)
        assert theirs is not None or name in OWN_OF_THE_CACHE, f"transformers' Cache has no {name}: nobody would call ours"
        if theirs is not None:
            wanted = [each for each in inspect.signature(theirs).parameters.values() if each.kind == each.POSITIONAL_OR_KEYWORD]
            inspect.signature(method).bind(*[each.name for each in wanted if each.default is each.empty])


# onnxscript and onnxruntime


class Norm(nn.Module):
    """As transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.slow
def test_a_norm_becomes_one_operator() -> None:
    with quiet(), torch.no_grad():
        program = torch.export.export(Norm(), (torch.ones(1, 3, 8),), strict=False)
        made = torch.onnx.export(program, dynamo=True, opset_version=24, verbose=False)
    assert made is not None
    onnx_pins.fuse_norms(made.model)
    found = [node.op_type for node in made.model.graph]
    assert found == [onnx_pins.STANDARD], f"norms are fused to {found}: see export/pinned/onnx.py"


OPERATORS: dict[str, tuple[list[str], set[str]]] = {
    "GroupQueryAttention": (
        [
            *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"),
            *("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink"),
        ],
        {"num_heads", "kv_num_heads", "scale", "softcap", "local_window_size"},
    ),
    "CausalConvWithState": (["input", "weight", "bias", "past_state"], {"activation", "channels_last"}),
    "LinearAttention": (
        ["query", "key", "value", "past_state", "decay", "beta"],
        {"q_num_heads", "kv_num_heads", "update_rule", "scale"},
    ),
    "LinearAttentionGate": (["a", "dt_bias", "decay_scale", "b"], set()),
    "MatMulNBits": (["A", "B", "scales", "zero_points", "g_idx", "bias"], {"K", "N", "bits", "block_size", "accuracy_level"}),
}
"""Inputs by position and attributes, as export/write/onnx_kernels.py and quantized.py hand them over."""


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_onnxruntime_takes_what_it_took(name: str) -> None:
    inputs, attributes = OPERATORS[name]
    (schema,) = [each for each in ort.get_all_operator_schema() if (each.domain, each.name) == ("com.microsoft", name)]
    assert [each.name for each in schema.inputs][: len(inputs)] == inputs, f"look at each call of {name} in export/onnx"
    assert attributes <= schema.attributes.keys(), f"{name} has other attributes: look at each call in export/onnx"


@pytest.mark.parametrize("name", ONNX_OPTIONS)
def test_onnxruntime_knows_the_session_options(name: str) -> None:
    library = Path(ort.__file__).read_bytes()
    assert name.encode() + b"\0" in library, f"onnxruntime has no option {name}, and says nothing of it: see ONNX_OPTIONS"


def test_onnxruntimes_messages_come_without_its_codes(tmp_path: Path) -> None:
    broken = tmp_path / "model.onnx"
    broken.write_bytes(b"\x08\x01no graph")
    with pytest.raises(ArtifactError) as caught:
        OnnxGraph(broken)
    said = str(caught.value)
    assert "ONNXRuntimeError" not in said, f"onnxruntime's errors are written otherwise: see onnx_message ({said})"
    assert said.count(str(broken)) == 1, f"onnxruntime's errors are written otherwise: see onnx_message ({said})"
    assert onnx_message(RuntimeError("")) == "RuntimeError"


def test_types_have_torchs_names() -> None:
    assert [onnx_dtype(f"tensor({name})") for name in ("float", "int64", "int8")] == ["float32", "int64", "int8"]


# Checkpoints


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0, GGMLQuantizationType.MXFP4])
def test_a_type_of_ggml_has_blocks_and_is_decoded(kind: GGMLQuantizationType) -> None:
    rows = quants.quantize(np.random.default_rng(0).standard_normal((3, 64), dtype=np.float32), kind)
    elements, size = checkpoints.block_of(int(kind)) or (0, 0)
    assert (elements, rows.shape) == (32, (3, 2 * size))
    assert checkpoints.decoded(rows, int(kind)).shape == (3, 64)
    assert checkpoints.name_of(int(kind)) == kind.name


def test_a_type_that_nobody_has_is_none() -> None:
    assert checkpoints.block_of(4000) is None
    assert checkpoints.name_of(4000) == "4000"


def test_a_class_and_its_config_are_found_for_tensors_without_a_file() -> None:
    config = tiny_config("qwen3")
    assert pinned.model_class(AutoModelForCausalLM, config) == (type(AutoModelForCausalLM.from_config(config)), config)
    whole = AutoConfig.for_model("qwen3_5", text_config=tiny_config("qwen3_5_text").to_dict())
    kind, text = pinned.model_class(AutoModelForCausalLM, whole)
    assert kind.__name__ == "Qwen3_5ForCausalLM"
    assert text.model_type == "qwen3_5_text"


def test_a_kind_of_torchaos_that_is_not_stored_is_refused() -> None:
    with pytest.raises(ValueError, match="torchao stores no PerRow"):
        torchao.dequantize_stored(json.dumps({"_type": "PerRow", "_data": {}}), {"qdata": torch.zeros(1)})
