"""Compare GGUF files with llama.cpp: random models of every architecture, converted by its converter, run by its library.

Each step is a process of its own, because llama.cpp aborts the process if it refuses a model.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from campaigns import ROOT, campaign

CONVERTER, LIBRARY = "llama-cpp-python==0.3.36", "xllamacpp==2026.10.11549"
"""Packages: the converter is in the source of the first, the second is llama.cpp b11549, compiled."""
F32, NO_FLASH = 0, 0
SET_HIDDEN, HIDDEN = "_Z26llama_set_embeddings_nextnP13llama_contextbb", "_Z26llama_get_embeddings_nextnP13llama_context"
"""Functions of C++ (``src/llama-ext.h``) for the hidden states that a layer of multi-token prediction takes."""
MTP = ", MTP"
"""Ends the names of forms with such a layer."""

Logits = NDArray[np.float32]


class ModelOptions(ctypes.Structure):
    """The beginning of llama_model_params, and room for the rest."""

    _fields_ = [
        ("devices", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("gpu_layers", ctypes.c_int32),
        ("others", ctypes.c_uint8 * 240),
    ]


class ContextOptions(ctypes.Structure):
    """llama_context_params up to the types of keys and values, and room for the rest."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("context", "batch", "micro_batch", "sequences", "snapshots")),
        *((name, ctypes.c_uint32) for name in ("outputs", "outputs_each")),
        *((name, ctypes.c_int32) for name in ("threads", "threads_batch", "kind", "scaling", "pooling", "attention", "flash")),
        *((name, ctypes.c_float) for name in ("base", "scale", "yarn_ext", "yarn_attention", "yarn_fast", "yarn_slow")),
        ("yarn_original", ctypes.c_uint32), ("defrag", ctypes.c_float), ("callback", ctypes.c_void_p),
        ("user", ctypes.c_void_p),
        ("keys", ctypes.c_int32), ("values", ctypes.c_int32), ("others", ctypes.c_uint8 * 240),
    ]  # fmt: skip


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = [
        ("count", ctypes.c_int32), ("tokens", ctypes.POINTER(ctypes.c_int32)), ("embeddings", ctypes.c_void_p),
        ("places", ctypes.POINTER(ctypes.c_int32)), ("sequences", ctypes.POINTER(ctypes.c_int32)),
        ("names", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), ("wanted", ctypes.POINTER(ctypes.c_int8)),
    ]  # fmt: skip


