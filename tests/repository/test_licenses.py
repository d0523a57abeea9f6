"""docs/licenses.md lists every library that hybridge and its extras ask for."""

from __future__ import annotations

import re
import tomllib

from campaigns import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def test_every_library_that_is_asked_for_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for name, wanted in project["optional-dependencies"].items() if name != "dev" for each in wanted]
    wanted = {canonicalize_name(Requirement(each).name) for each in project["dependencies"] + extras} - {"hybridge"}
    page = (ROOT / "docs" / "licenses.md").read_text(encoding="utf-8")
    listed = {canonicalize_name(name) for name in re.findall(r"(?m)^\| (\S+) \| \S", page)}
    assert wanted - listed == set(), "scripts/trust licenses writes the page again"
