"""A small hybrid made by hand as an ONNX artifact, and the same in PyTorch, token by token.

One gated delta layer and one of attention, with odd sizes; what ``hybridge export --format onnx`` writes of a checkpoint has
this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor
from torch.nn import functional as F

from hybridge.runtime.artifacts.artifact import file_entry
from hybridge.runtime.artifacts.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    ONNX_COMMIT,
    ONNX_PROGRAM,
    ONNX_WEIGHTS,
    LayerEntry,
    Manifest,
    MethodEntry,
    OnnxEntry,
    OnnxStaged,
    OnnxStateEntry,
    TensorEntry,
)
from hybridge.runtime.artifacts.options import ExportOptions

VOCABULARY, HIDDEN = 131, 24
H, K, V = 3, 7, 5  # heads of the gated delta layer
QUERIES, HEADS, HEAD = 4, 2, 8  # of attention
KERNEL = 4
CHANNELS = H * (2 * K + V)
SPLITS = [H * K, H * K, H * V]
SHAPES = {
    "embed": (VOCABULARY, HIDDEN), "mixed": (HIDDEN, CHANNELS), "taps": (CHANNELS, 1, KERNEL), "decay": (HIDDEN, H),
    "beta": (HIDDEN, H), "out": (H * V, HIDDEN), "query": (HIDDEN, QUERIES * HEAD), "key": (HIDDEN, HEADS * HEAD),
    "value": (HIDDEN, HEADS * HEAD), "attended": (QUERIES * HEAD, HIDDEN), "head": (HIDDEN, VOCABULARY),
}  # fmt: skip
STATES = {"0.conv_state": (KERNEL - 1, CHANNELS), "0.recurrent_state": (H, K, V)}
STAGED = {"0.conv_input": (CHANNELS,), "0.key": (H * K,), "0.value": (H * V,), "0.decay": (H,), "0.beta": (H,)}
FUSED = ("CausalConvWithState", "GroupQueryAttention", "LinearAttention")
OPTIONS = ExportOptions(format="onnx", max_seq_len=96, prefill_chunk=17, verify_len=5, shorter_verify_lens=(2,))


def _weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator) / (shape[0] if len(shape) == 2 and name != "embed" else 2) ** 0.5
        for name, shape in SHAPES.items()
    }


WEIGHTS = _weights()


def uncached(w: dict[str, Tensor], tokens: Sequence[int]) -> Tensor:
    """Logits [T, V] by the textbook: the whole text at once."""
    x = w["embed"][torch.tensor(list(tokens))]
    x = x + _gated_delta(w, x) @ w["out"]
    x = x + _attention(w, x) @ w["attended"]
    return x @ w["head"]


def _gated_delta(w: dict[str, Tensor], x: Tensor) -> Tensor:
    mixed = F.pad((x @ w["mixed"]).T[None], (KERNEL - 1, 0))
    q, k, v = F.silu(F.conv1d(mixed, w["taps"], groups=CHANNELS))[0].T.split(SPLITS, dim=-1)
    q, k = (F.normalize(each.unflatten(-1, (H, K)), dim=-1) for each in (q, k))
    v, decay, beta = v.unflatten(-1, (H, V)), (-F.softplus(x @ w["decay"])).exp(), torch.sigmoid(x @ w["beta"])
    state, rows = torch.zeros(H, K, V), []
    for t in range(len(x)):
        state = state * decay[t, :, None, None]
        new = (v[t] - torch.einsum("hk,hkv->hv", k[t], state)) * beta[t, :, None]
        state = state + torch.einsum("hk,hv->hkv", k[t], new)
        rows.append(torch.einsum("hk,hkv->hv", q[t], state).flatten() / K**0.5)
    return torch.stack(rows)


def _attention(w: dict[str, Tensor], x: Tensor) -> Tensor:
    q, k, v = ((x @ w[name]).unflatten(-1, (-1, HEAD)).transpose(0, 1)[None] for name in ("query", "key", "value"))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1).flatten(1)


def save_small_onnx(folder: Path, w: dict[str, Tensor], options: ExportOptions = OPTIONS) -> None:
    """Write the artifact."""
    folder.mkdir(exist_ok=True)
    onnx.save_model(_program(w), folder / ONNX_PROGRAM, save_as_external_data=True, location=ONNX_WEIGHTS)
    onnx.save_model(_commit(), folder / ONNX_COMMIT)
    (folder / MANIFEST).write_text(_manifest(folder, options).to_json())


def _program(w: dict[str, Tensor]) -> onnx.ModelProto:
    gates = ["staged.0.decay", "staged.0.beta"]
    nodes = [
        helper.make_node("Gather", ["embed", "input_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "mixed"], ["staged.0.conv_input"]),
        helper.make_node(
            "CausalConvWithState",
            ["staged.0.conv_input", "taps", "", "past_key_values.0.conv_state"],
            ["convolved", "present.0.conv_state"],
            domain="com.microsoft",
            activation="silu",
            channels_last=1,
        ),
        helper.make_node("Split", ["convolved", "splits"], ["q", "k", "staged.0.value"], axis=-1),
        *_normalized("q", "query_norm"),
        *_normalized("k", "staged.0.key"),
        helper.make_node("MatMul", ["x", "decay"], ["d"]),
        helper.make_node("Softplus", ["d"], ["soft"]),
        helper.make_node("Neg", ["soft"], ["staged.0.decay"]),
        helper.make_node("MatMul", ["x", "beta"], ["b"]),
        helper.make_node("Sigmoid", ["b"], ["staged.0.beta"]),
        _recurrence(["query_norm", "staged.0.key", "staged.0.value", "past_key_values.0.recurrent_state", *gates], "mixer"),
        helper.make_node("MatMul", ["mixer", "out"], ["o"]),
        helper.make_node("Add", ["x", "o"], ["y"]),
        *(helper.make_node("MatMul", ["y", name], [f"a_{name}"]) for name in ("query", "key", "value")),
        helper.make_node("Shape", ["attention_mask"], ["total64"], start=1, end=2),
        helper.make_node("Cast", ["total64"], ["total1"], to=TensorProto.INT32),
        helper.make_node("Sub", ["total1", "one32"], ["seqlens_k"]),
        helper.make_node("Squeeze", ["total1"], ["total"]),
        helper.make_node(
            "GroupQueryAttention",
            ["a_query", "a_key", "a_value", "past_key_values.1.key", "past_key_values.1.value", "seqlens_k", "total"],
            ["attn", "present.1.key", "present.1.value"],
            domain="com.microsoft",
            num_heads=QUERIES,
            kv_num_heads=HEADS,
        ),
        helper.make_node("MatMul", ["attn", "attended"], ["r"]),
        helper.make_node("Add", ["y", "r"], ["z"]),
        helper.make_node("Unsqueeze", ["first_logit", "zero"], ["first"]),
        helper.make_node("Slice", ["z", "first", "many", "one"], ["last"]),
        helper.make_node("MatMul", ["last", "head"], ["logits"]),
    ]
    constants = {
        "first_logit": np.array(0), "zero": np.array([0]), "one": np.array([1]), "many": np.array([2**62]),
        "splits": np.array(SPLITS), "one32": np.array([1], np.int32), "heads_k": np.array([0, 0, H, K]),
        "flat_k": np.array([0, 0, H * K]), "q_last": np.array([-1]), "tiny": np.array(1e-12, np.float32),
    }  # fmt: skip
    key_values = [f"1.{name}" for name in ("key", "value")]
    inputs = [
        _info("input_ids", 1, "T", dtype=TensorProto.INT64),
        _info("attention_mask", 1, "P + T", dtype=TensorProto.INT64),
        *(_info(f"past_key_values.{name}", 1, *shape) for name, shape in STATES.items()),
        *(_info(f"past_key_values.{name}", 1, HEADS, "R", HEAD) for name in key_values),
        _info("first_logit", dtype=TensorProto.INT64),
    ]
    outputs = [
        _info("logits", 1, "L", VOCABULARY),
        *(_info(f"present.{name}", 1, *shape) for name, shape in STATES.items()),
        *(_info(f"present.{name}", 1, HEADS, "R", HEAD) for name in key_values),
        *(_info(f"staged.{name}", 1, "T", *shape) for name, shape in STAGED.items()),
    ]
    return _model(nodes, inputs, outputs, constants, w)


def _commit() -> onnx.ModelProto:
    states = {name: f"past_key_values.{name}" for name in STATES}
    names = ["0.key", "0.key", "0.value", "0.recurrent_state", "0.decay", "0.beta"]
    nodes = [
        *(helper.make_node("Slice", [f"staged.{name}", "zero", "count", "one"], [name]) for name in STAGED),
        helper.make_node("Concat", [states["0.conv_state"], "0.conv_input"], ["window"], axis=1),
        helper.make_node("Slice", ["window", "keep", "many", "one"], ["present.0.conv_state"]),
        _recurrence([states.get(name, name) for name in names], "unused"),
    ]
    constants = {
        "zero": np.array([0]), "one": np.array([1]), "keep": np.array([1 - KERNEL]), "many": np.array([2**62]),
    }  # fmt: skip
    inputs = [
        _info("count", 1, dtype=TensorProto.INT64),
        *(_info(f"past_key_values.{name}", 1, *shape) for name, shape in STATES.items()),
        *(_info(f"staged.{name}", 1, "T", *shape) for name, shape in STAGED.items()),
    ]
    return _model(nodes, inputs, [_info(f"present.{name}", 1, *shape) for name, shape in STATES.items()], constants, {})


def _recurrence(inputs: list[str], output: str) -> onnx.NodeProto:
    """inputs: query, key, value, state, decay (its logarithm), beta."""
    return helper.make_node(
        "LinearAttention", inputs, [output, "present.0.recurrent_state"],
        domain="com.microsoft", q_num_heads=H, kv_num_heads=H, update_rule="gated_delta",
    )  # fmt: skip


def _normalized(name: str, output: str) -> list[onnx.NodeProto]:
    """Each head's K numbers to length 1."""
    return [
        helper.make_node("Reshape", [name, "heads_k"], [f"{name}_heads"]),
        helper.make_node("ReduceL2", [f"{name}_heads", "q_last"], [f"{name}_length"]),
        helper.make_node("Max", [f"{name}_length", "tiny"], [f"{name}_safe"]),
        helper.make_node("Div", [f"{name}_heads", f"{name}_safe"], [f"{name}_unit"]),
        helper.make_node("Reshape", [f"{name}_unit", "flat_k"], [output]),
    ]


