"""Run the same commands on this machine and in the root, and compare what must be equal."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from campaigns.on_aarch64.journal import ANSWER, Figures, Journal, StepError
from campaigns.on_aarch64.machine import Emulation
from campaigns.on_aarch64.root import CHECKOUT

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


PROMPT = 'def open_file(name, mode="r"):'
NEW_TOKENS = 64
QUESTION = "how to read a file"
TOKENS = ("5", "6", "7", "8", "9", "5", "6", "7", "8", "9", "5", "6")
KNOWN = re.compile(r"No broken requirements|nvidia-cusparselt-\S+ \S+ is not supported on this platform")
"""What pip may say: NVIDIA's wheel names another platform inside than its file does."""
PRODUCTS = """
import torch
torch.manual_seed(0)
weight = torch.randn(96, 256)
for rows in (1, 3, 8, 17, 64):
    x = torch.randn(rows, 256)
    error = (torch.nn.functional.linear(x, weight) - x.double() @ weight.double().T).abs().max().item()
    assert error < 1e-3, f"PyTorch multiplies {rows} rows wrongly on this processor (error {error:.2g}): choose another --cpu"
"""
RANDOM_PROGRAMS = 5  # of 40 operations: 200


EXPORTED = {
    "demo": ("", "--quantize", "none", "--max-seq-len", "2048", "--verify-len", "4,16", "--mtp", "--draft-len", "3"),
    "demo-draft": ("draft", "--quantize", "none", "--max-seq-len", "2048", "--snapshot-slots", "1"),
    "demo-llm": ("", "--max-seq-len", "1024", "--kernels", "llm", "--quantize", "none"),
    "demo-8da4w": ("", "--max-seq-len", "1024", "--quantize", "8da4w"),
}
"""Artifacts by name: the folder of the checkpoint in that of the embedded ones, and options of ``hybridge export``."""


def exports(place: Place) -> Figures:
    """Export the embedded models."""
    for name, (checkpoint, *options) in EXPORTED.items():
        place.hybridge("export", place.embedded / checkpoint, "-o", place.folder / name, "--force", *options)
    return {}


def demo(place: Place) -> str:
    """Return the text of ``hybridge run`` over the demo's artifact, with its draft model."""
    options = ["--draft", place.folder / "demo-draft", "--max-new-tokens", str(NEW_TOKENS)]
    return place.hybridge("run", place.folder / "demo", "--prompt", PROMPT, *options)


def sdk(place: Place) -> Figures:
    """Compile and install hybridge for C and C++, which the apps then link to."""
    found = place.hybridge("native", "--cmake-prefix").strip()
    build, here = place.folder / "sdk/build", place.folder / "sdk/installed"
    options = [f"-DCMAKE_PREFIX_PATH={found}", f"-DCMAKE_INSTALL_PREFIX={here}", "-DCMAKE_BUILD_TYPE=Release"]
    place.run(place.cmake, "-S", found.split(";")[0], "-B", build, *options)
    place.run(place.cmake, "--build", build, "--parallel", "2")
    place.run(place.cmake, "--install", build)
    return {}


def native_app(place: Place) -> str:
    """Return what examples/native prints, over the installed hybridge."""
    place.copy(CHECKOUT / "examples/native", "native")
    program = _built(place, "native", "talk")
    return place.run("sh", "-c", 'echo "$2" | "$0" "$1"', program, place.folder / "demo", QUESTION)


def c_program(place: Place) -> str:
    """Return what the C program of our tests prints: it calls all of hybridge.h, and checks each answer."""
    place.copy(CHECKOUT / "scripts/campaigns/on_aarch64/c_api", "c_api")
    place.copy(CHECKOUT / "tests/native/c_api.c", "c_api/c_api.c")
    program = _built(place, "c_api", "c_api")
    return place.run(program, place.folder / "demo/model.pte", place.folder / "c_api/state", *TOKENS)


def _built(place: Place, name: str, target: str) -> Path:
    """Configure and build a project of an app; returns its program."""
    source, build = place.folder / name, place.folder / f"{name}/build"
    executorch = place.hybridge("native", "--cmake-prefix").strip().split(";")[1]
    place.run(place.cmake, "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={place.folder / 'sdk/installed'};{executorch}")
    place.run(place.cmake, "--build", build, "--parallel", "2", "--target", target)
    return build / target


def products(place: Place) -> Figures:
    """Hold PyTorch's linear layers of a few rows against sums in float64. Raises StepError where they differ."""
    place.run("python3", "-c", PRODUCTS)
    return {}


def kernels(place: Place) -> Figures:
    """Compile the kernels for the place's processor."""
    place.hybridge("kernels", "build", "--force")
    return {}


def validated(place: Place, artifact: str, *options: str) -> Figures:
    """Return the figures of ``hybridge validate``, which fails where a logit or a token is wrong."""
    words = ["--against", place.embedded, "--programs", str(RANDOM_PROGRAMS), "--json", *options]
    report: dict[str, Any] = json.loads(place.hybridge("validate", place.folder / artifact, *words))
    generation = report["generation"]
    return {
        "operations": sum(report["operations"].values()),
        "worst error": f"{report['worst_relative']:.1e}",
        "prompts": f"{generation['speculative_matches']} of {generation['prompts']}",
    }


def requirements(place: Place) -> Figures:
    """Have pip look whether all that packages require is there, in the versions that they require, for this processor."""
    shown = place.run("sh", "-c", "python3 -m pip check || true").splitlines()  # it fails where anything is found
    if faults := [line for line in shown if not KNOWN.match(line)]:
        raise StepError("\n".join(faults))
    return {}


def answer(run: Callable[[Place], str], place: Place) -> Figures:
    """Return what ``run`` gives in a place."""
    return {ANSWER: run(place)}


def same(wanted: str, run: Callable[[Place], str], place: Place) -> Figures:
    """Run the same in another place. Raises StepError where the answer is another one."""
    if (given := run(place)) != wanted:
        raise StepError(f"the answer is not the same.\nOn this machine:\n{wanted}\nOn ARM64:\n{given}")
    return {"the same": "yes"}
