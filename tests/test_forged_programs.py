"""A program whose tensors are not what its kernels go by, with hashes that say it is right: each call of such a kernel fails.

One with other sizes wrote 5.5 MB past the arena of its state.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
from executorch.exir.schema import Int, KernelCall, Null, Tensor
from forgery import forge

from hybridge.runtime.artifacts.manifest import PROGRAM

RAN, FAILED = 0, 1
RUNNER = f"""
import os, sys
from hybridge.runtime import Session

def use(folder):
    session = Session.load(folder)
    session.prefill(list(range(20)))
    session.snapshot(1)
    session.decode(1)
    session.verify([2, 3, 4])
    session.commit(2)
    session.restore(1)
    session.reset()

for folder in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            use(folder)
        except Exception as error:
            print(type(error).__name__, str(error)[:300], file=sys.stderr)
            os._exit({FAILED})
        os._exit({RAN})
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

Change = tuple[str, str, Any]


def plans(program: Any) -> Iterator[tuple[Any, Any, list[int]]]:
    """Every call of a kernel of ours: its method's plan, the operator, and which values it takes."""
    for plan in program.execution_plan:
        for chain in plan.chains:
            for instruction in chain.instructions:
                match instruction.instr_args:
                    case KernelCall(op_index=index, args=args) if plan.operators[index].name.startswith("hybridge::"):
                        yield plan, plan.operators[index], args


def forgeries(good: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """For each kernel of the program: a tensor with a size less or another dtype, a value of another kind, values too few."""
    names = {operator.name for _, operator, _ in plans(deserialize_pte_binary(good).program)}
    for name in sorted(names):
        for change in (smaller, smaller, other_dtype, other_kind, fewer):
            file = deserialize_pte_binary(good)
            calls = [(plan, args) for plan, operator, args in plans(file.program) if operator.name == name]
            what = change(rng, *rng.choice(calls))
            yield f"{name}: {what}", bytes(serialize_pte_binary(file, extract_delegate_segments=True, segment_alignment=4096))


def tensors(plan: Any, args: list[int]) -> list[Any]:
    """The tensors of a call that its kernel goes by: not the last, which some kernels put nothing into."""
    values = [plan.values[index].val for index in args[:-2]]
    return [value for value in values if isinstance(value, Tensor)]


def smaller(rng: random.Random, plan: Any, args: list[int]) -> str:
    tensor = rng.choice([each for each in tensors(plan, args) if max(each.sizes, default=1) > 1])
    at = rng.choice([d for d, size in enumerate(tensor.sizes) if size > 1])
    before = list(tensor.sizes)
    tensor.sizes[at] -= 1
    return f"{before} is {tensor.sizes}"


def other_dtype(rng: random.Random, plan: Any, args: list[int]) -> str:
    tensor = rng.choice(tensors(plan, args))
    before, tensor.scalar_type = tensor.scalar_type, type(tensor.scalar_type).SHORT
    return f"{before} is int16"


def other_kind(rng: random.Random, plan: Any, args: list[int]) -> str:
    position = rng.randrange(len(args) - 2)
    value = plan.values[args[position]]
    plan.values.append(type(value)(Int(3) if isinstance(value.val, Tensor | Null) else Null()))
    args[position] = len(plan.values) - 1
    return f"argument {position} is {plan.values[-1].val}"


def fewer(rng: random.Random, plan: Any, args: list[int]) -> str:
    before = len(args)
    del args[rng.randrange(before - 1) :]
    return f"{len(args)} of {before} values"


@pytest.mark.slow
def test_kernels_refuse_what_a_forged_program_hands_them(own_artifact: Path, tmp_path: Path) -> None:
    good = (own_artifact / PROGRAM).read_bytes()
    folders = {"as it was": own_artifact}
    for i, (what, program) in enumerate(forgeries(good, random.Random(0))):
        folders[f"{i}, {what}"] = Path(shutil.copytree(own_artifact, tmp_path / f"{i}"))
        (tmp_path / f"{i}" / PROGRAM).write_bytes(program)
        forge(tmp_path / f"{i}")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *map(str, folders.values())], check=True, capture_output=True, text=True, timeout=300
    )
    codes = dict(zip(folders, map(int, done.stdout.split()), strict=True))
    assert codes.pop("as it was") == RAN, done.stderr
    assert {what: code for what, code in codes.items() if code != FAILED} == {}, done.stderr[-3000:]
    assert len(codes) > 50