def _info(name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray],
    w: dict[str, Tensor],
) -> onnx.ModelProto:
    values = {name: each.numpy() for name, each in w.items()} | constants
    graph = helper.make_graph(nodes, "small", inputs, outputs, [onnx.numpy_helper.from_array(v, n) for n, v in values.items()])
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def _manifest(folder: Path, options: ExportOptions) -> Manifest:
    rows = (HEADS, options.max_seq_len, HEAD)
    bounded = [OnnxStateEntry(name=name, kind="bounded", **_entry(shape)) for name, shape in STATES.items()]
    positional = [OnnxStateEntry(name=f"1.{name}", kind="positional", **_entry(rows)) for name in ("key", "value")]
    staged = [OnnxStaged(name=name, **_entry((options.verify_len, *shape))) for name, shape in STAGED.items()]
    files = (ONNX_PROGRAM, ONNX_WEIGHTS, ONNX_COMMIT, "tokenizer.json")
    return Manifest(
        format_version=FORMAT_VERSION,
        model_type="small",
        vocab_size=VOCABULARY,
        bos_id=None,
        eos_ids=[],
        weight_bytes=(folder / ONNX_WEIGHTS).stat().st_size,
        options=options,
        layers=[_layer("gated_delta_net", bounded), _layer("full_attention", positional)],
        methods=_methods(options),
        files={name: file_entry(folder / name) for name in files if (folder / name).exists()},
        versions={},
        onnx=OnnxEntry(
            opset=24,
            contrib_operators=[f"com.microsoft::{name}" for name in FUSED],
            states=[*bounded, *positional],
            staged=staged,
        ),
    )  # fmt: skip


