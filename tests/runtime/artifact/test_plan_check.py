"""Programs of which the runtime would take its word for what is not so are refused before it sees them.

ExecuTorch ended the process in ten of 2,000 programs of which a few bytes were changed: an operator's index beyond the table, a
number where a kernel takes a list, a tensor without memory, a name that is no text. Each is one of these. In one of 765 more a
kernel of ours wrote into a constant of the mapped file.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
from executorch.exir.schema import (
    DelegateCall,
    Instruction,
    Int,
    IntList,
    JumpFalseCall,
    KernelCall,
    OptionalTensorList,
    Tensor,
    TensorList,
)
from forgery import forge

from hybridge.errors import ArtifactError
from hybridge.export.lower.lower import quiet
from hybridge.export.pinned.executorch import HEAD_BYTES, read_header, read_program, write_program
from hybridge.runtime import Session
from hybridge.runtime.artifact.folder import CheckedFile, file_entry
from hybridge.runtime.artifact.manifest import PROGRAM, read_manifest
from hybridge.runtime.artifact.plan_check import check_plans
from hybridge.runtime.kernels import library
from hybridge.runtime.pinned import arguments_of

Change = Callable[[Any], object]


def decode(program: Any, method: str = "decode") -> Any:
    """The plan of this method, or of another."""
    return next(plan for plan in program.execution_plan if plan.name == f"hybridge_{method}")


def call(program: Any, operator: str = "aten::", kind: type = KernelCall, method: str = "decode") -> Any:
    """The first call of such an operator, or of a backend."""
    plan = decode(program, method)
    calls = [each.instr_args for chain in plan.chains for each in chain.instructions if isinstance(each.instr_args, kind)]
    return next(each for each in calls if kind is not KernelCall or plan.operators[each.op_index].name.startswith(operator))


def value(program: Any, kind: type) -> Any:
    """The first value of a kind."""
    return next(each.val for each in decode(program).values if isinstance(each.val, kind))


def place(program: Any, kind: type) -> int:
    """Where it stands."""
    return next(i for i, each in enumerate(decode(program).values) if isinstance(each.val, kind))


def without_memory(program: Any) -> None:
    tensor = value(program, Tensor)
    tensor.data_buffer_idx, tensor.allocation_info = 0, None


def as_constant(plan: Any, tensor: int) -> None:
    """Have the tensor at this place be some data of the file's, as weights are."""
    plan.values[tensor].val.data_buffer_idx, plan.values[tensor].val.allocation_info = 1, None


def output_as_constant(of: str, kind: type = KernelCall, method: str = "decode") -> Change:
    """Of the first call of an operator, which gives its outputs again after its values, or of a backend."""
    return lambda program: as_constant(decode(program, method), call(program, of, kind, method).args[-1])


def list_with_a_constant(program: Any) -> None:
    outputs = decode(program).values[call(program, "aten::split_with_sizes_copy").args[-1]].val
    as_constant(decode(program), outputs.items[0])


def state_as_constant(program: Any) -> None:
    plan = decode(program)
    as_constant(plan, next(i for i, each in enumerate(plan.values) if getattr(each.val, "extra_tensor_info", None)))


def jump(program: Any) -> None:
    decode(program).chains[0].instructions.append(Instruction(JumpFalseCall(0, 10**6)))


def set_argument(of: str, position: int, kind: type) -> Change:
    return lambda program: call(program, of).args.__setitem__(position, place(program, kind))


