"""Weights of a checkpoint out of a GGUF file's tensors: under their own names, with what llama.cpp did to them undone.

Source: llama.cpp's ``conversion/*.py``, ``modify_tensors`` of each architecture.

Axes: H heads, D dimensions of a head, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.cache.families.family import MOST_LAYERS
from hybridge.export.layers import RoundedWeight
from hybridge.export.operators.linear import Factors
from hybridge.export.pinned.transformers import with_origin
from hybridge.export.source.gguf.file import GgufFile, GgufTensor
from hybridge.export.source.quantization import LazyTensor

Config = Mapping[str, Any]
"""The entries of a config.json."""


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A weight of a checkpoint. of: how the names of the tensors end that it is made of; make: config and tensors to it."""

    name: str
    of: tuple[str, ...]
    make: Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class MadeTensor:
    """A weight that is read and made when it is indexed with ``...``; the numbers that it makes know it as their origin."""

    sources: tuple[GgufTensor, ...]
    config: Config
    make: Callable[..., Tensor]

    def __getitem__(self, index: EllipsisType, /) -> Tensor:
        made: Tensor = self.make(self.config, *(source.read() for source in self.sources))
        return with_origin(made.contiguous(), self)

    def blocks(self) -> RoundedWeight | None:
        """Return the same with the bits that the file has; None where it does not consist of rows of the file."""
        return selected(partial(self.make, self.config), self.sources)

    def without_kernels(self) -> list[str]:
        """Return the types of its sources that there are no kernels for."""
        return sorted({source.kind_name for source in self.sources if not source.has_kernels})


def same(names: Mapping[str, str], make: Callable[..., Tensor] | None = None) -> tuple[Weight, ...]:
    """Return the weights and biases that a tensor each is, by the tensor's name and their own."""
    return tuple(
        Weight(name=f"{own}.{part}", of=(f"{name}.{part}",), make=make or (lambda config, tensor: tensor))
        for name, own in names.items()
        for part in ("weight", "bias")
    )


def one(name: str, of: str, make: Callable[..., Tensor]) -> Weight:
    """Return a weight that is made of one tensor."""
    return Weight(name=name, of=(of,), make=make)


def made(
    weights: tuple[Weight, ...], tensors: Mapping[str, GgufTensor], config: Config, *, block: str = ""
) -> Iterator[tuple[str, LazyTensor, tuple[str, ...]]]:
    """Yield name, tensor and the names of its sources of each weight whose tensors are all there, behind ``block``."""
    for weight in weights:
        sources = tuple(f"{block}{end}" for end in weight.of)
        if all(source in tensors for source in sources):
            found = MadeTensor(sources=tuple(map(tensors.__getitem__, sources)), config=config, make=weight.make)
            yield weight.name, found, sources


# What llama.cpp did, undone


def minus_one(config: Config, norm: Tensor) -> Tensor:
    """Norms that multiply with 1 + weight are stored with the 1 added."""
    return norm - 1


def decay(config: Config, tensor: Tensor) -> Tensor:
    """-exp(A_log) is stored, as a column; A_log [H] of it."""
    return torch.log(-tensor).flatten()


def decay_of_channels(config: Config, tensor: Tensor) -> Tensor:
    """The same for a number for each channel and state [C, N]."""
    return torch.log(-tensor)


def flat(config: Config, tensor: Tensor) -> Tensor:
    """Columns and groups are one dimension."""
    return tensor.flatten()


def conv(config: Config, tensor: Tensor) -> Tensor:
    """A depthwise convolution [C, kernel] to [C, 1, kernel]."""
    return tensor.reshape(-1, 1, tensor.shape[-1])


def as_column(config: Config, tensor: Tensor) -> Tensor:
    """A row [1, K] that is stored as [K]."""
    return tensor.reshape(1, -1)


def unpaired(heads: str) -> Callable[[Config, Tensor], Tensor]:
    """Rows of queries or keys in pairs that are rotated together, back to halves. heads: how the config names their number."""

    def make(config: Config, tensor: Tensor) -> Tensor:
        halves: Tensor = tensor.unflatten(0, (config[heads], -1, 2)).transpose(1, 2).reshape(tensor.shape)
        return halves

    return make


def beside(config: Config, *parts: Tensor) -> Tensor:
    """Rows of several tensors, one below the other; of each expert [E, N, K] where they are stacked."""
    return torch.cat(parts, dim=-2)


# A weight of a checkpoint as rows and columns of a file's tensors, with the bits that those have there.
#
# A table's ``make`` works on floats. It is run on the indices of rows and of columns in place of them: if it only
# moves them,
# what comes out says how, and the whole numbers and their factors are moved likewise. A weight that is more than
# moved rows, or
# that is made of tensors whose blocks have no form in common, has no blocks.