def _entry(shape: tuple[int, ...]) -> dict[str, object]:
    return {"shape": [1, *shape], "dtype": "float32"}


def _layer(kind: str, states: list[OnnxStateEntry]) -> LayerEntry:
    buffers = {each.name.split(".")[1]: TensorEntry(shape=each.shape, dtype=each.dtype) for each in states}
    size = 4 * sum(int(np.prod(each.shape)) for each in states)
    return LayerEntry(kind=kind, buffers=buffers, state_bytes=size, rollback_bytes=0, slot_bytes=0)


def _methods(options: ExportOptions) -> dict[str, MethodEntry]:
    def tokens(count: int) -> TensorEntry:
        return TensorEntry(shape=[1, count], dtype="int64")

    def logits(count: int) -> TensorEntry:
        return TensorEntry(shape=[1, count, VOCABULARY], dtype="float32")

    number = TensorEntry(shape=[1], dtype="int64")
    signatures = {
        "prefill": ([tokens(options.prefill_chunk), number], logits(1)),
        "decode": ([tokens(1)], logits(1)),
        "verify": ([tokens(options.verify_len)], logits(options.verify_len)),
        **{f"verify_{count}": ([tokens(count)], logits(count)) for count in options.shorter_verify_lens},
        **{name: ([number], number) for name in ("commit", "snapshot", "restore")},
        "reset": ([], number),
        "forward": ([tokens(1), number], logits(1)),
    }
    return {
        name: MethodEntry(inputs=inputs, outputs=[output], operators=[], delegates={})
        for name, (inputs, output) in signatures.items()
    }
