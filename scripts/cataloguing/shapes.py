"""The table of published models whose programs are in the catalogue: the numbers of their configs, in transformers' names.

A number that is wrong costs a program that fits no file; ``scripts/catalogue --file FILE.gguf`` takes the shape of a file.

Sources, as far as the numbers were compared with any:
- SmolLM2-135M: the published file.
- LFM2-350M and 1.2B, Qwen3-0.6B and 4B, Qwen3.5-0.8B, Gemma 4 E2B: their config.json in tests of public repositories.
- Gemma 3's and 4's, Granite 4's and Qwen3.5's tokens that end texts, Gemma 3 4B's vocabulary and Gemma 4 E4B's sizes: what
  llama.cpp logs of files, in its issues 12433, 12784 and 21730, ollama's 12692 and 18123, and ik_llama.cpp's 1363. Files of
  Gemma 3 name either of two such tokens.
- Ends by their names (``ends``) of LFM2, Qwen3.5, Gemma 4 and SmolLM2, and SmolLM3's bos and eos: logs in llama.cpp's issues
  19184, 23792, 21760, 14035 and 14581; of Qwen3: llamacpp-rocm's issue 60.
- Falcon-H1 of 0.5B and 1.5B: layers, width, heads of both kinds, states and context in transformers' documents; their MLPs,
  vocabularies and tokens from memory.
- Gemma 3 270M: its sizes, window, context and pattern of layers in two public implementations.
- granite-4.0-h-350m: its layers, heads and context in a public description.
- LFM2.5 of 350M and 1.2B has LFM2's layers by its model cards; whether its files name the same context was not seen.
- All others are from memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MIXES = ("Q4_K_M", "Q8_0", "Q4_0")
"""What most people take."""
MORE = (*MIXES, "Q6_K", "Q5_K_M", "Q4_K_S")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A published model.

    architecture: llama.cpp's; model_type, config: transformers'; ids: of the named tokens in its files; ends: of tokens that
    end a text by their names; tokenizer: llama.cpp's kind; adds_bos: whether its files add bos to a text; metadata: entries
    that its files have beside those of the config.
    """

    architecture: str
    model_type: str
    config: Mapping[str, Any]
    ids: Mapping[str, int]
    ends: Mapping[str, int] = field(default_factory=dict)
    tokenizer: str = "gpt2"
    adds_bos: bool = False
    mixes: tuple[str, ...] = MIXES
    metadata: Mapping[str, Any] = field(default_factory=dict)


def _sizes(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int, head: int | None = None, **others: Any
) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head or hidden // heads, "tie_word_embeddings": True, **others,
    }  # fmt: skip


def _angles(theta: float, **others: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **others}}


def _smollm2(*sizes: int, theta: float = 100000.0) -> Shape:
    config = _sizes(*sizes, vocab_size=49152, max_position_embeddings=8192, rms_norm_eps=1e-5, **_angles(theta))
    ends = {"<|endoftext|>": 0, "<|im_end|>": 2}
    mixes = (*MORE, "Q4_1")
    return Shape(architecture="llama", model_type="llama", config=config, ids={"bos": 1, "eos": 2}, ends=ends, mixes=mixes)


def _llama32(*sizes: int) -> Shape:
    rope = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = _sizes(*sizes, vocab_size=128256, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_parameters=rope)
    ids, ends = {"bos": 128000, "eos": 128009}, {"<|end_of_text|>": 128001, "<|eom_id|>": 128008, "<|eot_id|>": 128009}
    return Shape(architecture="llama", model_type="llama", config=config, ids=ids, ends=ends, adds_bos=True, mixes=MORE)


def _qwen3(*sizes: int, tied: bool = True) -> Shape:
    config = _sizes(*sizes, vocab_size=151936, max_position_embeddings=40960, rms_norm_eps=1e-6, **_angles(1e6))
    config["tie_word_embeddings"] = tied
    ids, ends = {"bos": 151643, "eos": 151645}, {"<|endoftext|>": 151643, "<|im_end|>": 151645}
    return Shape(architecture="qwen3", model_type="qwen3", config=config, ids=ids, ends=ends, mixes=MORE)


def _qwen35(*sizes: int, value_heads: int = 16, tied: bool = True) -> Shape:
    config = _sizes(
        *sizes, vocab_size=248320, max_position_embeddings=262144, rms_norm_eps=1e-6, linear_conv_kernel_dim=4,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=16, linear_num_value_heads=value_heads,
        **_angles(10_000_000.0, partial_rotary_factor=0.25, mrope_section=[11, 11, 10]),
    )  # fmt: skip
    config["tie_word_embeddings"] = tied
    ids, ends = {"eos": 248046}, {"<|endoftext|>": 248044, "<|im_end|>": 248046}
    return Shape(architecture="qwen35", model_type="qwen3_5_text", config=config, ids=ids, ends=ends, mixes=MORE)


