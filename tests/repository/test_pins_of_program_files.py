"""The tables of a program's file are where ``hybridge.runtime.pinned`` says, and so what is read of them without ExecuTorch."""

from __future__ import annotations

import random
import re
import shutil
from contextlib import suppress
from pathlib import Path

import operator_table
import pytest
from checkout import OLDER_ARTIFACT
from forgery import forge

from hybridge.errors import ArtifactError
from hybridge.export.pinned import executorch as program_format
from hybridge.export.profile.program import ProgramFile
from hybridge.runtime import Session, pinned
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.manifest import PROGRAM
from hybridge.runtime.artifact.plan_check import HEAD_BYTES, check_plans, plan_bytes
from hybridge.runtime.artifact.program_check import STATE, buffer_names


def test_the_names_of_the_state_are_where_we_read_them() -> None:
    """By ExecuTorch's own reader."""
    values = ProgramFile(OLDER_ARTIFACT / "model.pte").plans["hybridge_decode"].values
    tensors = [each.val for each in values if isinstance(each.val, program_format.Tensor)]
    names = [each.extra_tensor_info.fully_qualified_name for each in tensors if each.extra_tensor_info]
    state = [name.removeprefix(STATE) for name in names if name and name.startswith(STATE)]
    session = Session.load(OLDER_ARTIFACT)
    assert list(session.state()) == state == buffer_names(session.manifest)


TABLES = {
    "Program": pinned.PROGRAM, "ExecutionPlan": pinned.PLAN, "Operator": pinned.OPERATOR, "BackendDelegate": pinned.DELEGATE,
    "CompileSpec": pinned.SPEC, "Chain": pinned.CHAIN, "Instruction": pinned.INSTRUCTION, "EValue": pinned.VALUE,
    "Tensor": pinned.TENSOR_FIELDS, "ExtraTensorInfo": pinned.EXTRA_TENSOR_INFO, "IntList": pinned.LIST,
    "TensorList": pinned.LIST, "OptionalTensorList": pinned.LIST, "BackendDelegateDataReference": pinned.PROCESSED,
    "DataSegment": pinned.SEGMENT, "SubsegmentOffsets": pinned.CONSTANTS, "NamedData": pinned.NAMED_DATA,
}  # fmt: skip


def test_programs_have_the_fields_that_we_read() -> None:
    """In the order of the schema that the wheel brings; a field that is a union has two numbers, of which one is its kind."""
    text = re.sub(r"//.*", "", (pinned.executorch() / "schema" / "program.fbs").read_text())
    unions = {name: re.findall(r"\w+", kinds) for name, kinds in re.findall(r"union (\w+) \{(.*?)\}", text, re.DOTALL)}
    tables = {}
    for table, fields in re.findall(r"table (\w+) \{(.*?)\}", text, re.DOTALL):
        named = re.findall(r"(\w+)\s*:\s*\[?(\w+)", fields)
        tables[table] = [part for name, kind in named for part in ([f"{name}_type", name] if kind in unions else [name])]
    for table, fields in TABLES.items():
        for name, number in vars(fields).items():
            assert tables[table][number] == name, f"{table} is another: see runtime/pinned.py"
    for table, index in (("KernelCall", "op_index"), ("DelegateCall", "delegate_index")):
        assert (tables[table][pinned.CALL.index], tables[table][pinned.CALL.args]) == (index, "args")
    assert unions["InstructionArguments"][: pinned.DELEGATE_CALL] == ["KernelCall", "DelegateCall"]
    for number, name in enumerate(unions["KernelTypes"], start=1):
        constant = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
        assert getattr(pinned, constant) == number, f"{name} is another kind: see runtime/pinned.py"


def test_the_schemas_that_torch_lacks_are_those_of_the_wheel() -> None:
    texts = [path.read_text() for path in (pinned.executorch() / "kernels").rglob("*.yaml")]
    for name, schema in operator_table.OTHER_SCHEMAS.items():
        assert any(f"func: {name}{schema}\n" in text for text in texts), (
            f"{name} is another: see tests/helpers/references/operator_table.py"
        )


@pytest.mark.slow
def test_the_table_of_operators_is_what_torch_says() -> None:
    assert pinned.OPERATOR_TABLE.read_text() == operator_table.table(), (
        "run .venv/bin/python tests/helpers/references/operator_table.py"
    )


def test_a_kernel_takes_the_arguments_of_its_schema() -> None:
    tensor, number = pinned.OF_TYPES["Tensor"], pinned.OF_TYPES["int"]
    written = pinned.Argument(tensor, is_written=True)
    optional = pinned.Argument(number | {pinned.NULL})
    assert pinned.arguments_of("aten::slice_copy.Tensor_out") == [
        pinned.Argument(tensor), pinned.Argument(number), optional, optional, pinned.Argument(number), written,
    ]  # fmt: skip
    given = pinned.Argument(pinned.OF_TYPES["number"], is_written=True)
    assert pinned.arguments_of("aten::_local_scalar_dense") == [pinned.Argument(tensor), given], "what it gives, too"
    lists = pinned.arguments_of("aten::split_with_sizes_copy.out")
    assert lists is not None
    assert lists[-1] == pinned.Argument(pinned.OF_TYPES["List[Tensor]"], is_written=True)
    assert pinned.arguments_of("dim_order_ops::_to_dim_order_copy.out") is not None
    assert pinned.arguments_of("nobody::knows.out") is None


def test_a_damaged_plan_is_refused_or_read(tmp_path: Path) -> None:
    rng, data = random.Random(0), (OLDER_ARTIFACT / "model.pte").read_bytes()
    size = plan_bytes(data[:HEAD_BYTES])
    folder = Path(shutil.copytree(OLDER_ARTIFACT, tmp_path / "artifact"))

    def check(changed: bytes) -> None:
        (folder / PROGRAM).write_bytes(changed)
        forge(folder)
        artifact = open_artifact(folder)
        check_plans(artifact.manifest, artifact.opened[PROGRAM])

    for end in rng.sample(range(size), 20):
        with pytest.raises(ArtifactError):
            check(data[:end])
    for _ in range(150):
        damaged = bytearray(data)
        for place in rng.sample(range(size), 40):
            damaged[place] = rng.randrange(256)
        with suppress(ArtifactError):
            check(bytes(damaged))