CHANGES: dict[str, tuple[Change, str]] = {
    "operator after the last": (lambda p: setattr(call(p), "op_index", 255), r"'hybridge_decode' calls operator 255 of \d+"),
    "operator before the first": (lambda p: setattr(call(p), "op_index", -1), r"calls operator -1 of \d+"),
    "backend after the last": (lambda p: setattr(call(p, kind=DelegateCall), "delegate_index", 99), r"calls backend 99 of \d+"),
    "value after the last": (lambda p: call(p).args.__setitem__(0, 10**6), r"takes a value that is none of its \d+"),
    "value before the first": (lambda p: call(p).args.__setitem__(0, -7), r"takes a value that is none of its \d+"),
    "backend's value after the last": (
        lambda p: call(p, kind=DelegateCall).args.__setitem__(0, 10**6),
        r"takes a value that is none of its \d+",
    ),
    "number in place of a tensor": (
        set_argument("aten::add", 0, Int),
        "hands aten::add.out a value of another kind as its value 0",
    ),
    "tensor in place of a list": (
        set_argument("aten::split", 1, Tensor),
        "aten::split_with_sizes_copy.out a value of another kind",
    ),
    "number in place of an option": (set_argument("dim_order_ops::", 2, Int), "_to_dim_order_copy.out a value of another kind"),
    "tensor in place of a number of ExecuTorch's": (
        set_argument("llama::", 3, IntList),
        "llama::[a-z_]+.out a value of another",
    ),
    "too few values": (lambda p: call(p, "aten::add").args.__delitem__(slice(2, None)), "hands aten::add.out 2 of 4 values"),
    "tensor without memory": (without_memory, "has a tensor without memory"),
    "constant to write into": (output_as_constant("aten::add"), r"lets aten::add.out write into a constant, its value 3"),
    "list with a constant to write into": (
        list_with_a_constant,
        "lets aten::split_with_sizes_copy.out write into a constant, its value 3",
    ),
    "constant that a backend writes into": (output_as_constant("", DelegateCall), "lets XnnpackBackend write into a constant"),
    "state that is a constant": (state_as_constant, "has a buffer of the state without memory"),
    "list of tensors that are none": (
        lambda p: value(p, TensorList).items.__setitem__(0, place(p, Int)),
        "has a list of other things than it should hold",
    ),
    "list of numbers that are none": (
        lambda p: value(p, IntList).items.__setitem__(0, place(p, Tensor)),
        "has a list of other things than it should hold",
    ),
    "jump": (jump, "does something else than calling operators and backends"),
    "operator of which the manifest does not speak": (
        lambda p: setattr(decode(p).operators[0], "name", "aten::system"),
        r"calls 'aten::system[.\w]*', which its manifest does not list",
    ),
    "backend of which the manifest does not speak": (
        lambda p: setattr(decode(p).delegates[0], "id", "ShellBackend"),
        "hands parts to 'ShellBackend', which its manifest does not list",
    ),
}


def changed(artifact: Path, change: Change) -> bytes:
    file = deserialize_pte_binary((artifact / PROGRAM).read_bytes())
    change(file.program)
    return bytes(serialize_pte_binary(file, extract_delegate_segments=True, segment_alignment=4096))


def check(artifact: Path, program: Path) -> None:
    check_plans(read_manifest(artifact), CheckedFile(program, file_entry(program)))


@pytest.mark.parametrize("name", CHANGES)
def test_a_forged_plan_is_refused(artifact: Path, name: str, tmp_path: Path) -> None:
    change, said = CHANGES[name]
    (tmp_path / PROGRAM).write_bytes(changed(artifact, change))
    with pytest.raises(ArtifactError, match=said):
        check(artifact, tmp_path / PROGRAM)


@pytest.mark.parametrize(("operator", "method"), [("clear", "reset"), ("write_rows", "decode"), ("linear", "decode")])
def test_our_kernels_write_into_no_constant(kernels_artifact: Path, operator: str, method: str, tmp_path: Path) -> None:
    """``clear`` did, and died of it: nobody was asked what it writes."""
    (tmp_path / PROGRAM).write_bytes(changed(kernels_artifact, output_as_constant(f"hybridge::{operator}", method=method)))
    with pytest.raises(ArtifactError, match=rf"lets hybridge::{operator}.out write into a constant, its value \d"):
        check(kernels_artifact, tmp_path / PROGRAM)


def test_what_each_of_our_kernels_writes_is_known() -> None:
    sources = "".join(path.read_text() for path in library.FOLDER.glob("*.cpp"))
    names = re.findall(r'HYBRIDGE_KERNEL\("([\w.]+)"', sources)
    assert len(names) > 30
    for name in names:
        arguments = arguments_of(f"hybridge::{name}")
        assert arguments is not None, name
        assert arguments[-1].is_written, name


class Chosen(torch.nn.Module):
    """Calls an operator with a list of tensors of which the first is left out."""

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x[:, places]