def selected(make: Callable[..., Tensor], sources: Sequence[GgufTensor]) -> RoundedWeight | None:
    """Return the blocks of the weight that ``make`` makes of ``sources``, as rows [N, K] of a layer's inputs.

    Of several matrices, such as experts', the rows lie one below the other, however the weight has them.
    """
    columns = sources[0].shape[-1]
    if any(len(each.shape) < 2 or each.shape[-1] != columns for each in sources):
        return None
    moved = _moves(make, sources)
    joined = _joined([each.blocks() for each in sources]) if moved else None
    if moved is None or joined is None:
        return None
    rows, order = moved
    joined = joined if rows is None else joined.mapped(lambda part: part[rows])
    return joined if order is None else _with_columns(joined, order)


def _moves(make: Callable[..., Tensor], sources: Sequence[GgufTensor]) -> tuple[Tensor | None, Tensor | None] | None:
    """Rows of all sources [N], and columns [K], in the order of the weight; None in place of either that stays as it is."""
    rows, columns, first = [], [], 0
    for source in sources:
        each = torch.arange(first, first + source.rows, dtype=torch.int32).view(*source.shape[:-1], 1)
        rows.append(each.expand(source.shape))
        columns.append(torch.arange(source.shape[-1], dtype=torch.int32).expand(source.shape))
        first += source.rows
    moved_rows = make(*rows)
    if moved_rows is rows[0]:
        return None, None
    moved_columns = make(*columns)
    if moved_rows.dtype != torch.int32 or moved_rows.dim() < 2:
        return None
    if bool((moved_columns[..., 0] == moved_columns[..., -1]).all()):  # inputs are along the other dimension
        moved_rows, moved_columns = moved_rows.transpose(-1, -2), moved_columns.transpose(-1, -2)
    row, column = moved_rows[..., :1], moved_columns.flatten(0, -2)[0]
    if not bool((moved_rows == row).all()) or not bool((moved_columns == column).all()):
        return None
    stays = bool((column == torch.arange(len(column))).all())
    return row.flatten().long(), None if stays else column.long()


def _joined(parts: Sequence[RoundedWeight | None]) -> RoundedWeight | None:
    """The rows of several weights as one of as many bits as the widest; None where their factors are of different forms."""
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    if len(found) == 1:
        return found[0]
    if any(_form(part) != _form(found[0]) for part in found):
        return None
    bits = max(part.bits for part in found)
    wide = [_widened(part, bits) for part in found]
    quanta = torch.cat([part.quanta for part in wide])
    scales, minima, superscales = (
        None if each[0] is None else torch.cat(each) for each in zip(*(part.factors[:3] for part in wide), strict=True)
    )
    factors = Factors(scales, minima, superscales, wide[0].factors.table)
    return RoundedWeight(quanta=quanta, factors=factors, bits=8 * quanta.element_size() if bits > 8 else bits)


def _form(weight: RoundedWeight) -> object:
    factors = weight.factors
    table = None if factors.table is None else tuple(factors.table.tolist())
    return [None if part is None else (part.dtype, part.shape[1]) for part in factors[:3]], table


def _widened(weight: RoundedWeight, bits: int) -> RoundedWeight:
    """The same numbers in more bits; with minima they are counted from the lowest, else from the middle."""
    if bits > 8 or weight.factors.minima is None:
        return replace(weight, bits=bits)
    return replace(weight, quanta=weight.quanta + ((1 << weight.bits) - (1 << bits)) // 2, bits=bits)


def _with_columns(weight: RoundedWeight, order: Tensor) -> RoundedWeight | None:
    """The columns in another order, in which those that share factors stay together; None where they do not.

    Columns of a superblock may part: its factors are there for each part of it then.
    """
    scales, minima, superscales, table = weight.factors
    quanta = weight.quanta[:, order]
    if scales is None:
        return replace(weight, quanta=quanta)
    groups = _groups(order, scales.shape[1])
    if groups is None:
        return None
    if superscales is not None:
        each = 1 if minima is None else 2  # a superblock's numbers
        spread = superscales.unflatten(1, (-1, each))
        while (blocks := _groups(order, spread.shape[1])) is None:
            spread = spread.repeat_interleave(2, dim=1)
        superscales = spread[:, blocks].flatten(1)
    moved = Factors(scales[:, groups], None if minima is None else minima[:, groups], superscales, table)
    return replace(weight, quanta=quanta, factors=moved)


def _groups(order: Tensor, count: int) -> Tensor | None:
    """The order of ``count`` equal groups of columns, if each stays together."""
    parts = order.view(count, -1)
    size = parts.shape[1]
    whole = parts[:, :1] + torch.arange(size)
    return parts[:, 0] // size if parts.equal(whole) and not bool((parts[:, 0] % size).any()) else None


# Entries of config.json that most architectures' metadata give under the same names.


FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""The tokens that end a text, a turn and a message."""

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What every Llama 3 has; a file has only the angles that come of it."""


def common(file: GgufFile, model_type: str) -> dict[str, Any]:
    """Return what every model has."""
    ends = [file.metadata[name] for end in ENDS if (name := f"tokenizer.ggml.{end}") in file.metadata]
    return {
        "model_type": model_type,
        "vocab_size": file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0,
        "hidden_size": file["embedding_length"],
        "num_hidden_layers": layers(file),
        "max_position_embeddings": file["context_length"],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(ends)) or None,
        "pad_token_id": None,
    }