class Llama:
    """A file opened by llama.cpp, everything in float32."""

    def __init__(self, library: Path, file: Path) -> None:
        self.c = ctypes.CDLL(str(library))
        for name, kind in {
            "llama_model_default_params": ModelOptions, "llama_context_default_params": ContextOptions,
            "llama_batch_init": Batch,
            "llama_model_load_from_file": ctypes.c_void_p, "llama_init_from_model": ctypes.c_void_p,
            "llama_get_logits_ith": ctypes.POINTER(ctypes.c_float), "llama_model_get_vocab": ctypes.c_void_p,
            "llama_get_memory": ctypes.c_void_p, HIDDEN: ctypes.POINTER(ctypes.c_float),
        }.items():  # fmt: skip
            getattr(self.c, name).restype = kind
        self.c.llama_backend_init()
        options = self.c.llama_model_default_params()
        assert list(options.others[52:58]) == [0, 0, 1, 0, 0, 0], "another llama.h"
        options.others[57] = 1  # load_mtp
        self.model = ctypes.c_void_p(self.c.llama_model_load_from_file(str(file).encode(), options))
        if not self.model:
            raise RuntimeError("llama.cpp does not load it")
        self.vocab = ctypes.c_void_p(self.c.llama_model_get_vocab(self.model))
        self.width = self.c.llama_vocab_n_tokens(self.vocab)

    def logits(self, tokens: Sequence[int], prefill: int) -> Logits:
        """Return the logits [T, V] after each token: ``prefill`` of them at once, then one by one."""
        context, found, place = self._context(0), list[Logits](), 0
        for count in (prefill, *[1] * (len(tokens) - prefill)):
            found += self._decode(context, tokens[place : place + count], place)
            place += count
        self.c.llama_free(context)
        return np.array(found)

    def drafts(self, tokens: Sequence[int]) -> Logits:
        """Return the logits [T - 1, V] of the layer of multi-token prediction after each token but the first."""
        target, drafter = self._context(0), self._context(1)
        getattr(self.c, SET_HIDDEN)(target, True, False)
        self._decode(target, tokens, 0)
        width = self.c.llama_model_n_embd(self.model)
        hidden = np.ctypeslib.as_array(getattr(self.c, HIDDEN)(target), (len(tokens), width)).copy()
        found = self._decode(drafter, tokens[1:], 1, hidden)
        for context in (target, drafter):
            self.c.llama_free(context)
        return np.array(found)

    def _context(self, kind: int) -> ctypes.c_void_p:
        """Return a context. kind: 0, or 1 for layers of multi-token prediction."""
        options = self.c.llama_context_default_params()
        assert (options.context, options.batch, options.keys, options.values) == (512, 2048, 1, 1), "another llama.h"
        options.context, options.keys, options.values, options.flash, options.kind = 512, F32, F32, NO_FLASH, kind
        options.threads = options.threads_batch = 1
        context = ctypes.c_void_p(self.c.llama_init_from_model(self.model, options))
        if not context:
            raise RuntimeError("llama.cpp makes no context")
        return context

    def _decode(
        self, context: ctypes.c_void_p, tokens: Sequence[int], place: int, hidden: Logits | None = None
    ) -> list[Logits]:
        """Return the logits after each token. hidden: rows beside the tokens."""
        batch = self.c.llama_batch_init(len(tokens), 0, 1)
        batch.count = len(tokens)
        if hidden is not None:
            batch.embeddings = hidden.ctypes.data
        for i, token in enumerate(tokens):
            batch.tokens[i], batch.places[i], batch.sequences[i], batch.wanted[i] = token, place + i, 1, 1
            batch.names[i][0] = 0
        if self.c.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode refused {len(tokens)} tokens at {place}")
        return [
            np.ctypeslib.as_array(self.c.llama_get_logits_ith(context, i), (self.width,)).copy() for i in range(len(tokens))
        ]

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, with what its tokenizer puts around texts and special tokens by their names."""
        data = text.encode()
        room = (ctypes.c_int32 * (len(data) + 16))()
        count = self.c.llama_tokenize(self.vocab, data, len(data), room, len(room), True, True)
        return list(room[:count])


SIZES: dict[str, Any] = {"vocab_size": 320}
"""A token for each byte, which llama.cpp takes for granted, and some more."""
EPSILON = {"rms_norm_eps": 1e-6}
"""The epsilon of the norms inside of attention, for which llama.cpp takes that of the others: 1e-5 in published configs."""
WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
DELTA: dict[str, Any] = {
    "linear_value_head_dim": 16,
    "linear_key_head_dim": 16,
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}  # fmt: skip
YARN: dict[str, Any] = {
    "rope_theta": 100.0,
    "rope_scaling": {
        "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 16,
    },
}  # fmt: skip
LONG: dict[str, Any] = {
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "longrope", "short_factor": [1, 1.1, 1.2, 2], "long_factor": [4] * 4, "original_max_position_embeddings": 512,
    },
}  # fmt: skip
FORMS: Mapping[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, DELTA) for name in ("qwen35", "qwen35moe", "qwen3next")},
    f"qwen35{MTP}": ("qwen35", {**DELTA, "mtp_num_hidden_layers": 1}),
    **{name: (name, {}) for name in (
        "lfm2", "lfm2moe", "mamba2", "mamba", "jamba", "llama", "qwen2",
        "qwen3", "qwen3moe", "granite", "granitemoe", "granite_swa", "smollm3", "bailingmoe3", "gpt-oss", "gemma3",
    )},
    "kimi-linear": ("kimi-linear", {"linear_num_heads": 4, **EPSILON}),
    "gemma4": ("gemma4", {"vocab_size_per_layer_input": 320}),
    "gemma4, experts": (
        "gemma4",
        {
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_kv_shared_layers": 0,
            "num_key_value_heads": 2,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
            "final_logit_softcapping": 3.0,
            "use_double_wide_mlp": False,
        },
    ),
    "phi3": ("phi3", {"max_position_embeddings": 2048, "original_max_position_embeddings": 512, "sliding_window": None}),
    "phi3, Phi-4": ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "sliding_window": None}),
    "hunyuan-dense": (
        "hunyuan-dense",
        {
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "type": "dynamic", "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
    ),
    "granitehybrid": ("granitehybrid", {"num_experts_per_tok": 0, "shared_intermediate_size": 96}),
    "granitehybrid, experts": ("granitehybrid", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "falcon-h1": ("falcon-h1", {"mamba_norm_before_gate": False}),
    "gemma3n": (
        "gemma3n",
        {
            "num_hidden_layers": 22,
            "num_kv_shared_layers": 2,
            "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 5 + ["sliding_attention", "full_attention"],
            "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 12,
            "intermediate_size": [96] * 22,
            "vocab_size_per_layer_input": 320,
            "hidden_size_per_layer_input": 256,
            "laurel_rank": 64,
        },
    ),
    "deepseek2, DeepSeek-V2": ("deepseek_v2", WIDE),
    "deepseek2, DeepSeek-V2-Lite": ("deepseek_v2", {**WIDE, "q_lora_rank": None, "num_hidden_layers": 27, **YARN}),
    "deepseek2, GLM-4 MoE Lite": ("glm4_moe_lite", {**WIDE, **EPSILON}),
    "deepseek2, Youtu": ("youtu", WIDE),
    "minicpm3": (
        "minicpm3",
        {**WIDE, **LONG, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "v_head_dim": 16},
    ),
    "rwkv7": ("rwkv7", {"hidden_size": 128, "head_dim": 64, "num_heads": 2, "value_dim": None}),
    "nemotron_h": ("nemotron_h", {"mamba_num_heads": 8}),
    "nemotron_h_moe": ("nemotron_h_moe", {"mamba_num_heads": 8}),
}  # fmt: skip
"""Models by names: an architecture of ``gguf_files.MODELS``, or a type of model, and what else a published one has."""
PUBLISHED: Mapping[str, tuple[str, str]] = {
    "kimi-linear": (r"(layers\.0\.)block_sparse_moe\.((?:gate|up|down)_proj)", r"\1mlp.\2"),
}
"""Names of weights that transformers saves otherwise than the model's authors, by architecture."""