def _lfm2(*sizes: int, attention: tuple[int, ...] = (2, 5, 8, 10, 12, 14)) -> Shape:
    config = _sizes(
        *sizes, vocab_size=65536, max_position_embeddings=128000, norm_eps=1e-5, conv_L_cache=3, block_auto_adjust_ff_dim=False,
        layer_types=["full_attention" if layer in attention else "conv" for layer in range(sizes[2])], **_angles(1e6),
    )  # fmt: skip
    del config["head_dim"]
    ids, ends = {"bos": 1, "eos": 7}, {"<|endoftext|>": 2, "<|im_end|>": 7}
    return Shape(architecture="lfm2", model_type="lfm2", config=config, ids=ids, ends=ends, adds_bos=True, mixes=MORE)


def _gemma3(
    *sizes: int, context: int = 32768, window: int = 512, vocabulary: int = 262144, eos: int = 106, **rope: Any
) -> Shape:
    layers = sizes[2]
    config = _sizes(
        *sizes, vocab_size=vocabulary, max_position_embeddings=context, rms_norm_eps=1e-6, sliding_window=window,
        query_pre_attn_scalar=sizes[5],
        layer_types=["sliding_attention" if (layer + 1) % 6 else "full_attention" for layer in range(layers)],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6, **rope},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )  # fmt: skip
    return Shape(
        architecture="gemma3", model_type="gemma3_text", config=config, ids={"bos": 2, "eos": eos},
        ends={"<eos>": 1, "<end_of_turn>": 106}, tokenizer="llama", adds_bos=True, mixes=MORE,
    )  # fmt: skip


