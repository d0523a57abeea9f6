"""Describe a GGUF architecture: how its metadata and tensors become a transformers config and weights.

llama.cpp renames, joins and permutes weights; each is undone here, on numbers and on quantized blocks alike.
Source: llama.cpp's ``conversion/*.py``, ``modify_tensors`` of each architecture.

Axes: H heads, D dimensions of a head, E experts, N rows, K columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.source.gguf.file import GgufFile, GgufTensor, rounded_weight
from hybridge.limits import MOST_LAYERS
from hybridge.runtime.pack.blocks import selected
from hybridge.runtime.pack.panels import Array
from hybridge.runtime.pack.tokenizer import end_ids

if TYPE_CHECKING:  # configs are read where PyTorch is not installed; weights are made of its tensors
    from torch import Tensor

    from hybridge.export.source.quantization import LazyTensor
    from hybridge.export.weights import RoundedWeight

Config = Mapping[str, Any]
"""The entries of a config.json."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The transformers model that a GGUF architecture stands for.

    config: makes the config.json of a file; layer: the weights of a decoder layer, whose names begin with ``prefix``
    and the layer's number; model: the other weights; drafter: the layers of multi-token prediction, if it may have some.
    """

    config: Callable[[GgufFile], dict[str, Any]]
    layer: tuple[Weight, ...]
    model: tuple[Weight, ...]
    prefix: str = "model.layers"
    drafter: DraftLayers | None = None


@dataclass(frozen=True, kw_only=True)
class DraftLayers:
    """The layers of multi-token prediction, which are decoder layers after the model's own, with weights around each.

    around: these weights; place, layer: beginnings of their names and of those of the decoder layer, in which ``{own}`` is
    the layer's number from 0 on, and ``{index}`` that after the model's layers.
    """

    around: tuple[Weight, ...]
    place: str
    layer: str


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A weight of a checkpoint. of: endings of its tensors' names in the file; make: computes it from config and tensors."""

    name: str
    of: tuple[str, ...]
    make: Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class MadeTensor:
    """A weight that is read and made when it is indexed with ``...``. Tensors that it makes refer to it as their origin."""

    sources: tuple[GgufTensor, ...]
    config: Config
    make: Callable[..., Tensor]

    def __getitem__(self, index: EllipsisType, /) -> Tensor:
        from hybridge.export.pinned.transformers import with_origin

        made: Tensor = self.make(self.config, *(source.read() for source in self.sources))
        return with_origin(made.contiguous(), self)

    def blocks(self) -> RoundedWeight | None:
        """Return the weight in the file's own quantized blocks, or None if it is more than rows of the file."""
        shapes = [source.shape for source in self.sources]
        found = selected(self._make_arrays, shapes, lambda: [source.blocks() for source in self.sources])
        return None if found is None else rounded_weight(found)

    def _make_arrays(self, *arrays: Array) -> Array:
        """Make the weight of arrays, which is the first itself if nothing changes it."""
        import torch

        tensors = [torch.from_numpy(np.ascontiguousarray(each)) for each in arrays]
        made = self.make(self.config, *tensors)
        return arrays[0] if made is tensors[0] else made.numpy()

    def changed(self, change: Callable[[Tensor], Tensor]) -> MadeTensor:
        """Return what ``change`` makes of the weight."""
        return replace(self, make=lambda config, *tensors: change(self.make(config, *tensors)))

    def without_kernels(self) -> list[str]:
        """Return GGML's names of the types of its sources that have no kernels."""
        return sorted({source.kind_name for source in self.sources if not source.has_kernels})


def itself(config: Config, tensor: Tensor) -> Tensor:
    """Return a tensor as it is in the file."""
    return tensor


def same(names: Mapping[str, str], make: Callable[..., Tensor] = itself) -> tuple[Weight, ...]:
    """Return weights and biases that are one tensor each, by the tensor's name and their own."""
    return tuple(
        Weight(name=f"{own}.{part}", of=(f"{name}.{part}",), make=make)
        for name, own in names.items()
        for part in ("weight", "bias")
    )


