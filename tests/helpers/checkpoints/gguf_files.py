"""GGUF files as llama.cpp's converter writes them, of random models: its names, by its own table, and what it does to weights.

Source: llama.cpp ``conversion/*.py``. Written for this direction alone, by the names of transformers' modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf.quants import quantize
from gguf.tensor_mapping import get_tensor_name_map
from gguf_converter import converted, metadata
from tiny import lively, tiny_config, tiny_model
from torch import Tensor
from transformers import PreTrainedModel
from zoo.attention import LATENT_YARN

TYPES = gguf.GGMLQuantizationType
RANDOM = {TYPES.Q3_K, TYPES.Q4_K, TYPES.Q5_K, TYPES.Q6_K, TYPES.IQ4_NL, TYPES.IQ4_XS}

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
EXPERTS = {"moe_intermediate_size": 32}
MAMBA: dict[str, Any] = {"mamba_expand": 2}
LONG_SIZES: dict[str, Any] = {"max_position_embeddings": 512, "original_max_position_embeddings": 128}
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "original_max_position_embeddings": 128,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 3.0, 4.0],
}

LONG_LATENT: dict[str, Any] = {
    "rope_theta": 1e4,
    "rope_scaling": {
        "type": "longrope", "short_factor": [1, 1.1, 1.2, 2], "long_factor": [4] * 4, "original_max_position_embeddings": 512,
    },
}  # fmt: skip

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen35": ("qwen3_5_text", {**SIZES, "linear_value_head_dim": 32}),  # as 128 is a multiple of a group's columns
    "qwen35moe": ("qwen3_5_moe_text", {**SIZES, **EXPERTS, "linear_value_head_dim": 32}),
    "qwen3next": ("qwen3_next", {**SIZES, **EXPERTS, "num_experts": 5, "num_experts_per_tok": 2}),
    "kimi-linear": ("kimi_linear", {**SIZES, **EXPERTS, "linear_head_dim": 16, "kv_lora_rank": 24}),
    "lfm2": ("lfm2", {**SIZES, "block_auto_adjust_ff_dim": False}),
    "lfm2moe": ("lfm2_moe", {**SIZES, **EXPERTS}),
    "mamba2": ("mamba2", {}),
    "granitehybrid": ("granitemoehybrid", {**SIZES, **MAMBA, "mamba_n_heads": 8}),
    "falcon-h1": ("falcon_h1", {**SIZES, "mamba_norm_before_gate": False}),  # llama.cpp norms what is gated
    "nemotron_h": ("nemotron_h", {**SIZES, "layers_block_type": ["mamba", "attention", "mlp"]}),
    "nemotron_h_moe": ("nemotron_h", {**SIZES, "layers_block_type": ["mamba", "attention", "moe"]}),
    "jamba": ("jamba", {**SIZES, **MAMBA}),
    "mamba": ("falcon_mamba", {}),
    "llama": ("llama", SIZES),
    "qwen2": ("qwen2", SIZES),
    "qwen3": ("qwen3", SIZES),
    "qwen3moe": ("qwen3_moe", {**SIZES, **EXPERTS, "norm_topk_prob": True}),
    "gemma3": (
        "gemma3_text",
        {
            **SIZES,
            "num_hidden_layers": 6,
            "layer_types": [*["sliding_attention"] * 5, "full_attention"],
            "query_pre_attn_scalar": 16,
        },
    ),
    "granite": ("granite", {**SIZES, "embedding_multiplier": 3.0}),
    "granite_swa": (
        "granite_swa",
        {
            **SIZES,
            "num_hidden_layers": 4,
            "sliding_window": 7,
            "layer_rope_theta": [0, 1e4, 1e4, 1e4],
            "layer_types": ["full_attention", *["sliding_attention"] * 3],
            "attention_multiplier": 0.0625,
        },
    ),
    "granitemoe": ("granitemoeshared", {**SIZES, "shared_intermediate_size": 48}),
    "smollm3": ("smollm3", {**SIZES, "num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1]}),
    "phi3": ("phi3", {**SIZES, "partial_rotary_factor": 0.5, "rope_parameters": LONG, "head_dim": 16, **LONG_SIZES}),
    "gemma4": ("gemma4_text", {"hidden_size": 64, "intermediate_size": 96, "use_double_wide_mlp": True}),
    "bailingmoe3": ("bailing_hybrid", {**SIZES, **EXPERTS, "kv_lora_rank": 24, "head_dim": 16, "num_mtp_layers": 2}),
    "deepseek2": ("deepseek_v2", {**SIZES, "rope_scaling": LATENT_YARN, "rope_theta": 100.0}),
    "minicpm3": (
        "minicpm3",
        {**SIZES, **LONG_LATENT, "v_head_dim": 16, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    ),
    "gemma3n": ("gemma3n_text", {**SIZES, "intermediate_size": [96] * 6, "vocab_size_per_layer_input": 131}),
    "rwkv7": ("rwkv7", {"intermediate_size": 96}),
    "hunyuan-dense": ("hunyuan_v1_dense", SIZES),
    "gpt-oss": ("gpt_oss", {**SIZES, "layer_types": ["sliding_attention", "full_attention"]}),
}
"""The type of model and the sizes of each architecture's file."""
NAMED_LIKE = {"bailingmoe3": "kimi-linear", "granite_swa": "granite"}
"""Architectures that the installed package lacks, by one whose names they have."""


def random_model(architecture: str, **overrides: Any) -> PreTrainedModel:
    model_type, sizes = MODELS[architecture]
    return lively(tiny_model(tiny_config(model_type, **{**sizes, **overrides})))


