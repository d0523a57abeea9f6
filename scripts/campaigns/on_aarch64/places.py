"""The two places where the same is run: this machine, and the root."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from campaigns.on_aarch64.emulation import Emulation
from campaigns.on_aarch64.journal import Journal
from campaigns.on_aarch64.packages import CHECKOUT

THREADS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
PROGRAMS = Path(sys.executable).parent
PYTHONPATH = "/opt/hybridge:/opt/packages"


class Place(Protocol):
    """folder: what is made there, as programs there name it. embedded: the model's checkpoint. cmake: a new one."""

    folder: Path
    embedded: Path
    cmake: Path

    def run(self, *words: str | Path) -> str:
        """Return what a program prints. Raises StepError."""

    def hybridge(self, *words: str | Path) -> str:
        """Return what the command prints. Raises StepError."""

    def copy(self, source: Path, name: str) -> None:
        """Have a copy of a file or folder of this machine as ``name`` in ``folder``."""


@dataclass
class Here:
    """This machine, with the environment that scripts/setup made."""

    folder: Path
    journal: Journal
    embedded: Path = CHECKOUT / "export/embedded"
    cmake: Path = PROGRAMS / "cmake"

    def run(self, *words: str | Path) -> str:
        return self.journal.run(words, env=os.environ | THREADS)

    def hybridge(self, *words: str | Path) -> str:
        return self.run(PROGRAMS / "hybridge", *words)

    def copy(self, source: Path, name: str) -> None:
        _copy(source, self.folder / name)


@dataclass
class There:
    """The root, on the processor that qemu calls ``cpu``."""

    emulation: Emulation
    cpu: str
    folder: Path = Path("/opt/work")
    embedded: Path = Path("/opt/hybridge/hybridge/export/embedded")
    cmake: Path = Path("/opt/packages/cmake/data/bin/cmake")
    environment: dict[str, str] = field(default_factory=lambda: {"PYTHONPATH": PYTHONPATH, **THREADS})

    def run(self, *words: str | Path) -> str:
        return self.emulation.run(words, cpu=self.cpu, environment=self.environment)

    def hybridge(self, *words: str | Path) -> str:
        return self.run("python3", "/opt/hybridge/bin/hybridge", *words)

    def copy(self, source: Path, name: str) -> None:
        _copy(source, self.emulation.root / self.folder.relative_to("/") / name)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
