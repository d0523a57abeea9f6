"""``hybridge doctor``: report what is installed, what is missing, and how to get it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

import hybridge
from hybridge.errors import HybridgeError, KernelsError
from hybridge.runtime.cli.console import err, out, print_json, table
from hybridge.runtime.cli.options import JsonOption

if TYPE_CHECKING:  # these, and the libraries that are checked, are imported when the command runs: help must not wait for them
    from packaging.requirements import Requirement

BRINGS = {
    "checkpoints": "GGUF files and LoRA adapters",
    "coreml": "--delegate coreml: artifacts whose prompts Apple's devices read",
    "eval": "hybridge lm-eval, hybridge evaluate --plot",
    "export": "hybridge export, validate, evaluate and demo; hybridge.load",
    "html": "--html of hybridge bench, inspect, run and validate",
    "images": "pictures: hybridge run --image, /image in hybridge chat, images for hybridge serve",
    "lark": "grammars in Lark: --grammar",
    "onnx": "--format onnx",
    "openvino": "--delegate openvino: prompts read by Intel's processors, GPUs and NPUs",
    "optimum": "optimum-cli export hybridge",
}
"""Purposes of the extras."""

DEVELOPMENT = "dev"
"""The extra for hybridge's own tests."""
EXAMPLES = ("hybridge doctor", "hybridge doctor --json")
CMAKE = (3, 28)
"""The oldest version that ExecuTorch's package has targets for."""


def doctor(json: JsonOption = False) -> None:
    """Show what is installed and what is missing, and how to get it. Exits with 1 if a required part is missing."""
    report = examine()
    if json:
        print_json(report.to_dict())
    else:
        show(report)
    if report.missing:
        raise typer.Exit(1)