def layers(file: GgufFile) -> int:
    """Return the number of decoder layers, without those that draft further tokens. Raises CheckpointError for absurd ones."""
    count = int(file["block_count"] - (file.get("nextn_predict_layers") or 0))
    if not 1 <= count <= int(file["block_count"]) <= MOST_LAYERS:
        raise CheckpointError(
            f"{file.path} cannot be read as GGUF (it says {count:,} of {file['block_count']:,} layers, expected 1 to "
            f"{MOST_LAYERS}); download it again."
        )
    return count


def attention(file: GgufFile) -> dict[str, Any]:
    """Return heads, their size, and the epsilon of norms. Counts may be lists with an entry for each layer."""
    heads, kv_heads = most(file["attention.head_count"]), most(file["attention.head_count_kv"])
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": file.get("attention.key_length") or file["embedding_length"] // max(heads, 1),
        "rms_norm_eps": file["attention.layer_norm_rms_epsilon"],
    }


def mlp(file: GgufFile) -> dict[str, Any]:
    """Return the width of dense layers, where there are any."""
    width = most(file.get("feed_forward_length") or 0)
    return {"intermediate_size": width} if width else {}


def experts(file: GgufFile) -> dict[str, Any]:
    """Return how many experts there are, how many a token chooses, and their width."""
    return {
        "num_experts": file["expert_count"],
        "num_experts_per_tok": file["expert_used_count"],
        "moe_intermediate_size": file["expert_feed_forward_length"],
    }


def rope(file: GgufFile, partial: bool = False) -> dict[str, Any]:
    """Return the angles' parameters. partial: only the first dimensions of a head turn. Raises UnsupportedModelError."""
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


def _yarn(file: GgufFile, factor: float) -> dict[str, Any]:
    names = {"rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow"}
    original = file["rope.scaling.original_context_length"]
    given = {own: file.get(name) for name, own in names.items() if file.get(name) is not None}
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **given}


def _llama3(file: GgufFile, theta: float) -> dict[str, Any]:
    """Find the parameters that give the file's factors by which angles are slowed down."""
    stored = file.tensors["rope_freqs.weight"].read()
    factor = float(stored.max())
    scaling = {"rope_type": "llama3", "factor": factor, **LLAMA3}
    if not torch.allclose(_slowed_down(len(stored), theta, factor), stored, rtol=1e-4):
        raise UnsupportedModelError(f"{file.path} has angles (rope_freqs.weight) that are not scaled as Llama 3's are.")
    return scaling


def _slowed_down(count: int, theta: float, factor: float) -> Tensor:
    """Return by how much each angle is slower. Source: transformers 5.23 ``_compute_llama3_parameters``."""
    low, high, original = LLAMA3.values()
    turns = original / (2 * math.pi * theta ** (torch.arange(count) / count))
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - share) / factor + share)


def by_period(file: GgufFile, period: int) -> list[str]:
    """Return layer types: linear attention, and every ``period``-th layer full attention."""
    return [LINEAR if (i + 1) % period else FULL for i in range(layers(file))]


def of_layers(value: Any, file: GgufFile) -> list[Any]:
    """Return a list with an entry for each layer of a count that may be one for all."""
    return list(value)[: layers(file)] if isinstance(value, list) else [value] * layers(file)


def most(count: Any) -> int:
    """Return a count that may be a list with an entry for each layer."""
    return int(max(count)) if isinstance(count, list) else int(count)


def has(file: GgufFile, end: str) -> bool:
    """Whether any layer has a tensor whose name ends so."""
    return any(name.startswith("blk.") and name.endswith(end) for name in file.tensors)


# What a GGUF architecture is in transformers.


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """config: a file to the entries of its config.json; layer: the weights of a decoder layer; model: the others.

    prefix: what the names of a layer's weights begin with, before its number.
    """

    config: Callable[[GgufFile], dict[str, Any]]
    layer: tuple[Weight, ...]
    model: tuple[Weight, ...]
    prefix: str = "model.layers"