def one(name: str, of: str, make: Callable[..., Tensor] = itself) -> Weight:
    """Return a weight that is made of one tensor."""
    return Weight(name=name, of=(of,), make=make)


def made(
    weights: tuple[Weight, ...], tensors: Mapping[str, GgufTensor], config: Config, *, block: str = ""
) -> Iterator[tuple[str, LazyTensor, tuple[str, ...]]]:
    """Yield name, weight and names of the tensors, which begin with ``block``, of each weight whose tensors are all there."""
    for weight in weights:
        sources = tuple(f"{block}{end}" for end in weight.of)
        if all(source in tensors for source in sources):
            found = MadeTensor(sources=tuple(map(tensors.__getitem__, sources)), config=config, make=weight.make)
            yield weight.name, found, sources


# Undo llama.cpp's changes to single tensors


def minus_one(config: Config, norm: Tensor) -> Tensor:
    """Subtract the 1 that is added to norms that multiply with 1 + weight."""
    return norm - 1


def decay(config: Config, tensor: Tensor) -> Tensor:
    """Return A_log [H] of -exp(A_log), which is stored as a column."""
    return decay_of_channels(config, tensor).flatten()


def decay_of_channels(config: Config, tensor: Tensor) -> Tensor:
    """Return A_log [C, N] of -exp(A_log), rounded from float64: NumPy's logarithm has another last bit in float32."""
    return (-tensor.double()).log().float()


def flat(config: Config, tensor: Tensor) -> Tensor:
    """Flatten columns and groups to one dimension."""
    return tensor.flatten()


def conv(config: Config, tensor: Tensor) -> Tensor:
    """Return a depthwise convolution [C, 1, kernel] of [C, kernel]."""
    return tensor.reshape(-1, 1, tensor.shape[-1])


def as_column(config: Config, tensor: Tensor) -> Tensor:
    """Return a row [1, K] that is stored as [K]."""
    return tensor.reshape(1, -1)


def unpaired(heads: str) -> Callable[[Config, Tensor], Tensor]:
    """Return a function that undoes the pairing of queries' or keys' rows for RoPE. heads: the config's name for H."""

    def make(config: Config, tensor: Tensor) -> Tensor:
        halves: Tensor = tensor.unflatten(0, (config[heads], -1, 2)).transpose(1, 2).reshape(tensor.shape)
        return halves

    return make


def beside(config: Config, *parts: Tensor) -> Tensor:
    """Join the rows of several tensors, for each expert if they are stacked [E, N, K]."""
    return joined(parts, dim=-2)


def joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Join tensors along a dimension."""
    import torch

    return torch.cat([*parts], dim=dim)


def stacked(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Join tensors along a new dimension."""
    import torch

    return torch.stack([*parts], dim=dim)


# Entries of config.json that most architectures have in common

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Parameters of every Llama 3's RoPE, of which a file has only the resulting factors."""


def common(file: GgufFile, model_type: str) -> dict[str, Any]:
    """Return the entries of every model."""
    return {
        "model_type": model_type,
        "vocab_size": file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0,
        "hidden_size": file["embedding_length"],
        "num_hidden_layers": layers(file),
        "max_position_embeddings": file["context_length"],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids(file.metadata, file.ends) or None,
        "pad_token_id": None,
    }


def layers(file: GgufFile) -> int:
    """Return the number of decoder layers, without MTP layers. Raises CheckpointError if it is absurd."""
    count = int(file["block_count"] - (file.get("nextn_predict_layers") or 0))
    if not 1 <= count <= int(file["block_count"]) <= MOST_LAYERS:
        raise CheckpointError(
            f"{file.path} cannot be read as GGUF (it says {count:,} of {file['block_count']:,} layers, expected 1 to "
            f"{MOST_LAYERS}); download it again."
        )
    return count


def attention(file: GgufFile) -> dict[str, Any]:
    """Return the heads, their size, and the epsilon of norms."""
    heads, kv_heads = most(file["attention.head_count"]), most(file["attention.head_count_kv"])
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": file.get("attention.key_length") or file["embedding_length"] // max(heads, 1),
        "rms_norm_eps": file.get("attention.layer_norm_rms_epsilon") or file["attention.layer_norm_epsilon"],  # Nemotron 3
    }


