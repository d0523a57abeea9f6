"""Programs that were changed, with hashes that say they are right: kernels and the core refuse what they cannot take.

A kernel whose tensors had other sizes wrote 5.5 MB past the arena of its state.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from ctypes import byref
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
from executorch.exir.schema import EValue, Int, KernelCall, Null, Tensor
from forgery import forge

from hybridge.errors import ArtifactError
from hybridge.runtime import Session
from hybridge.runtime.artifact.manifest import PROGRAM
from hybridge.runtime.binding.interface import CText, ModelHandle, SessionHandle, Status
from hybridge.runtime.binding.library import load

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

Undo = Callable[[], object]
ANY_ROWS = ("clear", "shift_window", "write_rows")
"""Kernels to which a buffer of fewer rows is just a smaller one: nothing else that they are handed says how many there are."""


def calls(program: Any) -> Mapping[str, list[tuple[Any, list[int]]]]:
    """For each kernel of ours, its calls in the methods that a Session runs: the plan, and which of its values it takes."""
    found = defaultdict(list)
    for plan in program.execution_plan:
        if not plan.name.startswith("hybridge_"):
            continue
        for chain in plan.chains:
            for instruction in chain.instructions:
                match instruction.instr_args:
                    case KernelCall(op_index=index, args=args) if plan.operators[index].name.startswith("hybridge::"):
                        found[plan.operators[index].name].append((plan, args))
    return found


def forgeries(good: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Programs in which one call of a kernel gets something else: each kernel twice, in all four ways."""
    file = deserialize_pte_binary(good)
    ways = cycle((smaller, other_dtype, smaller, other_kind, smaller, fewer))
    for name, all_calls in sorted(calls(file.program).items()):
        for way in (next(ways), next(ways)):
            plan, args = rng.choice(all_calls)
            if way is smaller and name.removeprefix("hybridge::") in ANY_ROWS:
                way = narrower
            what, undo = way(rng, plan, args)
            program = serialize_pte_binary(file, extract_delegate_segments=True, segment_alignment=4096)
            undo()
            yield f"{plan.name}, {name}: {what}", bytes(program)


def tensors(plan: Any, args: list[int]) -> list[Any]:
    """The tensors of a call but its output, into which some kernels write nothing; it is the last value, twice."""
    values = [plan.values[index].val for index in args[:-2]]
    return [value for value in values if isinstance(value, Tensor)]


def smaller(rng: random.Random, plan: Any, args: list[int]) -> tuple[str, Undo]:
    """Any size of any tensor less by one."""
    return _smaller([(each, d) for each in tensors(plan, args) for d in range(len(each.sizes))], rng, plan, args)


def narrower(rng: random.Random, plan: Any, args: list[int]) -> tuple[str, Undo]:
    """The last size of a tensor less by one."""
    return _smaller([(each, len(each.sizes) - 1) for each in tensors(plan, args)], rng, plan, args)


def _smaller(places: list[tuple[Any, int]], rng: random.Random, plan: Any, args: list[int]) -> tuple[str, Undo]:
    places = [(tensor, at) for tensor, at in places if tensor.sizes[at] > 1]
    if len(places) < 2:  # nothing that another tensor would have to agree with
        return other_dtype(rng, plan, args)
    tensor, at = rng.choice(places)
    before = list(tensor.sizes)
    tensor.sizes[at] -= 1
    return f"{before} is {tensor.sizes}", lambda: setattr(tensor, "sizes", before)


def other_dtype(rng: random.Random, plan: Any, args: list[int]) -> tuple[str, Undo]:
    """Of the last tensor, which no kernel takes in several dtypes alone."""
    tensor = tensors(plan, args)[-1]
    before, tensor.scalar_type = tensor.scalar_type, type(tensor.scalar_type).SHORT
    return f"{before} is int16", lambda: setattr(tensor, "scalar_type", before)


def other_kind(rng: random.Random, plan: Any, args: list[int]) -> tuple[str, Undo]:
    """A number in the place of a tensor, or nothing in that of a number."""
    position = rng.randrange(len(args) - 2)
    value, before = plan.values[args[position]], args[position]
    plan.values.append(type(value)(Int(3) if isinstance(value.val, Tensor | Null) else Null()))
    args[position] = len(plan.values) - 1

    def undo() -> None:
        args[position] = before
        plan.values.pop()

    return f"argument {position} is {plan.values[-1].val}", undo


def fewer(rng: random.Random, plan: Any, args: list[int]) -> tuple[str, Undo]:
    """Values that end too early."""
    before = list(args)
    del args[rng.randrange(len(before) - 1) :]
    return f"{len(args)} of {len(before)} values", lambda: args.__setitem__(slice(None), before)


@pytest.mark.slow
def test_kernels_refuse_what_a_forged_program_hands_them(kernels_artifact: Path, tmp_path: Path) -> None:
    good = (kernels_artifact / PROGRAM).read_bytes()
    folders = {"as it was": kernels_artifact}
    for i, (what, program) in enumerate(forgeries(good, random.Random(0))):
        folders[f"{i}, {what}"] = Path(shutil.copytree(kernels_artifact, tmp_path / f"{i}"))
        (tmp_path / f"{i}" / PROGRAM).write_bytes(program)
        forge(tmp_path / f"{i}")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *map(str, folders.values())], check=True, capture_output=True, text=True, timeout=300
    )
    codes = dict(zip(folders, map(int, done.stdout.split()), strict=True))
    assert codes.pop("as it was") == RAN, done.stderr
    assert {what: code for what, code in codes.items() if code != FAILED} == {}, done.stderr[-3000:]
    assert len(codes) > 20


def number_for_logits(plan: Any) -> None:
    plan.values.append(EValue(Int(7)))
    plan.outputs[0] = len(plan.values) - 1


FORGED: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "a number in place of logits": ("decode", number_for_logits, "is no tensor"),
    "a number in place of a length": ("reset", number_for_logits, "is no tensor"),
    "nothing in place of logits": ("decode", lambda plan: plan.outputs.clear(), r"decode gives \[\]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("forgery", FORGED)
def test_a_program_that_answers_with_no_tensors_is_refused(artifact: Path, forgery: str, tmp_path: Path) -> None:
    """The runtime ends a process that takes a number for a tensor."""
    method, change, says = FORGED[forgery]
    shutil.copytree(artifact, tmp_path / "artifact")
    file = deserialize_pte_binary((artifact / "model.pte").read_bytes())
    change(next(plan for plan in file.program.execution_plan if plan.name == f"hybridge_{method}"))
    forged = serialize_pte_binary(file, extract_delegate_segments=True, segment_alignment=4096)
    (tmp_path / "artifact" / "model.pte").write_bytes(bytes(forged))
    forge(tmp_path / "artifact")
    with pytest.raises(ArtifactError, match=says):
        Session.load(tmp_path / "artifact")
    # The core refuses it too: apps have no other check.
    model, session = ModelHandle(), SessionHandle()
    assert load().hybridge_model_open(CText("the path", bytes(tmp_path / "artifact/model.pte")), byref(model)) == Status.OK
    assert load().hybridge_session_open(model, byref(session)) == Status.INVALID_ARTIFACT