def test_tensors_that_are_left_out_of_a_list_are_taken(artifact: Path, tmp_path: Path) -> None:
    """Programs of core operators were refused: their plans say -1 for such a tensor."""
    exported = torch.export.export(Chosen(), (torch.ones(3, 4), torch.tensor([2, 1])))
    with quiet():
        made = to_edge_transform_and_lower(exported).to_executorch()
    (tmp_path / PROGRAM).write_bytes(made.buffer)
    plan = made.executorch_program.execution_plan[0]
    assert any(isinstance(each.val, OptionalTensorList) and -1 in each.val.items for each in plan.values)
    with pytest.raises(ArtifactError, match=r"calls 'aten::index.Tensor_out', which its manifest does not list"):
        check(artifact, tmp_path / PROGRAM)


def test_programs_as_they_are_exported_are_taken(artifact: Path, kernels_artifact: Path) -> None:
    for folder in (artifact, kernels_artifact):
        check(folder, folder / PROGRAM)


def segments_changed(artifact: Path, change: Change) -> bytes:
    data = (artifact / PROGRAM).read_bytes()
    header = read_header(data[:HEAD_BYTES])
    assert header
    program = read_program(data[: header.program_size])
    change(program)
    segments = data[header.segment_base_offset :]
    return write_program(program, len(segments)) + segments


@pytest.mark.parametrize(
    "change",
    [
        lambda p: setattr(p.named_data[0], "segment_index", p.named_data[1].segment_index),
        lambda p: setattr(p.named_data[0], "segment_index", p.execution_plan[0].delegates[0].processed.index),
        lambda p: setattr(p.named_data[0], "segment_index", p.constant_segment.segment_index),
        lambda p: setattr(p.named_data[0], "segment_index", len(p.segments)),
    ],
    ids=["another weight", "a delegate", "the constants", "nothing"],
)
def test_a_weight_that_is_another_segment_is_refused(artifact: Path, change: Change, tmp_path: Path) -> None:
    """XNNPACK read beyond the file's end where a weight's name led to a shorter segment."""
    (tmp_path / PROGRAM).write_bytes(segments_changed(artifact, change))
    with pytest.raises(ArtifactError, match="two weights of the program are the same segment"):
        check(artifact, tmp_path / PROGRAM)


@pytest.mark.parametrize(("field", "value"), [("size", 1 << 40), ("offset", 1 << 40), ("size", (1 << 64) - 1)])
def test_a_segment_beyond_the_file_is_refused(artifact: Path, field: str, value: int, tmp_path: Path) -> None:
    (tmp_path / PROGRAM).write_bytes(segments_changed(artifact, lambda p: setattr(p.segments[-1], field, value)))
    with pytest.raises(ArtifactError, match="leads out of its file"):
        check(artifact, tmp_path / PROGRAM)


@pytest.mark.parametrize("text", [b"aten::add", b"hybridge_decode", b"XnnpackBackend"])
def test_a_name_that_is_no_text_is_refused(artifact: Path, text: bytes, tmp_path: Path) -> None:
    """ExecuTorch would log it through Python, which ends the process."""
    data = bytearray((artifact / PROGRAM).read_bytes())
    data[data.index(text) + 2] = 0xFF
    (tmp_path / PROGRAM).write_bytes(data)
    with pytest.raises(ArtifactError, match="plan cannot be read"):
        check(artifact, tmp_path / PROGRAM)


def test_a_session_checks_before_the_runtime_loads(artifact: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(artifact, tmp_path / "forged"))
    (folder / PROGRAM).write_bytes(changed(artifact, CHANGES["operator after the last"][0]))
    forge(folder)
    with pytest.raises(ArtifactError, match="calls operator 255"):
        Session.load(folder)


def test_a_program_that_asks_for_all_memory_is_refused(artifact: Path, tmp_path: Path) -> None:
    """It came out as an error of the runtime's own."""
    folder = tmp_path / "forged"
    shutil.copytree(artifact, folder)
    change: Change = lambda program: decode(program).non_const_buffer_sizes.__setitem__(-1, 1 << 62)  # noqa: E731
    (folder / PROGRAM).write_bytes(segments_changed(artifact, change))
    forge(folder)
    with pytest.raises(ArtifactError, match="there is no memory"):
        Session.load(folder)
