"""The instruction sets that the kernels are compiled for, as dispatch/instruction_sets.txt lists them."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).parent / "dispatch" / "instruction_sets.txt"
SAME = {"arm64": "aarch64", "amd64": "x86_64"}


@dataclass(frozen=True)
class InstructionSet:
    """A name and the compiler's flags."""

    name: str
    flags: tuple[str, ...]


def instruction_sets(machine: str | None = None) -> list[InstructionSet]:
    """Return those of a processor by its name (this one's if left out), a better one behind a worse."""
    wanted = (machine or platform.machine()).lower()
    lines = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    sets = [InstructionSet(name, tuple(flags)) for processor, name, *flags in lines if processor == SAME.get(wanted, wanted)]
    return sets or [InstructionSet("plain", ())]