def mlp(file: GgufFile) -> dict[str, Any]:
    """Return the width of dense layers, nothing if there are none."""
    width = most(file.get("feed_forward_length") or 0)
    return {"intermediate_size": width} if width else {}


def experts(file: GgufFile) -> dict[str, Any]:
    """Return the number of experts, how many a token chooses, and their width."""
    return {
        "num_experts": file["expert_count"],
        "num_experts_per_tok": file["expert_used_count"],
        "moe_intermediate_size": file["expert_feed_forward_length"],
    }


def rope(file: GgufFile, partial: bool = False) -> dict[str, Any]:
    """Return RoPE's parameters. partial: only the first dimensions of a head are rotated. Raises UnsupportedModelError."""
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": file.get("rope.freq_base", 10000.0)}
    if partial:
        parameters["partial_rotary_factor"] = file["rope.dimension_count"] / attention(file)["head_dim"]
    kind, factor = file.get("rope.scaling.type") or "none", file.get("rope.scaling.factor") or 1.0
    if "rope_freqs.weight" in file.tensors:
        parameters |= _llama3(file, parameters["rope_theta"])
    elif kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(f"{file.path} scales its angles by {kind!r}; hybridge reads linear and yarn.")
    elif kind == "linear" and factor != 1.0:
        parameters |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        parameters |= _yarn(file, factor)
    return {"rope_parameters": parameters}


def long_rope(file: GgufFile, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return RoPE's parameters with the factors for short and long texts, if the file has some."""
    factors = {each: file.tensors.get(f"rope_factors_{each}.weight") for each in ("long", "short")}
    if not all(factors.values()):
        return parameters
    return parameters | {
        "rope_type": "longrope",
        "original_max_position_embeddings": file.get("rope.scaling.original_context_length") or file["context_length"],
        "attention_factor": file.get("rope.scaling.attn_factor"),
        **{f"{each}_factor": tensor.floats().tolist() for each, tensor in factors.items() if tensor},
    }


def _yarn(file: GgufFile, factor: float) -> dict[str, Any]:
    names = {"rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow"}
    original = file["rope.scaling.original_context_length"]
    given = {own: file.get(name) for name, own in names.items() if file.get(name) is not None}
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **given}


def _llama3(file: GgufFile, theta: float) -> dict[str, Any]:
    """Return Llama 3's RoPE parameters that give the file's factors. Raises UnsupportedModelError if none do."""
    stored = file.tensors["rope_freqs.weight"].floats()
    factor = float(stored.max())
    scaling = {"rope_type": "llama3", "factor": factor, **LLAMA3}
    if not np.allclose(_slowed_down(len(stored), theta, factor), stored, rtol=1e-4):
        raise UnsupportedModelError(f"{file.path} has angles (rope_freqs.weight) that are not scaled as Llama 3's are.")
    return scaling


def _slowed_down(count: int, theta: float, factor: float) -> Array:
    """Return the factor that slows each angle down. Source: transformers 5.23 ``_compute_llama3_parameters``."""
    low, high, original = LLAMA3.values()
    turns = original / (2 * math.pi * theta ** (np.arange(count) / count))
    share = ((turns - low) / (high - low)).clip(0, 1)
    slowed: Array = 1 / ((1 - share) / factor + share)
    return slowed


def by_period(file: GgufFile, period: int) -> list[str]:
    """Return layer types: linear attention, and every ``period``-th layer full attention."""
    return [LINEAR if (i + 1) % period else FULL for i in range(layers(file))]


def of_layers(value: Any, file: GgufFile) -> list[Any]:
    """Return a list with an entry for each layer of a value that may be one for all."""
    return list(value)[: layers(file)] if isinstance(value, list) else [value] * layers(file)


def most(count: Any) -> int:
    """Return a count, or the largest of a list with an entry for each layer."""
    return int(max(count)) if isinstance(count, list) else int(count)


def has(file: GgufFile, end: str) -> bool:
    """Return whether any layer has a tensor whose name ends with ``end``."""
    return any(name.startswith("blk.") and name.endswith(end) for name in file.tensors)
