"""Each quantized form of docs/checkpoints.md is decoded to the numbers that another reader than ours finds in the same bits.

The bits are drawn, not packed, so that nothing here knows how our decoders expect them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from checkout import CHECKOUT
from form_readers import (
    read_awq,
    read_blocks,
    read_compressed,
    read_compressed_nvfp4,
    read_eight_bits,
    read_four_bits,
    read_gptq,
    read_mxfp4,
    read_nvfp4,
    read_rows,
)
from torch import Tensor

from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.source.quantization import Quantization, dequantized
from hybridge.export.source.quantization_methods import METHODS

STEM = "model.layers.0.mlp.down_proj"
Parts = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A form: its config, stored parts of one weight with drawn bits, and the reader that says which numbers they are.

    row: the first words of the form's row in docs/checkpoints.md; names: its names in code there. stem: of the weight's name
    without ``.weight``, which few forms keep.
    """

    row: str
    names: tuple[str, ...]
    config: dict[str, Any]
    parts: Callable[[], Parts]
    read: Callable[[Parts], Tensor]
    weight: str = f"{STEM}.weight"
    others: dict[str, Tensor] = field(default_factory=dict)


def words(*shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32)


def bytes_of(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def scales(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return (torch.rand(shape) + 0.5).to(dtype)


def fp8(*shape: int) -> Tensor:
    return torch.randn(shape).clamp(-400, 400).to(torch.float8_e4m3fn)


# GPTQ, AutoRound, AWQ


def integers(rows: int, columns: int, bits: int, group: int, *, order: bool = False) -> Parts:
    groups = -(-columns // group)
    found = {
        ".qweight": words(columns * bits // 32, rows),
        ".qzeros": words(groups, rows * bits // 32),
        ".scales": scales(groups, rows),
    }
    return found | ({".g_idx": torch.randperm(columns).int() // group} if order else {})


def gptq(
    row: str, name: str, config: dict[str, Any], *, bits: int = 4, columns: int = 192, minus_one: bool, order: bool = False
) -> Case:
    """192 columns are a group of 128 and a rest."""
    return Case(
        row=row,
        names=(name,) if name else (),
        config={"bits": bits, "group_size": 128, "quant_method": "gptq", **config},
        parts=lambda: integers(32, columns, bits, 128, order=order),
        read=lambda parts: read_gptq(parts, bits, 128, minus_one=minus_one),
    )


def auto_round(name: str, *, minus_one: bool, **config: Any) -> Case:
    named = {"quant_method": "auto-round", **({"packing_format": name} if name else {}), **config}
    return gptq("AutoRound", name.removesuffix(":exllamav2"), named, minus_one=minus_one)


def awq(row: str, name: str, config: dict[str, Any]) -> Case:
    return Case(
        row=row,
        names=(name,),
        config={"bits": 4, "group_size": 128, **config},
        parts=lambda: {".qweight": words(192, 4), ".qzeros": words(2, 4), ".scales": scales(2, 32)},
        read=lambda parts: read_awq(parts, 128),
    )


INTEGERS = {
    "gptq": gptq("GPTQ", "gptq", {}, minus_one=True),
    "gptq version 1": gptq("GPTQ", "gptq", {"checkpoint_format": "gptq"}, minus_one=True),
    "gptq version 2": gptq("GPTQ", "gptq_v2", {"checkpoint_format": "gptq_v2"}, minus_one=False),
    "gptq version 2 in the new field": gptq("GPTQ", "gptq_v2", {"format": "gptq_v2"}, minus_one=False),
    "gptq in both fields": gptq("GPTQ", "", {"format": "gptq_v2", "checkpoint_format": "gptq_v2"}, minus_one=False),
    "gptq in 2 bits": gptq("GPTQ", "", {}, bits=2, minus_one=True),
    "gptq in 8 bits": gptq("GPTQ", "", {}, bits=8, minus_one=True),
    "gptq with desc_act": gptq("GPTQ", "desc_act", {"desc_act": True}, minus_one=True, order=True),
    "gptq with a layer of 8 bits": gptq(
        "GPTQ", "dynamic", {"bits": 4, "dynamic": {"+:.*down_proj": {"bits": 8}}}, bits=8, minus_one=True
    ),
    "gptq in one group": gptq("GPTQ", "", {"group_size": -1}, columns=96, minus_one=True),
    "auto-round": auto_round("", minus_one=True),
    "auto_round": auto_round("auto_round", minus_one=False),
    "auto_round for exllamav2": auto_round("auto_round:exllamav2", minus_one=False),
    "auto_round:gptqmodel": auto_round("auto_round:gptqmodel", minus_one=False),
    "auto_round:gptq": auto_round("auto_round:gptq", minus_one=True),
    "auto_round:auto_gptq": auto_round("auto_round:auto_gptq", minus_one=True),
    "auto_round:auto_gptq for exllamav2": auto_round("auto_round:auto_gptq:exllamav2", minus_one=True),
    "auto_round:auto_awq": awq(
        "AutoRound", "auto_round:auto_awq", {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}
    ),
    "auto-round with a layer of 8 bits": gptq(
        "AutoRound",
        "",
        {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round", "extra_config": {STEM: {"bits": 8}}},
        bits=8,
        minus_one=False,
    ),
    "awq": awq("AWQ", "gemm", {"quant_method": "awq", "version": "GEMM", "zero_point": True}),
}

# Floating-point numbers


def blocks(rows: int, columns: int, dtype: torch.dtype = torch.float32, **config: Any) -> Case:
    shape = (-(-rows // 128), -(-columns // 128))
    own = scales(*shape, dtype=dtype) if dtype.is_floating_point else torch.randint(120, 130, shape, dtype=dtype)
    return Case(
        row="FP8",
        names=("fp8",),
        config={"quant_method": "fp8", "weight_block_size": [128, 128], **config},
        parts=lambda: {".weight": fp8(rows, columns), ".weight_scale_inv": own},
        read=lambda parts: read_blocks(parts, ".weight", ".weight_scale_inv", (128, 128)),
    )


def rows_of_fp8(row: str, name: str, end: str, config: dict[str, Any], shape: tuple[int, ...]) -> Case:
    return Case(
        row=row,
        names=(name,),
        config=config,
        parts=lambda: {".weight": fp8(48, 64), end: scales(*shape, dtype=torch.bfloat16)},
        read=lambda parts: read_rows(parts, ".weight", end),
    )


def nvfp4(algorithm: str, **others: Callable[[], Tensor]) -> Case:
    return Case(
        row="NVIDIA ModelOpt",
        names=(algorithm,),
        config={"quant_method": "modelopt", "quant_algo": algorithm},
        parts=lambda: {
            ".weight": bytes_of(48, 32),
            ".weight_scale": scales(48, 4).to(torch.float8_e4m3fn),
            ".weight_scale_2": torch.tensor(0.01),
            **{f".{end}": draw() for end, draw in others.items()},
        },
        read=read_nvfp4,
    )


WHOLE = {"quant_method": "fp8", "weight_block_size": None}
FLOATS = {
    "fp8": blocks(256, 384),
    "fp8 of one column of blocks": blocks(192, 128),
    "fp8 of one row of blocks": blocks(128, 192),
    "fp8 of blocks that end early": blocks(336, 200),
    "fp8 of a tall column": blocks(2880, 128),
    "fp8 with scales in 8 bits": blocks(192, 128, torch.uint8, scale_fmt="ue8m0"),
    "fp8 whole": rows_of_fp8("FP8", "fp8", ".weight_scale_inv", WHOLE, ()),
    "fp8 by rows": rows_of_fp8("FP8", "fp8", ".weight_scale_inv", WHOLE, (48, 1)),
    "fbgemm": rows_of_fp8("FP8", "fbgemm_fp8", ".weight_scale", {"quant_method": "fbgemm_fp8"}, (48, 1)),
    "modelopt fp8": rows_of_fp8(
        "NVIDIA ModelOpt", "FP8", ".weight_scale", {"quant_method": "modelopt", "quant_algo": "FP8"}, ()
    ),
    "nvfp4": nvfp4("NVFP4"),
    "nvfp4 with scales of inputs": nvfp4("NVFP4_AWQ", pre_quant_scale=lambda: scales(64, dtype=torch.float32)),
    "mxfp4": Case(
        row="MXFP4",
        names=(),
        config={"quant_method": "mxfp4"},
        parts=lambda: {"_blocks": bytes_of(3, 40, 2, 16), "_scales": torch.randint(120, 130, (3, 40, 2), dtype=torch.uint8)},
        read=read_mxfp4,
        weight=STEM,
    ),
}

# bitsandbytes

TABLE = torch.linspace(-1, 1, 16)


def four_bits(name: str, kind: str, nested: bool) -> Case:
    def parts() -> Parts:
        state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": [30, 32]}
        found = {".weight": bytes_of(480, 1), ".weight.quant_map": TABLE, ".weight.absmax": scales(15, dtype=torch.float32)}
        if nested:
            state |= {"nested_blocksize": 8, "nested_dtype": "float32", "nested_offset": 0.25}
            found[".weight.absmax"] = bytes_of(15)
            found[".weight.nested_absmax"] = scales(2, dtype=torch.float32)
            found[".weight.nested_quant_map"] = torch.linspace(-1, 1, 256)
        content = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        return found | {f".weight.quant_state.bitsandbytes__{kind}": content}

    return Case(
        row="bitsandbytes",
        names=(name,),
        config={"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind},
        parts=parts,
        read=read_four_bits,
    )


BITSANDBYTES = {
    "nf4": four_bits("NF4", "nf4", nested=False),
    "nf4 nested": four_bits("NF4", "nf4", nested=True),
    "fp4": four_bits("FP4", "fp4", nested=False),
    "llm.int8": Case(
        row="bitsandbytes",
        names=("LLM.int8",),
        config={"quant_method": "bitsandbytes", "load_in_8bit": True},
        parts=lambda: {
            ".weight": torch.randint(-127, 128, (48, 64), dtype=torch.int8),
            ".SCB": scales(48, dtype=torch.float32),
        },
        read=read_eight_bits,
    ),
}

# compressed-tensors


def compressed(
    name: str, weights: dict[str, Any], parts: Callable[[], Parts], read: Callable[[Parts], Tensor] | None = None
) -> Case:
    group = {"targets": ["Linear"], "weights": {"dynamic": False, "symmetric": True, **weights}}
    config = {"quant_method": "compressed-tensors", "format": name, "config_groups": {"group_0": group}}
    own = read or (lambda parts: read_compressed(parts, config))
    return Case(row="compressed-tensors", names=(name,), config=config, parts=parts, read=own)


def packed(bits: int, groups: int, *, zeros: bool = False) -> Parts:
    found = {
        ".weight_packed": words(32, 64 * bits // 32),
        ".weight_scale": scales(32, groups, dtype=torch.bfloat16),
        ".weight_shape": torch.tensor([32, 64]),
    }
    return found | ({".weight_zero_point": words(32 * bits // 32, groups)} if zeros else {})


def int8(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


INT = {"type": "int", "num_bits": 8}
COMPRESSED = {
    **{
        f"int{bits}": compressed(
            "pack-quantized",
            {"type": "int", "num_bits": bits, "strategy": "group", "group_size": 32},
            lambda bits=bits: packed(bits, 2),
        )
        for bits in (2, 4, 8)
    },
    "int4 by rows": compressed("pack-quantized", {"type": "int", "num_bits": 4, "strategy": "channel"}, lambda: packed(4, 1)),
    "int4 asymmetric": compressed(
        "pack-quantized",
        {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
        lambda: packed(4, 2, zeros=True),
    ),
    "int8 by rows": compressed(
        "int-quantized",
        {**INT, "strategy": "channel"},
        lambda: {".weight": int8(48, 64), ".weight_scale": scales(48, 1, dtype=torch.bfloat16)},
    ),
    "int8 asymmetric by rows": compressed(
        "int-quantized",
        {**INT, "strategy": "channel", "symmetric": False},
        lambda: {".weight": int8(48, 64), ".weight_scale": scales(48, 1), ".weight_zero_point": int8(48, 1)},
    ),
    "int8 asymmetric whole": compressed(
        "int-quantized",
        {**INT, "strategy": "tensor", "symmetric": False},
        lambda: {".weight": int8(48, 64), ".weight_scale": scales(1), ".weight_zero_point": int8(1)},
    ),
    "int8 in the plain format": compressed(
        "naive-quantized",
        {**INT, "strategy": "group", "group_size": 32},
        lambda: {".weight": int8(48, 64), ".weight_scale": scales(48, 2)},
    ),
    "compressed fp8 by rows": compressed(
        "float-quantized",
        {"type": "float", "num_bits": 8, "strategy": "channel"},
        lambda: {".weight": fp8(48, 64), ".weight_scale": scales(48, 1, dtype=torch.bfloat16)},
    ),
    "compressed fp8 by blocks": compressed(
        "float-quantized",
        {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
        lambda: {".weight": fp8(192, 128), ".weight_scale": scales(2, 1, dtype=torch.bfloat16)},
    ),
    "compressed nvfp4": compressed(
        "nvfp4-pack-quantized",
        {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16},
        lambda: {
            ".weight_packed": bytes_of(48, 32),
            ".weight_scale": scales(48, 4).to(torch.float8_e4m3fn),
            ".weight_global_scale": torch.tensor([3.5]),
        },
        read_compressed_nvfp4,
    ),
    "compressed mxfp4": compressed(
        "mxfp4-pack-quantized",
        {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
        lambda: {".weight_packed": bytes_of(48, 32), ".weight_scale": torch.randint(120, 130, (48, 2), dtype=torch.uint8)},
    ),
}

CASES: Mapping[str, Case] = {**INTEGERS, **FLOATS, **BITSANDBYTES, **COMPRESSED}


def decoded(case: Case, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors of a checkpoint with this one weight."""
    quantization = Quantization(method=METHODS[case.config["quant_method"]], config=case.config)
    quantization.check_fields()
    found = dequantized({f"{STEM}{end}": part for end, part in parts.items()}, quantization)
    return {name: each[...] for name, each in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_form_is_the_numbers_that_another_reader_finds(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    parts = case.parts()
    want = case.read(parts)
    assert want.isfinite().all()
    assert want.unique().numel() > 40
    ours = decoded(case, parts)
    assert list(ours) == [case.weight]
    torch.testing.assert_close(ours[case.weight], want, rtol=1e-6, atol=0)  # for the order of products


# The table: each form that the document names has a reader

ELSEWHERE = {
    "safetensors": "the tensors themselves, saved by PyTorch: test_bad_checkpoints.py, test_checkpoint_forms.py",
    "GGUF": "the gguf package's dequantize, by blocks: test_gguf_blocks.py",
    "torchao": "torchao's own tensors before they were stored: test_quantized_checkpoints.py",
    "LoRA": "peft's own forward over the base model: test_adapters.py",
}
"""Readers of the forms that other tests see, by the first word of their row."""
NO_NUMBERS = ("a model on the hub", "a multimodal folder", "a model of attention alone")


def rows_of_the_document() -> list[str]:
    text = (CHECKOUT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    table = text.partition("| what you have |")[2].partition("\n\n")[0].splitlines()[2:]
    return [line.split(" | ")[0].removeprefix("| ").replace("[", "").replace("](#gguf)", "") for line in table]


def names_in(row: str) -> list[str]:
    """The names in code of a row, without options and the names of tensors."""
    return [name for name in re.findall(r"`([^`]+)`", row) if not name.startswith("--")]


def test_each_form_of_the_document_has_a_reader() -> None:
    readers: dict[str, set[str]] = {}
    for case in CASES.values():
        readers.setdefault(case.row, set()).update(case.names)
    rows = [row for row in rows_of_the_document() if not row.startswith(NO_NUMBERS)]
    assert len(rows) >= 11
    for row in rows:
        if not row.startswith(tuple(ELSEWHERE)):
            (family,) = (each for each in readers if row.startswith(each))
            assert readers.pop(family) == {*names_in(row)}, row
    assert not readers


# What is not read is refused by name


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        ("auto_round", {"packing_format": "auto_round:llm_compressor"}, "packing_format = 'auto_round:llm_compressor'"),
        ("auto_round", {"packing_format": "auto_round:gptqmodel2"}, "packing_format = 'auto_round:gptqmodel2'"),
        ("auto_round", {"packing_format": 3}, "packing_format = 3"),
        ("auto_round", {"data_type": "mx_fp"}, "data_type = 'mx_fp'"),
        ("auto_round", {"super_bits": 6}, "super_bits = 6"),
        ("auto_round", {"rotation_config": {"size": 4}}, "rotation_config = "),
        ("gptq", {"checkpoint_format": "gptq_v3"}, "checkpoint_format = 'gptq_v3'.*it reads 'gptq', 'gptq_v2'"),
        ("gptq", {"format": "marlin"}, "format = 'marlin'"),
        ("gptq", {"format": "gptq_v2", "checkpoint_format": "gptq"}, "they disagree"),
        ("gptq", {"pack_dtype": "int16"}, "pack_dtype = 'int16'"),
        ("gptq", {"is_marlin_format": True}, "is_marlin_format = True"),
        ("gptq", {"rotation": "hadamard"}, "rotation = 'hadamard'"),
        ("gptq", {"adapter": {"rank": 4}}, "adapter = "),
        ("awq", {"format": "gemv_fast"}, "layout 'gemv_fast'"),
        ("awq", {"backend": "llm-awq"}, "backend = 'llm-awq'"),
        ("fp8", {"expert_dtype": "fp4"}, "expert_dtype = 'fp4'"),
        ("fp8", {"weight_block_size": [0, 128]}, r"weight_block_size = \[0, 128\]"),
        ("fp8", {"weight_block_size": "128"}, "weight_block_size = '128'"),
        ("fp8", {"zero_points": True}, "zero_points = True"),
        ("nvfp4", {"quant_algo": "NVFP4_SVD"}, "NVIDIA ModelOpt's NVFP4_SVD"),
        ("int4 by rows", {"config_groups": {"W4A16": ["Linear"]}}, "config_groups = "),
        ("int4 by rows", {"transform_config": {"config_groups": {"R1": {}}}}, "after a transform"),
        ("nf4", {"codebook": "own"}, "codebook = 'own'"),
    ],
    ids=str,
)
def test_a_field_that_no_reader_knows_is_refused(form: str, changes: dict[str, Any], message: str) -> None:
    case = CASES[form]
    changed = Case(
        row=case.row, names=(), config={**case.config, **changes}, parts=case.parts, read=case.read, weight=case.weight
    )
    with pytest.raises(UnsupportedModelError, match=message):
        decoded(changed, case.parts())


@pytest.mark.parametrize("bits", [1, 3, 5, 6, 7])
def test_packed_bits_that_cross_words_are_refused(bits: int) -> None:
    """Versions before 0.15 left bits of a word unused: 7 bits then lie as 8 do."""
    case = CASES["int8"]
    weights = case.config["config_groups"]["group_0"]["weights"]
    config = {**case.config, "config_groups": {"group_0": {"weights": {**weights, "num_bits": bits}}}}
    with pytest.raises(UnsupportedModelError, match=f"num_bits = {bits}, which hybridge does not read .it reads 2, 4, 8."):
        decoded(Case(row="", names=(), config=config, parts=case.parts, read=case.read), case.parts())


@pytest.mark.parametrize(
    ("form", "end", "drawn"),
    [
        ("int4 by rows", ".weight_global_scale", torch.tensor([2.0])),
        ("compressed nvfp4", ".weight_zero_point", torch.zeros(48, 4)),
        ("modelopt fp8", ".weight_scale_2", torch.tensor(2.0)),
    ],
)
def test_a_part_that_no_reader_knows_is_refused(form: str, end: str, drawn: Tensor) -> None:
    case = CASES[form]
    parts = case.parts()
    with pytest.raises(UnsupportedModelError, match=rf"{STEM}{end} is a part of a weight that hybridge cannot read"):
        decoded(case, parts | {end: drawn})


def test_columns_of_awq_are_in_the_order_of_their_groups() -> None:
    case = CASES["awq"]
    parts, order = case.parts(), torch.arange(192, dtype=torch.int32) // 128
    torch.testing.assert_close(decoded(case, parts | {".g_idx": order})[case.weight], case.read(parts), rtol=1e-6, atol=0)
    with pytest.raises(CheckpointError, match="groups of columns in another order"):
        decoded(case, parts | {".g_idx": order.flip(0)})


@pytest.mark.parametrize(
    ("form", "shape"), [("fp8", (2, 2)), ("fp8", (256, 2)), ("fp8 of one column of blocks", (1, 2)), ("nvfp4", (48, 3))]
)
def test_scales_of_other_blocks_are_refused(form: str, shape: tuple[int, int]) -> None:
    case = CASES[form]
    parts = case.parts()
    (end,) = (end for end in parts if end in (".weight_scale_inv", ".weight_scale"))
    with pytest.raises(CheckpointError, match=r"is not stored as .* scales or zero points of .* for a weight of"):
        decoded(case, parts | {end: scales(*shape, dtype=torch.float32).to(parts[end].dtype)})


def test_groups_that_may_be_of_two_sizes_are_refused() -> None:
    """192 columns in two groups are 128 and 64, or twice 96."""
    case = CASES["gptq"]
    config = {**case.config, "dynamic": {"+:.*up_proj": {"group_size": 96}}}
    with pytest.raises(CheckpointError, match="may be of several sizes of blocks"):
        decoded(Case(row="", names=(), config=config, parts=case.parts, read=case.read), case.parts())
