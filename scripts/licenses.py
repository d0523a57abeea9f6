"""Write docs/licenses.md: the licenses of the libraries that hybridge needs, and of those that they need."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "licenses.md"
DEVELOPMENT = "dev"
HEAD = """# Licenses

hybridge is under Apache-2.0 ([LICENSE](../LICENSE)). Below are the libraries that it needs and those that they need,
with the license that each one's installed description names; `scripts/licenses` writes this page. The embedded models
are our own, see [their page](../export/embedded/README.md). A wheel for one platform has copies of ExecuTorch's shared
libraries, whose licenses are in [THIRD_PARTY_LICENSES](../THIRD_PARTY_LICENSES).

| library | for | license |
|---|---|---|
"""
LONGEST = 60
"""Characters of a license's name; some descriptions have the whole text there."""


def main() -> None:
    """Write the page."""
    PAGE.write_text(HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows()), encoding="utf-8")


def rows() -> list[tuple[str, str, str]]:
    """Return each library's name, which part of hybridge wants it, and its license."""
    parts: dict[str, list[str]] = {}
    for part, wanted in wants().items():
        for name in closure(wanted):
            parts.setdefault(name, []).append(part)
    always = "hybridge"
    return [(name, always if always in why else ", ".join(why), license_of(name)) for name, why in sorted(parts.items())]


def wants() -> dict[str, list[Requirement]]:
    """Return what hybridge itself and each of its extras ask for, other extras left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: wanted for name, wanted in project["optional-dependencies"].items() if name != DEVELOPMENT}
    parts = {"hybridge": project["dependencies"], **extras}
    every = {name: [Requirement(each) for each in wanted] for name, wanted in parts.items()}
    return {name: [each for each in wanted if each.name != "hybridge"] for name, wanted in every.items()}


def closure(wanted: Iterable[Requirement]) -> set[str]:
    """Return the names of these libraries and of all that they need here."""
    seen: set[str] = set()
    waiting = list(wanted)
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        if name not in seen:
            seen.add(name)
            waiting += needs(name, each.extras)
    return seen


def needs(name: str, extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield what an installed library asks for on this machine."""
    for text in metadata.requires(name) or ():
        each = Requirement(text)
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield each


def license_of(name: str) -> str:
    """Return the license in an installed library's description: an expression, a classifier, or its own words."""
    found = metadata.metadata(name)
    if expression := found.get("License-Expression"):
        return expression
    own = (found.get("License") or "").strip()
    classifiers = [each.rpartition(" :: ")[2] for each in found.get_all("Classifier") or () if each.startswith("License :: ")]
    named = ", ".join(re.sub(r" \(.*\)$", "", each) for each in classifiers if each != "OSI Approved")
    if own and own != "UNKNOWN" and "\n" not in own and len(own) <= LONGEST:
        return str(own)
    return named or _file_of(name)


def _file_of(name: str) -> str:
    """Return where the whole text is, of which the description has no name."""
    files = [path.name for path in metadata.files(name) or () if path.name.upper().startswith(("LICENSE", "COPYING"))]
    return f"its {files[0]}" if files else "not named"


if __name__ == "__main__":
    main()
