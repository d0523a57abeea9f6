"""Write what an app in C or C++ is built with and ships: the compiled libraries, headers, and licences, without Python."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.metadata import files
from pathlib import Path

from hybridge.errors import NativeError, OutputError, UsageError
from hybridge.runtime.binding import library
from hybridge.runtime.files import folder_target, partial_folder, sync_tree
from hybridge.runtime.kernels import library as kernels
from hybridge.runtime.pinned import COPIED, library_folder
from hybridge.runtime.platforms import library_file

LICENCES = ("LICENSE", "THIRD_PARTY_LICENSES")


def libraries() -> Sequence[Path]:
    """Return our two libraries and ExecuTorch's below them, in an order in which they can be loaded.

    Raises what ``library.build`` and ``kernels.library.build`` raise: in a checkout they are compiled.
    """
    return [*(library_folder() / library_file(name) for name in COPIED), kernels.build(), library.build()]


def write(out: Path) -> Path:
    """Write the folder ``out``, whole or not at all, and return it.

    An app ships ``lib`` and ``licences``; CMake and pkg-config find hybridge by ``lib/cmake`` and ``lib/pkgconfig``.

    Raises:
        UsageError: there is something at ``out`` already.
        OutputError: it cannot be written.
        NativeError, KernelsError: there are no compiled libraries, and they cannot be compiled.
    """
    needed, texts = libraries(), licences()
    try:
        place = folder_target(out)
        if place.exists() and any(place.iterdir()):
            raise UsageError(f"{out} is not empty: name a new folder, or remove it.")
        place.parent.mkdir(parents=True, exist_ok=True)
        with partial_folder(place) as partial:
            folder = partial / "bundle"
            _fill(folder, needed, texts)
            sync_tree(folder)
            folder.rename(place)
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error.strerror or error}.") from None
    return out


def _fill(folder: Path, needed: Sequence[Path], texts: Sequence[Path]) -> None:
    lib, cmake = folder / "lib", folder / "lib/cmake/hybridge"
    shutil.copytree(library.SOURCES / "hybridge", folder / "include/hybridge")
    shutil.copytree(library.SOURCES / "cmake", cmake, ignore=shutil.ignore_patterns("installed", "*.pc"))
    (lib / "pkgconfig").mkdir()
    found = (library.SOURCES / "cmake/hybridge.pc").read_text(encoding="ascii")
    found = found.replace("${pcfiledir}/../../kernels/prebuilt", "${pcfiledir}/..").replace(
        "includedir=${pcfiledir}/..", "includedir=${pcfiledir}/../../include"
    )
    (lib / "pkgconfig/hybridge.pc").write_text(found, encoding="ascii")
    for path in needed:
        shutil.copy(path, lib)
    (folder / "licences").mkdir()
    for path in texts:
        shutil.copy(path, folder / "licences")


def licences() -> Sequence[Path]:
    """Return the texts of our licence and of those of the libraries. Raises NativeError if this installation has none."""
    checkout = library.SOURCES.resolve().parents[1]
    found = [checkout / name for name in LICENCES]
    if not all(path.is_file() for path in found):
        installed = [each for each in files("hybridge") or () if each.parent.name == "licenses" and each.name in LICENCES]
        found = [Path(str(each.locate())) for each in installed]
    if len(found) != len(LICENCES):
        raise NativeError("this installation of hybridge has no licences to put beside its libraries: install its wheel.")
    return found
