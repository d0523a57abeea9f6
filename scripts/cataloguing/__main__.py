"""Make the catalogue: export each published shape in its usual mixes, from random weights, and put the programs into a wheel.

What is made stays in the folder, so an interrupted run goes on where it was; programs of other code are made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

from cataloguing.shapes import SHAPES
from hybridge.export.cli.choices import ExportChoices
from hybridge.export.source.gguf.file import open_gguf
from hybridge.export.write.packed import PackingShape
from hybridge.models.find import ModelOptions
from hybridge.runtime.pack.catalogue import INDEX, INDEXES, PACKAGE, CatalogueEntry, CatalogueIndex
from hybridge.runtime.pack.programs import PINNED, find_program, installed_versions, program_file
from hybridge.runtime.version import __version__, code_version

PYPROJECT = f"""[build-system]
requires = ["hatchling==1.27.0"]
build-backend = "hatchling.build"

[project]
name = "hybridge-catalogue"
version = "{__version__}"
description = "Programs for published models' shapes: hybridge {__version__} opens their GGUF files without PyTorch"
license = "Apache-2.0"
requires-python = ">=3.11"

[tool.hatch.build.targets.wheel]
packages = ["{PACKAGE}"]
"""


def main() -> int:
    """Make what is missing, then the index and the wheel. Returns 1 if a shape could not be made."""
    parser = argparse.ArgumentParser(prog="scripts/catalogue", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the package is made")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of models, such as 'SmolLM2*'")
    parser.add_argument("--mixes", metavar="NAMES", help="mixes instead of the table's, such as Q4_0,Q8_0")
    parser.add_argument("--file", type=Path, action="append", default=[], metavar="GGUF", help="add the shape of a file, too")
    parser.add_argument("--list", action="store_true", help="list the models and their mixes, and make nothing")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "MIX"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        make(given.folder, *given.one)
        return 0
    chosen = [(name, mix) for name, shape in SHAPES.items() if fnmatch(name, given.only) for mix in _mixes(given.mixes, shape)]
    if given.list:
        print("\n".join(f"{name:24} {mix}" for name, mix in chosen))
        return 0
    if installed_versions() != PINNED:
        print(f"the catalogue is made with {dict(PINNED)}, and installed are {installed_versions()}", file=sys.stderr)
        return 2
    for folder in ("programs", "entries"):
        (given.folder / folder).mkdir(parents=True, exist_ok=True)
    failed = [one for one in (*chosen, *((str(path), "as it is") for path in given.file)) if not _is_made(given.folder, *one)]
    wheel(given.folder)
    for name, mix in failed:
        print(f"not made: {name} {mix}", file=sys.stderr)
    return 1 if failed else 0


def _mixes(named: str | None, shape: object) -> tuple[str, ...]:
    return tuple(named.split(",")) if named else shape.mixes  # type: ignore[attr-defined]


def _is_made(folder: Path, model: str, mix: str) -> bool:
    """Make a program in a process of its own, unless it is there, and say how long it took. Return whether it is there."""
    name = _name(model)
    if any((entry.model, entry.mix) == (name, mix) for entry in _entries(folder)):
        return True
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "cataloguing", str(folder), "--one", model, mix], check=False)
    made = [entry for entry in _entries(folder) if (entry.model, entry.mix) == (name, mix)]
    if done.returncode or not made:
        return False
    size = (folder / "programs" / made[0].key).stat().st_size
    print(f"{model:24} {mix:8} {time.monotonic() - began:6.0f} s {size:9,} bytes", flush=True)
    return True


def _name(model: str) -> str:
    """Return the name of a model of the table, or of a file without its ending; the table's names have dots."""
    return model if model in SHAPES else Path(model).stem


def _entries(folder: Path) -> Iterator[CatalogueEntry]:
    """Yield what was made by the code of today."""
    for path in sorted((folder / "entries").glob("*.json")):
        content = json.loads(path.read_text())
        if content.pop("code") == code_version():
            yield CatalogueEntry(**content)


def make(folder: Path, model: str, mix: str) -> None:
    """Export a shape, and write its program and entry."""
    from hybridge.export.api import export_model

    with TemporaryDirectory(prefix="hybridge-catalogue-") as temporary:
        file = Path(model)
        if model in SHAPES:
            from cataloguing.files import write_file

            file = Path(temporary) / "model.gguf"
            write_file(file, SHAPES[model], mix)
        options = ExportChoices(**asdict(ModelOptions())).options()
        shape = PackingShape.of(open_gguf(file), options)
        key = shape.key(PINNED)
        program = find_program(key)
        if program is None:
            export_model(file, Path(temporary) / "out", options)
            program = find_program(key)
    if program is None:
        raise SystemExit(f"{model} {mix}: nothing could be kept of its program, so it needs PyTorch")
    data = program_file(program)
    entry = CatalogueEntry(
        key=key, shape=shape.name, kinds=shape.kinds, model=_name(model), mix=mix,
        sha256=hashlib.sha256(data).hexdigest(),
    )  # fmt: skip
    (folder / "programs" / key).write_bytes(data)
    (folder / "entries" / f"{key}.json").write_text(json.dumps({**asdict(entry), "code": code_version()}))


def wheel(folder: Path) -> None:
    """Put what was made into a wheel in the folder."""
    entries = list(_entries(folder))
    with TemporaryDirectory(prefix="hybridge-catalogue-") as temporary:
        project = Path(temporary)
        (project / PACKAGE / "programs").mkdir(parents=True)
        (project / "pyproject.toml").write_text(PYPROJECT)
        (project / PACKAGE / "__init__.py").write_text('"""Programs for hybridge: data, and no code."""\n')
        index = CatalogueIndex(version=__version__, code=code_version(), programs=entries)
        (project / PACKAGE / INDEX).write_bytes(INDEXES.dump_json(index))
        for entry in entries:
            (project / PACKAGE / "programs" / entry.key).write_bytes((folder / "programs" / entry.key).read_bytes())
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder.resolve()), str(project)]
        subprocess.run(command, check=True, capture_output=True)
    made = folder / f"{PACKAGE}-{__version__}-py3-none-any.whl"
    print(f"{made}: {len(entries)} programs, {made.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