OWN_CONFIGS = ("kimi_linear", "bailing_hybrid", "granitemoehybrid", "nemotron_h")
"""Types of models whose config.json the converter knows, and not transformers' reading of it."""


def published(architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json with the entries that its authors' own have and transformers' lack."""
    kinds: list[str] = config.get("layer_types") or []
    if architecture.startswith("qwen3") and "linear_attention" in kinds:
        return {**config, "full_attention_interval": kinds.index("full_attention") + 1}
    if architecture == "kimi-linear":
        linear = {
            "full_attn_layers": [i for i, kind in enumerate(kinds, 1) if kind == "full_attention"],
            "head_dim": config["linear_head_dim"],
            "num_heads": config["linear_num_heads"],
            "short_conv_kernel_size": config["linear_conv_kernel_dim"],
        }
        return {
            **config,
            "linear_attn_config": linear,
            "first_k_dense_replace": config["mlp_layer_types"].count("dense"),
            "moe_router_activation_func": "sigmoid",
        }
    if architecture == "bailingmoe3":
        return {
            **config,
            "architectures": ["BailingMoeV3ForCausalLM"],
            "norm_topk_prob": config["moe_renormalize"],
            "score_function": "sigmoid",
            "n_group": 1,
            "topk_group": 1,
            "no_kda_lora": True,
            "kda_safe_gate": True,
            "gated_attention_proj_granularity_type": "head_wise",
            "head_dim": config["linear_head_dim"],
            "layer_group_size": kinds.index("full_attention") + 1,
            "moe_shared_expert_intermediate_size": config["moe_intermediate_size"],
        }
    if architecture == "granitehybrid":
        return {**config, "layer_types": [{"linear_attention": "mamba", "full_attention": "attention"}[kind] for kind in kinds]}
    if architecture.startswith("nemotron_h"):
        letters = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-", "moe": "E"}
        pattern = "".join(letters[kind] for kind in config["layers_block_type"])
        routed = {} if "E" in pattern else dict.fromkeys(("n_routed_experts", "num_experts_per_tok", "n_group", "topk_group"))
        dense = {name: each for name, each in config.items() if name not in routed}
        return {**dense, "hybrid_override_pattern": pattern}
    if architecture == "granite_swa":
        return {**config, "no_rope_layers": [int(bool(theta)) for theta in config["layer_rope_theta"]]}
    if architecture == "glm4_moe_lite":
        return {**config, "first_k_dense_replace": 1, "scoring_func": "sigmoid"}
    return config


def model_of(form: str) -> Any:
    """Return the random model of a form."""
    from gguf_files import MODELS
    from tiny import lively, tiny_config, tiny_model

    name, sizes = FORMS[form]
    model_type, own = MODELS.get(name, (name, {}))
    model = lively(tiny_model(tiny_config(model_type, **{**own, **SIZES, **sizes})))
    table = model.get_input_embeddings().weight.data
    # transformers gives a padding token zeros, which no published model has: llama.cpp's AltUp divides 0 by 0 then.
    table[~table.any(1)] = table[-1].clone()
    return model


def save(form: str, folder: Path) -> None:
    """Write the checkpoint of a form as its authors publish it."""
    from safetensors.torch import load_file, save_file

    architecture, model = FORMS[form][0], model_of(form)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(
        json.dumps(published(architecture, json.loads(model.config.to_json_string(use_diff=False))))
    )
    vocabulary = {"model": {"vocab": {f"{i}": i for i in range(SIZES["vocab_size"])}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if form.endswith(MTP):
        from mtp_reference import published as published_mtp
        from mtp_reference import random_mtp

        tensors |= published_mtp(model, random_mtp(model))
    if architecture in PUBLISHED:
        old, new = PUBLISHED[architecture]
        tensors = {re.sub(old, new, name): each for name, each in tensors.items()}
    for index in range(model.config.num_hidden_layers - getattr(model.config, "num_kv_shared_layers", 0), 99):
        unused = {f"self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm")} if architecture == "gemma3n" else ()
        prefix = f"model.layers.{index}."
        if f"{prefix}input_layernorm.weight" in tensors:  # its authors' files have them, and llama.cpp loads them
            tensors |= {prefix + name: tensors[f"model.layers.0.{name}"].clone() for name in unused}
    save_file(tensors, path, metadata={"format": "pt"})


def convert(folder: Path, out: Path, source: Path) -> None:
    """Convert a checkpoint as llama.cpp does, but with a vocabulary of bytes."""
    sys.path[:0] = [str(source / "gguf-py"), str(source)]
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from gguf_files import add_tokenizer

    if json.loads((folder / "config.json").read_text())["model_type"] in OWN_CONFIGS:
        import conversion.base

        conversion.base.AutoConfig = None  # so that it reads config.json
    kind = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
    kind.set_vocab = lambda self: add_tokenizer(self.gguf_writer, SIZES["vocab_size"])
    kind.no_mtp = not out.stem.endswith(MTP)
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.ALL_F32, out).write()


def as_llama_cpp(model: Any) -> Any:
    """Return the model with what llama.cpp computes otherwise than Gemma's authors, so that all else is compared.

    It looks GELU up in a table of float16 numbers, and divides the variance of Gemma 3n's activations by one less than their
    number (``gaussian_topk`` in ``src/models/gemma3n.cpp``).
    """
    import torch
    from torch.nn.functional import gelu
    from transformers.activations import GELUTanh

    from hybridge.export.model.families import attention

    def looked_up(x: torch.Tensor) -> torch.Tensor:
        rounded = gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, rounded))

    def above_cutoff(deviations: float, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x - x.mean(-1, keepdim=True) - deviations * x.std(-1, keepdim=True))

    attention._above_cutoff = above_cutoff  # of sessions; this process ends with the comparison
    for module in model.modules():
        if isinstance(module, GELUTanh):
            module.act = looked_up
        if getattr(module, "activation_sparsity", 0.0):
            module._gaussian_topk = partial(above_cutoff, NormalDist().inv_cdf(module.activation_sparsity))
    return model


def compare(form: str, file: Path, library: Path) -> dict[str, float]:
    """Return the largest differences of logits, relative to the largest logit."""
    from hybridge.export.check.oracle import uncached
    from hybridge.export.program.eager import eager_session
    from hybridge.export.source.checkpoint import load_checkpoint
    from hybridge.runtime.artifact.options import ExportOptions

    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], TOKENS).tolist()
    llama = Llama(library, file)
    theirs = llama.logits(tokens, PREFILL)
    original = uncached(as_llama_cpp(model_of(form)))(tokens).numpy()
    checkpoint = load_checkpoint(file)
    loaded = as_llama_cpp(checkpoint.model)
    options = ExportOptions(max_seq_len=TOKENS, prefill_chunk=PREFILL, verify_len=4, snapshot_slots=1)
    session = eager_session(loaded, options)
    decoded = [session.prefill(tokens[:PREFILL]), *(session.decode(token) for token in tokens[PREFILL:])]
    largest = float(np.abs(original).max())

    def worst(a: Logits, b: Logits) -> float:
        return float(np.abs(a - b).max()) / largest

    assert np.isfinite(theirs).all(), "llama.cpp's logits are NaN"
    errors = {
        "transformers": worst(theirs, original),
        "hybridge": worst(theirs, uncached(loaded)(tokens).numpy()),
        "decoded": worst(theirs[PREFILL - 1 :], np.array(decoded)),
    }
    if form.endswith(MTP):
        from mtp_reference import MtpReference

        from hybridge.export.drafters.mtp import load_mtp

        reference = MtpReference(loaded, load_mtp(checkpoint))
        theirs = llama.drafts(tokens)
        ends = (2, PREFILL, TOKENS)
        ours = np.array([reference.guess(tokens[:end], 1)[1][0].numpy() for end in ends])
        errors["drafts"] = worst(theirs[[end - 2 for end in ends]], ours)
    return errors


def compare_blocks(mix: str, file: Path, library: Path) -> float:
    """Return the mean KL divergence in nats of hybridge's logits from llama.cpp's, for a file in blocks."""
    import torch
    from gguf_files import TYPES, random_model, save_gguf

    from hybridge.export.check.oracle import uncached
    from hybridge.export.source.checkpoint import load_checkpoint

    first, *others = MIXES[mix]
    kinds = {name: TYPES[kind] for name, kind in (each.split(":") for each in others)}
    model = random_model("llama", **SIZES, hidden_size=256, intermediate_size=512, num_key_value_heads=2)
    save_gguf(file, "llama", model, lambda name: next((kinds[each] for each in kinds if each in name), TYPES[first]))
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], TOKENS).tolist()
    theirs, ours = (
        torch.tensor(each).log_softmax(-1)
        for each in (Llama(library, file).logits(tokens, PREFILL), uncached(load_checkpoint(file).model)(tokens).numpy())
    )
    return float((theirs.exp() * (theirs - ours)).sum(-1).mean())


def compare_tokens(kind: str, file: Path, library: Path) -> str:
    """Return how many of ``TEXTS`` texts have other tokens than llama.cpp's, and the first of them."""
    from gguf_files import random_model, save_gguf
    from gguf_tokenizers import FILES, byte_level
    from tokenizer_zoo import odd_texts

    from hybridge.runtime.binding.tokenizer import Tokenizer
    from hybridge.runtime.pack.tokenizer import read_gguf_tokenizer

    metadata = FILES[kind]() if kind in FILES else byte_level(kind)
    save_gguf(file, "llama", random_model("llama", vocab_size=len(metadata["tokens"])), tokenizer=metadata)
    theirs = Llama(library, file)
    made = read_gguf_tokenizer({f"tokenizer.ggml.{name}": each for name, each in metadata.items()})
    ours = Tokenizer(json.dumps(made.content).encode())
    texts = odd_texts(TEXTS, ("<|endoftext|>", "<|im_start|>", "<s>", "</s>", "<unk>", "<think>", "<start_of_turn>"))
    others = [text for text in texts if ours.encode(text).ids != theirs.tokenize(text)]
    return f"{len(others)} of {TEXTS} differ" + (f", first {others[0]!r}" if others else "")


TOKENS, PREFILL, TEXTS = 48, 32, 3000
MIXES: Mapping[str, tuple[str, ...]] = {
    **{kind: (kind,) for kind in ("Q4_0", "Q5_0", "Q8_0", "Q6_K", "IQ4_NL", "IQ4_XS")},
    "Q4_K_M": ("Q4_K", "attn_v:Q6_K", "ffn_down:Q6_K", "output.weight:Q6_K"),
    "Q5_K_M": ("Q5_K", "attn_v:Q6_K", "ffn_down:Q6_K", "output.weight:Q6_K"),
}
"""The type of a file's tensors, and of those whose names have a part."""
MOST = {"gemma": 1e-2, "gpt-oss": 3e-4}
"""Largest errors by the beginnings of names, 2e-5 for others: llama.cpp rounds the bounds of gpt-oss's YaRN."""


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own, which has the modules of this one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(function, *arguments).result()


def install(work: Path) -> tuple[Path, Path]:
    """Return llama.cpp's library and the folder of its converter, downloaded and unpacked once. Raises CalledProcessError."""
    library, source = work / "library" / "xllamacpp" / "xllamacpp.abi3.so", work / "converter"
    if not library.exists():
        campaign.download(LIBRARY, work)
        with zipfile.ZipFile(next(work.glob("xllamacpp-*.whl"))) as wheel:
            wheel.extractall(work / "library")
    if not source.exists():
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=llama-cpp-python", "--quiet"]
        subprocess.run([*pip, "--dest", str(work), CONVERTER], check=True)
        with campaign.whole(source) as folder, tarfile.open(next(work.glob("llama_cpp_python-*.tar.gz"))) as packed:
            parts = ("vendor/llama.cpp/conversion/", "vendor/llama.cpp/gguf-py/")
            for member in packed.getmembers():
                name = member.name.partition("/")[2]
                if name.startswith(parts):
                    member.name = name.removeprefix("vendor/llama.cpp/")
                    packed.extract(member, folder, filter="data")
    return library, source


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Forms, mixes, or `tokens KIND`; all if left out.")] = None,
    work: Annotated[Path, typer.Option(help="A folder for packages and files.")] = ROOT / ".gguf-files",
) -> None:
    """Compare GGUF files with llama.cpp: logits of every architecture, mixes of blocks, and tokens."""
    import torch
    import transformers  # noqa: F401  once for all processes
    from gguf_tokenizers import FILES

    import hybridge.export.source.checkpoint  # noqa: F401  likewise
    from hybridge.runtime.pack.tokenizer import PRE_TOKENIZERS

    for module in [each for each in sys.modules if each.partition(".")[0] == "gguf"]:
        del sys.modules[module]  # the converter has its own
    torch.set_num_threads(1)
    work.mkdir(exist_ok=True, parents=True)
    library, source = install(work)
    tokenizers = [f"tokens {kind}" for kind in dict.fromkeys([*FILES, *PRE_TOKENIZERS])]
    failed = 0
    for name in names or [*FORMS, *MIXES, *tokenizers]:
        file = work / f"{name}.gguf"
        try:
            if name in FORMS:
                apart(save, name, work / name)
                apart(convert, work / name, file, source)
                errors = apart(compare, name, file, library)
                good = max(errors.values()) <= next((most for start, most in MOST.items() if name.startswith(start)), 2e-5)
                said = ", ".join(f"{other} {error:.1e}" for other, error in errors.items())
            elif name in MIXES:
                divergence = apart(compare_blocks, name, file, library)
                good, said = divergence <= LARGEST_KL, f"KL {divergence:.1e} nats"
            else:
                said = apart(compare_tokens, name.removeprefix("tokens "), file, library)
                good = said.startswith("0 ")
        except Exception as error:  # whatever the converter or an aborted process leaves behind
            good, said = False, f"{type(error).__name__}: {error}"
        failed += not good
        print(f"{'' if good else 'FAILED '}{name}: {said}", flush=True)
    raise typer.Exit(1 if failed else 0)


LARGEST_KL = 5e-3
"""llama.cpp rounds activations to 8 bits beside blocks, hybridge's oracle does not."""


if __name__ == "__main__":
    campaign.run("gguf-files", main)