def _gemma4(*sizes: int, every: int, shared: int, wide: bool) -> Shape:
    config = _sizes(
        *sizes, vocab_size=262144, vocab_size_per_layer_input=262144, hidden_size_per_layer_input=256,
        max_position_embeddings=131072, rms_norm_eps=1e-6, sliding_window=512, global_head_dim=512,
        num_global_key_value_heads=None, num_kv_shared_layers=shared, use_double_wide_mlp=wide, attention_k_eq_v=False,
        final_logit_softcapping=30.0, enable_moe_block=False,
        layer_types=["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(sizes[2])],
        rope_parameters={
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )  # fmt: skip
    return Shape(
        architecture="gemma4", model_type="gemma4_text", config=config, ids={"bos": 2, "eos": 1},
        ends={"<eos>": 1, "<|tool_response>": 50, "<turn|>": 106}, tokenizer="gemma4", adds_bos=True,
    )  # fmt: skip


def _granite_h(
    hidden: int, inner: int, heads: int, kv_heads: int, attention: tuple[int, ...], *, layers: int, mamba: tuple[int, int],
    logits: float, residual: float, context: int,
) -> Shape:  # fmt: skip
    config = _sizes(
        hidden, inner, layers, heads, kv_heads, vocab_size=100352, shared_intermediate_size=inner, num_local_experts=0,
        num_experts_per_tok=0, layer_types=["attention" if layer in attention else "mamba" for layer in range(layers)],
        mamba_n_heads=mamba[0], mamba_d_head=mamba[1], mamba_d_state=128, mamba_n_groups=1, embedding_multiplier=12.0,
        attention_multiplier=0.015625, residual_multiplier=residual, logits_scaling=logits, rms_norm_eps=1e-5,
        max_position_embeddings=context, position_embedding_type=None, **_angles(10000.0),
    )  # fmt: skip
    del config["head_dim"]
    ids, ends = {"bos": 100257, "eos": 100257}, {"<|end_of_text|>": 100257}
    return Shape(architecture="granitehybrid", model_type="granitemoehybrid", config=config, ids=ids, ends=ends, mixes=MORE)


def _granite(*sizes: int, logits: float, residual: float, context: int = 131072) -> Shape:
    config = _sizes(
        *sizes, vocab_size=100352, embedding_multiplier=12.0, attention_multiplier=0.015625, residual_multiplier=residual,
        logits_scaling=logits, rms_norm_eps=1e-5, max_position_embeddings=context, **_angles(1e7),
    )  # fmt: skip
    ids, ends = {"bos": 100257, "eos": 100257}, {"<|end_of_text|>": 100257}
    return Shape(architecture="granite", model_type="granite", config=config, ids=ids, ends=ends, mixes=MORE)


def _falcon_h1(*sizes: int, vocabulary: int, mamba: tuple[int, int, int], context: int, eos: int = 11) -> Shape:
    heads, head, states = mamba
    config = _sizes(
        *sizes, vocab_size=vocabulary, mamba_n_heads=heads, mamba_d_head=head, mamba_d_ssm=heads * head, mamba_d_state=states,
        mamba_n_groups=1, mamba_d_conv=4, mamba_rms_norm=False, rms_norm_eps=1e-5, max_position_embeddings=context,
        tie_word_embeddings=False, **_angles(1e11),
    )  # fmt: skip
    ids, ends = {"bos": 17, "eos": eos}, {"<|end_of_text|>": eos}
    return Shape(architecture="falcon-h1", model_type="falcon_h1", config=config, ids=ids, ends=ends)


SMOLLM3 = Shape(
    architecture="smollm3",
    model_type="smollm3",
    config=_sizes(
        2048, 11008, 36, 16, 4, vocab_size=128256, max_position_embeddings=65536, rms_norm_eps=1e-6,
        no_rope_layers=[int((layer + 1) % 4 != 0) for layer in range(36)], **_angles(5e6),
    ),
    ids={"bos": 128000, "eos": 128012},
    ends={"<|end_of_text|>": 128001, "<|eom_id|>": 128008, "<|eot_id|>": 128009, "<|im_end|>": 128012},
    mixes=MORE,
)  # fmt: skip
PATTERN = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
NEMOTRON = Shape(
    architecture="nemotron_h",
    model_type="nemotron_h",
    config=_sizes(
        4480, 15680, len(PATTERN), 40, 8, 128, vocab_size=131072, max_position_embeddings=131072, mamba_num_heads=128,
        mamba_head_dim=80, ssm_state_size=128, n_groups=8, conv_kernel=4, layer_norm_epsilon=1e-5,
        layers_block_type=[{"M": "mamba", "-": "mlp", "*": "attention"}[each] for each in PATTERN],
    )
    | {"tie_word_embeddings": False},
    ids={"bos": 1, "eos": 12},
    ends={"</s>": 2},
)  # fmt: skip

SHAPES: Mapping[str, Shape] = {
    "SmolLM2-135M": _smollm2(576, 1536, 30, 9, 3),
    "SmolLM2-360M": _smollm2(960, 2560, 32, 15, 5),
    "SmolLM2-1.7B": _smollm2(2048, 8192, 24, 32, 32, theta=130000.0),
    "LFM2-350M": _lfm2(1024, 4608, 16, 16, 8),
    "LFM2-700M": _lfm2(1536, 6912, 16, 24, 8),
    "LFM2-1.2B": _lfm2(2048, 8192, 16, 32, 8),
    "LFM2-2.6B": _lfm2(2048, 10752, 30, 32, 8, attention=(2, 5, 9, 13, 17, 21, 24, 27)),
    "gemma-3-270m": _gemma3(640, 2048, 18, 4, 1, 256),
    "gemma-3-1b": _gemma3(1152, 6912, 26, 4, 1, 256),
    "gemma-3-4b": _gemma3(
        2560, 10240, 34, 8, 4, 256, context=131072, window=1024, vocabulary=262208, rope_type="linear", factor=8.0
    ),
    "gemma-3-270m (eos 1)": _gemma3(640, 2048, 18, 4, 1, 256, eos=1),
    "gemma-3-1b (eos 1)": _gemma3(1152, 6912, 26, 4, 1, 256, eos=1),
    "gemma-4-E2B": _gemma4(1536, 6144, 35, 8, 1, 256, every=5, shared=20, wide=True),
    "gemma-4-E4B": _gemma4(2560, 10240, 42, 8, 2, 256, every=6, shared=18, wide=False),
    "Qwen3.5-0.8B": _qwen35(1024, 3584, 24, 8, 2, 256),
    "Qwen3.5-2B": _qwen35(2048, 6144, 24, 8, 2, 256),
    "Qwen3.5-4B": _qwen35(2560, 9216, 32, 16, 4, 256, value_heads=32),
    "Qwen3.5-9B": _qwen35(4096, 12288, 32, 16, 4, 256, value_heads=32, tied=False),
    "Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, 8, 128),
    "Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, 8, 128),
    "Qwen3-4B": _qwen3(2560, 9728, 36, 32, 8, 128),
    "Qwen3-8B": _qwen3(4096, 12288, 36, 32, 8, 128, tied=False),
    "Llama-3.2-1B": _llama32(2048, 8192, 16, 32, 8),
    "Llama-3.2-3B": _llama32(3072, 8192, 28, 24, 8),
    "SmolLM3-3B": SMOLLM3,
    "granite-4.0-h-350m": _granite_h(
        768, 2048, 12, 4, (10, 13, 17, 27), layers=32, mamba=(48, 32), logits=3.0, residual=0.246, context=32768
    ),
    "granite-4.0-h-micro": _granite_h(
        2048, 8192, 32, 8, (5, 15, 25, 35), layers=40, mamba=(64, 64), logits=8.0, residual=0.22, context=131072
    ),
    "granite-4.0-micro": _granite(2560, 8192, 40, 40, 8, logits=10.0, residual=0.22),
    "Falcon-H1-0.5B": _falcon_h1(1024, 2048, 36, 8, 2, 64, vocabulary=32784, mamba=(24, 64, 128), context=16384),
    "Falcon-H1-1.5B": _falcon_h1(2048, 4096, 24, 8, 2, 128, vocabulary=65537, mamba=(48, 64, 256), context=131072),
    "Nemotron-Nano-9B-v2": NEMOTRON,
}
"""The models by name."""
