"""Artifacts and programs that tests share: each is made once for the code and the inputs that decide it, and kept.

A key is a hash of contents: of the inputs, and of the modules that write an artifact. So a run finds what an earlier one made
where neither has changed, a change of the server makes no export again, and a mutated exporter never meets an old artifact.
HYBRIDGE_TEST_STORE names another folder than ``~/.cache/hybridge-tests``.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import grimp
from checkout import CHECKOUT
from filelock import FileLock

from hybridge.runtime.artifact.manifest import GOLDEN, MANIFEST, read_manifest
from hybridge.runtime.artifact.options import ExportOptions

FOLDER = Path(os.environ.get("HYBRIDGE_TEST_STORE", Path.home() / ".cache" / "hybridge-tests"))
KEPT = 24 * 3600.0
"""Seconds since its last run for which a version's artifacts are kept: runs of several working copies share the folder."""
EXPORTING = ("hybridge.export.api",)
NOT_WRITING = ("hybridge.export.check",)
"""Modules that ``EXPORTING`` imports and that decide nothing of what is written, as ``hybridge`` itself, which names things."""


def packed_files(folder: Path) -> dict[str, bytes]:
    """Return an artifact's files as a packing writes them: without golden steps, which need the eager model."""
    manifest = read_manifest(folder)
    files = {name: entry for name, entry in manifest.files.items() if name != GOLDEN}
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != GOLDEN}
    return found | {MANIFEST: manifest.model_copy(update={"files": files}).to_json().encode()}


def exported(
    checkpoint: Path,
    options: ExportOptions,
    *,
    adapters: Sequence[Path] = (),
    tokenizer: Path | None = None,
    drafter: Path | None = None,
    draft_vocab: int | Path | None = None,
    calibrate: Path | None = None,
) -> Path:
    """Return the artifact of ``checkpoint`` by ``options``, as ``export_model`` writes it. Copy it before changing it.

    Use export_model itself where the export is what is tested.
    """
    more: dict[str, Any] = {
        "adapters": adapters,
        "tokenizer": tokenizer,
        "drafter": drafter,
        "draft_vocab": draft_vocab,
        "calibrate": calibrate,
    }

    def make(folder: Path) -> None:
        from hybridge.export.api import export_model  # slow to import

        export_model(checkpoint, folder / "artifact", options, **more)

    inputs = [checkpoint, options, *(part for item in more.items() for part in item)]
    return made(f"artifact-{options.format}", inputs, make) / "artifact"


def demo_folder() -> Path:
    """Return a folder with hybridge-demo, hybridge-demo-draft and hybridge-demo-dspark, as ``hybridge bench`` exports them."""
    from hybridge.export.cli.embedded import DRAFT_OPTIONS, DSPARK_OPTIONS, EMBEDDED, TARGET_OPTIONS, export_embedded

    def make(folder: Path) -> None:
        export_embedded(*(folder / name for name in ("hybridge-demo", "hybridge-demo-draft", "hybridge-demo-dspark")))

    return made("demo", [EMBEDDED, TARGET_OPTIONS, DRAFT_OPTIONS, DSPARK_OPTIONS], make)


def made(kind: str, inputs: Iterable[object], make: Callable[[Path], object]) -> Path:
    """Return the folder that ``make`` filled for these inputs; by the process that asks first, while the others wait.

    Paths among the inputs stand for what they hold.
    """
    generation = FOLDER / exporting_code()
    folder = generation / f"{kind}-{_digest(_parts(inputs))}"
    if folder.exists():
        return folder
    generation.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            unfinished = folder.with_suffix(".partial")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


@functools.cache
def exporting_code() -> str:
    """Return a hash of the modules that write an artifact, of the pinned libraries and of the Python."""
    graph = grimp.build_graph("hybridge", cache_dir=None)
    modules, left = set[str](), list(EXPORTING)
    while left:
        module = left.pop()
        if module in modules or module == "hybridge" or module.startswith(NOT_WRITING):
            continue
        modules.add(module)
        left += graph.find_modules_directly_imported_by(module)
    files = [CHECKOUT / "requirements.lock", *map(_source, sorted(modules))]
    digest = _digest([sys.version.encode(), platform.machine().encode(), *(path.read_bytes() for path in files)])
    _forget_older(digest)
    return digest


def _source(module: str) -> Path:
    path = CHECKOUT.joinpath("src", *module.split("."))  # where the packages are links
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _forget_older(current: str) -> None:
    (FOLDER / current).mkdir(parents=True, exist_ok=True)
    os.utime(FOLDER / current)
    for old in FOLDER.iterdir():
        if old.is_dir() and time.time() - old.stat().st_mtime > KEPT:
            shutil.rmtree(old, ignore_errors=True)


def _parts(inputs: Iterable[object]) -> Iterable[bytes]:
    for each in inputs:
        if isinstance(each, Path):
            yield from _content(each)
        elif isinstance(each, (tuple, list)):
            yield from _parts(each)
        else:
            yield repr(each).encode()


def _content(path: Path) -> Iterable[bytes]:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        yield str(file.relative_to(path)).encode()
        yield file.read_bytes()


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]
