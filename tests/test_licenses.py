"""docs/licenses.md lists every library that hybridge asks for, each with a license."""

from __future__ import annotations

import sys
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import licenses

pytestmark = pytest.mark.thorough  # of a campaign script


def listed() -> dict[str, tuple[str, str]]:
    lines = [line.strip("| ").split(" | ") for line in licenses.PAGE.read_text(encoding="utf-8").splitlines() if " | " in line]
    return {name: (why, named) for name, why, named in lines[1:]}


def test_every_library_that_is_asked_for_is_listed() -> None:
    for part, wanted in licenses.wants().items():
        for each in wanted:
            why = listed()[canonicalize_name(each.name)][0]  # "hybridge" where it is needed without any extra too
            assert part in why or why == "hybridge", f"{each.name} is not listed for {part}: scripts/licenses"


def test_what_is_listed_is_what_the_installed_libraries_say() -> None:
    different = {name: said for name, (_, said) in listed().items() if installed(name) and licenses.license_of(name) != said}
    assert different == {}, "scripts/licenses writes the page again"


def installed(name: str) -> bool:
    return any(True for _ in metadata.distributions(name=name))


@pytest.mark.parametrize(
    ("fields", "license_name"),
    [
        ({"License-Expression": "MIT", "License": "other"}, "MIT"),
        ({"License": "BSD"}, "BSD"),
        ({"License": "The whole\ntext", "Classifier": "License :: OSI Approved :: BSD License"}, "BSD License"),
        (
            {"License": "UNKNOWN", "Classifier": "License :: OSI Approved :: Apache Software License (v2)"},
            "Apache Software License",
        ),
        ({}, "its LICENSE"),
    ],
)
def test_a_license_is_named_shortly(monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], license_name: str) -> None:
    message = Message()
    for name, value in fields.items():
        message[name] = value
    monkeypatch.setattr(metadata, "metadata", lambda name: message)
    monkeypatch.setattr(metadata, "files", lambda name: [Path("x.dist-info/licenses/LICENSE"), Path("x.py")])
    assert licenses.license_of("x") == license_name
