"""What hybridge asks for of other libraries, what is installed of it, and how to get the rest."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

import hybridge

DEVELOPMENT = "dev"
"""An extra for hybridge's own tests."""


@dataclass(frozen=True)
class Library:
    """A library that is asked for; installed is its version here, if any."""

    name: str
    wanted: str
    installed: str | None
    fits: bool


@dataclass(frozen=True)
class Requirements:
    """The libraries that hybridge needs, those of each extra, and what ``pip install`` calls hybridge itself."""

    needed: list[Library]
    extras: dict[str, list[Library]]
    name: str

    def install(self, extra: str | None = None) -> str:
        """Return the command that installs what an extra asks for, or what is always needed."""
        return f"pip install '{self.name}[{extra}]'" if extra else f"pip install {self.name}"


def requirements(checkout: Path | None = None) -> Requirements:
    """Read them of ``checkout``'s pyproject.toml, whose installed description may be older, or else of that description."""
    folder = Path(hybridge.__file__).parents[2] if checkout is None else checkout
    project = folder / "pyproject.toml"
    if project.is_file():
        return _of_project(tomllib.loads(project.read_text(encoding="utf-8"))["project"], str(folder))
    return _of_description([Requirement(text) for text in requires("hybridge") or ()])


def _of_project(project: dict[str, object], name: str) -> Requirements:
    needed, extras = project["dependencies"], project["optional-dependencies"]
    assert isinstance(needed, list)
    assert isinstance(extras, dict)
    return Requirements(_libraries(map(Requirement, needed)), {
        extra: _libraries(map(Requirement, texts)) for extra, texts in extras.items() if extra != DEVELOPMENT
    }, name)  # fmt: skip


def _of_description(wanted: list[Requirement]) -> Requirements:
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
    return [_library(each) for each in wanted if each.name != hybridge.__name__]  # an extra may ask for another one


def _library(wanted: Requirement) -> Library:
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return Library(wanted.name, str(wanted.specifier), None, fits=False)
    # A build for one kind of processor, such as 2.13.0+cpu, is that version.
    return Library(wanted.name, str(wanted.specifier), found, fits=wanted.specifier.contains(found, prereleases=True))