@dataclass(frozen=True)
class Finding:
    """The result of one check. found: describes what is there. needed: hybridge does not work without it."""

    name: str
    found: str
    ok: bool
    needed: bool = True
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All findings, by part."""

    parts: dict[str, list[Finding]]

    @property
    def missing(self) -> list[Finding]:
        """Return the findings that are needed and not ok."""
        return [each for part in self.parts.values() for each in part if each.needed and not each.ok]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        parts = {name: [asdict(each) for each in findings] for name, findings in self.parts.items()}
        return {"ok": not self.missing, "hybridge": hybridge.__version__, **parts}


def examine(wanted: Requirements | None = None) -> Diagnosis:
    """Check everything, without compiling anything."""
    wanted = requirements() if wanted is None else wanted
    return Diagnosis({
        "system": list(_system()),
        "libraries": [_finding(each, wanted.install()) for each in wanted.needed] + list(_loads()),
        "kernels": _kernels(),
        "tools": list(_tools()),
        "extras": [_extra(name, libraries, wanted.install(name)) for name, libraries in wanted.extras.items() if libraries],
    })  # fmt: skip


def show(report: Diagnosis) -> None:
    """Print a table for each part, and the remedies below."""
    for title, findings in report.parts.items():
        grid = table(title.capitalize(), "", "", "")
        grid.columns[2].justify = "left"
        for column in grid.columns:
            column.overflow = "fold"  # paths and versions are to be copied
        for each in findings:
            mark = "[green]✓[/]" if each.ok else "[bold red]✗[/]" if each.needed else "[yellow]–[/]"
            grid.add_row(mark, escape(each.name), escape(each.found))
        out.print(grid)
    for each in (each for part in report.parts.values() for each in part if each.remedy and not each.ok):
        style = "[bold red]missing[/]" if each.needed else "[yellow]to have[/]"
        out.print(f"{style} {escape(each.name)}: {escape(each.remedy)}", highlight=False, soft_wrap=True)
    if report.missing:
        err.print(f"[bold red]hybridge needs more than is here:[/] {', '.join(each.name for each in report.missing)}.")


def _system() -> Iterator[Finding]:
    from hybridge.runtime.platforms import processor_name

    yield Finding("hybridge", hybridge.__version__, ok=True)
    yield Finding("Python", f"{platform.python_version()}, {platform.platform()}", ok=True)
    yield Finding("processor", f"{processor_name()}, {platform.machine()}, {os.cpu_count()} cores", ok=True)


def _finding(each: Library, install: str) -> Finding:
    found = each.installed or "not installed"
    return Finding(each.name, found if each.fits else f"{found}; {each.wanted} is needed", ok=each.fits, remedy=install)


def _loads() -> Iterator[Finding]:
    """Load the libraries: one that is installed may miss a library of the system."""
    yield _tried("ExecuTorch loads", _load_executorch)
    if _has_torch():
        yield _tried("torch loads", _load_torch)


def _has_torch() -> bool:
    try:
        return find_spec("torch") is not None
    except ImportError as error:  # raised by a finder that somebody has added
        return not isinstance(error, ModuleNotFoundError)


def _load_torch() -> str:
    import torch

    return f"{torch.get_num_threads()} threads"


def _load_executorch() -> str:
    from hybridge.runtime import pinned
    from hybridge.runtime.kernels import compiling
    from hybridge.runtime.native_log import without_native_log

    with without_native_log():
        compiling.load_libraries(*pinned.OPERATORS_AND_BACKENDS)
    return f"{pinned.executorch_version()}, of {'hybridge' if pinned.uses_copies() else 'ExecuTorch'}'s wheel"


def _tried(name: str, load: Callable[[], str], remedy: str = "") -> Finding:
    try:
        return Finding(name, load(), ok=True)
    except (ImportError, OSError, HybridgeError) as error:
        return Finding(name, "it does not", ok=False, remedy=remedy or " ".join(str(error).split()))


def _kernels() -> list[Finding]:
    """Return the place of the kernels and, if they are compiled, their instruction sets."""
    from hybridge.runtime.kernels import compiling
    from hybridge.runtime.kernels import library as kernels

    remedy = f"{compiling.missing_tool()}; or export with --kernels llm"
    place = _tried("kernels", _kernels_place, remedy)
    return [place, _tried("instruction set", _instruction_sets)] if place.ok and kernels.is_built() else [place]


def _kernels_place() -> str:
    from hybridge.runtime.kernels import library as kernels

    if kernels.is_built():
        return str(kernels.path())
    if not kernels.is_available():
        raise KernelsError("neither compiled kernels nor what compiles them")
    return f"not compiled yet: at first use, or by hybridge kernels build; {kernels.path()}"


def _instruction_sets() -> str:
    from hybridge.runtime.kernels import library as kernels

    chosen = kernels.load()
    others = [name for name in kernels.available_instruction_sets() if name != chosen]
    by = f" by {kernels.CHOICE}" if os.environ.get(kernels.CHOICE) else ""
    return f"{chosen}{by}; also here: {', '.join(others) or 'none'}"


def _tools() -> Iterator[Finding]:
    """Check the tools that compile kernels and apps."""
    import shutil

    from hybridge.runtime.kernels import compiling

    remedy = "install g++ or clang++, or set CXX; kernels and apps are compiled by it"
    yield _tool("C++ compiler", compiling.compiler(), remedy)
    remedy = f"pip install cmake, {'.'.join(map(str, CMAKE))} or newer; kernels and apps are compiled by it"
    yield _tool("cmake", shutil.which("cmake"), remedy, CMAKE)


def _tool(name: str, path: str | None, remedy: str, least: tuple[int, ...] = ()) -> Finding:
    """Check a tool. least: the oldest version that will do; a version that cannot be read will do."""
    if path is None:
        return Finding(name, "none found", ok=False, needed=False, remedy=remedy)
    banner = _banner(path)
    version = tuple(map(int, re.findall(r"\d+", banner)[: len(least)]))
    return Finding(name, f"{banner}; {path}", ok=not version or version >= least, needed=False, remedy=remedy)


def _banner(path: str) -> str:
    """Return the first line that a program prints for --version."""
    import subprocess

    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)  # noqa: S603  # the user's own program
    return (done.stdout.splitlines() or ["of unknown version"])[0]


def _extra(name: str, libraries: list[Library], install: str) -> Finding:
    lacking = [each.name for each in libraries if not each.fits]
    there = ", ".join(f"{each.name} {each.installed}" for each in libraries)
    what = f"{BRINGS[name]}; " if name in BRINGS else ""
    found = f"{what}{'without ' + ', '.join(lacking) if lacking else there}"
    return Finding(name, found, ok=not lacking, needed=False, remedy=install)


# Libraries that hybridge needs


@dataclass(frozen=True)
class Library:
    """A required library. installed: its version here, if any."""

    name: str
    wanted: str
    installed: str | None
    fits: bool


@dataclass(frozen=True)
class Requirements:
    """The libraries that hybridge needs, those of each extra, and the name of hybridge for ``pip install``."""

    needed: list[Library]
    extras: dict[str, list[Library]]
    name: str

    def install(self, extra: str | None = None) -> str:
        """Return the command that installs the libraries of an extra, or those that are always needed."""
        return f"pip install '{self.name}[{extra}]'" if extra else f"pip install {self.name}"


def requirements(checkout: Path | None = None) -> Requirements:
    """Read the requirements from a checkout's pyproject.toml, or else from the installed metadata, which may be older."""
    import tomllib
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    folder = Path(hybridge.__file__).parents[2] if checkout is None else checkout
    project = folder / "pyproject.toml"
    if project.is_file():
        return _of_project(tomllib.loads(project.read_text(encoding="utf-8"))["project"], str(folder))
    return _of_metadata([Requirement(text) for text in requires("hybridge") or ()])


def _of_project(project: dict[str, object], name: str) -> Requirements:
    from packaging.requirements import Requirement

    needed, extras = project["dependencies"], project["optional-dependencies"]
    assert isinstance(needed, list)
    assert isinstance(extras, dict)
    return Requirements(_libraries(map(Requirement, needed)), {
        extra: _libraries(map(Requirement, texts)) for extra, texts in extras.items() if extra != DEVELOPMENT
    }, name)  # fmt: skip


def _of_metadata(wanted: list[Requirement]) -> Requirements:
    needed = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    rest = [each for each in wanted if each not in needed]
    names = sorted({value for each in rest for value in _extras_of(each)} - {DEVELOPMENT})
    extras = {
        name: _libraries(each for each in rest if each.marker and each.marker.evaluate({"extra": name})) for name in names
    }
    return Requirements(_libraries(needed), extras, "hybridge")


def _extras_of(requirement: Requirement) -> Iterable[str]:
    """Return the extras that the marker names: ``extra == "onnx"``."""
    words = str(requirement.marker).replace("'", '"').split('extra == "')[1:]
    return [word.partition('"')[0] for word in words]


def _libraries(wanted: Iterable[Requirement]) -> list[Library]:
    return [_library(each) for each in wanted if each.name != hybridge.__name__]  # an extra may require another extra


def _library(wanted: Requirement) -> Library:
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return Library(wanted.name, str(wanted.specifier), None, fits=False)
    # A build for one kind of processor, such as 2.13.0+cpu, counts as that version.
    return Library(wanted.name, str(wanted.specifier), found, fits=wanted.specifier.contains(found, prereleases=True))
