"""The catalogue: programs for published shapes, in a package of its own that has data and no code.

``scripts/catalogue`` makes it for a release. Its files are trusted as the Python beside them is, and checked by their hashes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from hybridge.runtime.files import read_regular
from hybridge.runtime.pack.programs import LARGEST, KeptProgram, read_program
from hybridge.runtime.version import __version__, code_version

PACKAGE, DISTRIBUTION = "hybridge_catalogue", "hybridge-catalogue"
INDEX = "index.json"
LARGEST_INDEX = 1 << 24


@checked(config=ConfigDict(extra="forbid"), frozen=True, kw_only=True)
class CatalogueEntry:
    """A program.

    key: the whole shape's; shape, kinds: hashes of parts of it; model: a published model of the shape; mix: llama.cpp's name of
    the types of its tensors; sha256: of the file ``programs/KEY``.
    """

    key: str
    shape: str
    kinds: str
    model: str
    mix: str
    sha256: str


@checked(config=ConfigDict(extra="forbid"), frozen=True, kw_only=True)
class CatalogueIndex:
    """``index.json``. version, code: of the hybridge that made the programs."""

    version: str
    code: str
    programs: list[CatalogueEntry]


INDEXES = TypeAdapter(CatalogueIndex)


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """A catalogue in a folder."""

    folder: Path
    index: CatalogueIndex

    @property
    def programs(self) -> list[CatalogueEntry]:
        """Return its entries."""
        return self.index.programs

    @property
    def version(self) -> str:
        """Return the version of hybridge that it is for."""
        return self.index.version

    @property
    def is_for_this_code(self) -> bool:
        """Return whether the code that exports here made its programs."""
        return self.index.code == code_version()

    @property
    def mismatch(self) -> str:
        """Return a sentence for one that is not."""
        if self.version == __version__:
            return (
                f"The programs of {DISTRIBUTION} {self.version} are of other code than this hybridge {__version__} has: "
                "take both from one release."
            )
        return (
            f"The programs of {DISTRIBUTION} {self.version} are for hybridge {self.version}, and this is {__version__}: "
            f"pip install {DISTRIBUTION}=={__version__}."
        )

    def find(self, key: str) -> KeptProgram | None:
        """Return the program of a shape; None if there is none that is whole."""
        entry = next((each for each in self.programs if each.key == key), None)
        if entry is None or not key.isalnum():
            return None
        try:
            data = read_regular(self.folder / "programs" / key, LARGEST)
        except OSError:
            return None
        return read_program(data) if hashlib.sha256(data).hexdigest() == entry.sha256 else None


def installed_catalogue() -> Catalogue | str | None:
    """Return the catalogue that is installed, None if none is, and a sentence for one that is damaged."""
    spec = find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        return None
    try:
        index = INDEXES.validate_json(read_regular(Path(places[0]) / INDEX, LARGEST_INDEX))
    except (OSError, ValidationError, ValueError):
        return f"{DISTRIBUTION} is damaged ({places[0]}): pip install --force-reinstall {DISTRIBUTION}=={__version__}."
    return Catalogue(folder=Path(places[0]), index=index)