def save_gguf(
    path: Path,
    architecture: str,
    model: PreTrainedModel,
    kind: TYPES | Callable[[str], TYPES] = TYPES.F32,
    tokenizer: Mapping[str, Any] | None = None,
    template: str = "",
    *,
    alignment: int | None = None,
    mtp: Mapping[str, Tensor] | None = None,
    tensors_per_part: int = 0,
) -> None:
    """Write ``model``, with linear layers in ``kind`` where their columns allow it, and a tokenizer of bytes.

    kind: or a function from a tensor's name to it; of the types that gguf rounds to nothing, blocks are random.

    tokenizer: entries of ``tokenizer.ggml`` to have in its place; template: the chat template beside them; mtp: weights of
    layers of multi-token prediction, as a checkpoint names them; tensors_per_part: write parts ``…-00001-of-00003.gguf``.
    """
    arch = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == NAMED_LIKE.get(architecture, architecture))
    config = model.config
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_per_part)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    entries = metadata(architecture, model)
    if mtp:
        count = config.num_mtp_layers if architecture == "bailingmoe3" else 1
        entries |= {"block_count": config.num_hidden_layers + count, "nextn_predict_layers": count}
    for name, value in entries.items():
        add_entry(
            writer, name if "." in name and name.startswith(("general.", "tokenizer.")) else f"{architecture}.{name}", value
        )
    if tokenizer is None:
        add_tokenizer(writer, config.vocab_size)
    else:
        for name, value in tokenizer.items():
            add_entry(writer, f"tokenizer.ggml.{name}", value)
        if template:
            writer.add_chat_template(template)
    names = get_tensor_name_map(arch, entries["block_count"])
    kind_of = kind if callable(kind) else lambda _: kind
    for index, (name, tensor) in enumerate(converted(architecture, model, mtp or {})):
        target = name if name.startswith(("blk.", "rope_")) else names.get_name(name, (".weight", ".bias"))
        assert target is not None, f"llama.cpp's {architecture} has no {name}"
        data = tensor.float().contiguous().numpy()
        own = kind_of(target)
        if (
            own == TYPES.F32
            or data.ndim < 2
            or data.shape[-1] % gguf.GGML_QUANT_SIZES[own][0]
            or not target.endswith(".weight")
        ):
            writer.add_tensor(target, data)
        elif own in RANDOM:
            blocks = random_blocks(own, data.size // data.shape[-1], data.shape[-1], seed=index)
            writer.add_tensor(target, blocks.reshape(*data.shape[:-1], -1), raw_dtype=own)
        else:
            writer.add_tensor(target, quantize(data, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    """Bytes as GPT-2's tokenizer spells them, one merge, and tokens that end texts and turns."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())[: size - 3]
    tokens = [*letters, letters[0] + letters[1], "<|endoftext|>", "<|im_end|>"]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), size)]
    kinds = [1] * (len(letters) + 1) + [3, 3] + [5] * (size - len(letters) - 3)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{letters[0]} {letters[1]}"])
    writer.add_eos_token_id(len(letters) + 1)
    writer.add_eot_token_id(len(letters) + 2)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}<|im_end|>")


def add_entry(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


Bytes = np.ndarray[Any, np.dtype[np.uint8]]

HALVES: dict[TYPES, dict[int, float]] = {
    TYPES.Q4_0: {0: 0.02}, TYPES.Q4_1: {0: 0.02, 2: -0.15}, TYPES.Q5_0: {0: 0.01}, TYPES.Q5_1: {0: 0.01, 2: -0.155},
    TYPES.Q8_0: {0: 0.0014}, TYPES.Q4_K: {0: 5e-4, 2: 3.75e-3}, TYPES.Q5_K: {0: 2.5e-4, 2: 3.9e-3}, TYPES.Q6_K: {208: 8e-5},
    TYPES.IQ4_NL: {0: 0.0014}, TYPES.IQ4_XS: {0: 8e-5}, TYPES.MXFP4: {}, TYPES.Q3_K: {108: 8e-4},
}  # fmt: skip
"""Where a block has float16 numbers, and of which size they make weights of about 0.1 around 0."""


def random_bytes(kind: TYPES, rows: int, columns: int, seed: int = 0) -> Bytes:
    """Return rows of any bytes, [N, bytes], but with finite scales, of which some are denormal or zero."""
    data, rng = _random(kind, rows, columns, seed), np.random.default_rng(seed)
    if kind == TYPES.MXFP4:
        data[..., 0] %= 250  # larger exponents overflow
    elif kind in HALVES:
        for at in HALVES[kind]:
            exponents = rng.integers(0, 31, data.shape[:2], dtype=np.uint8)
            exponents[:, 0] = 0
            data[..., at + 1] = (data[..., at + 1] & 0x83) | (exponents << 2)
    else:
        data[..., -1] &= 0xBF
    return data.reshape(rows, -1)


def random_blocks(kind: TYPES, rows: int, columns: int, seed: int = 0) -> Bytes:
    """Return rows of blocks, [N, bytes], as weights of a model may be: some 0.1 large."""
    data, rng = _random(kind, rows, columns, seed), np.random.default_rng(seed)
    if kind == TYPES.MXFP4:
        data[..., 0] = rng.integers(121, 124, data.shape[:2])
    if kind == TYPES.Q8_0:
        data[data == 0x80] = 0  # nobody's rounding makes -128
    for at, size in HALVES[kind].items():
        halves = (size * rng.uniform(0.8, 1.2, data.shape[:2])).astype(np.float16)
        data[..., at : at + 2] = halves[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def _random(kind: TYPES, rows: int, columns: int, seed: int) -> Bytes:
    per_block, size = GGML_QUANT_SIZES[kind]
    return np.random.default_rng(seed).integers(0, 256, (rows, columns // per_block, size), dtype=np.uint8)
