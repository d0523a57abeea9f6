"""ExecuTorch is known to the program of the core and to the kernels alone: the rest compiles without its headers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from native_programs import native_program

from hybridge.runtime.binding import library
from hybridge.runtime.kernels import compiling

NATIVE = library.SOURCES
OURS = [each for each in sorted(NATIVE.rglob("*")) if each.suffix in (".h", ".cpp", ".c") and "third_party" not in each.parts]
PTE = NATIVE / "pte"


def test_only_the_program_of_executorch_names_its_headers() -> None:
    naming = {each for each in OURS if re.search(r"[<\"]executorch/", each.read_text(encoding="utf-8"))}
    assert naming == set(PTE.glob("*.cpp"))


@pytest.mark.skipif(compiling.compiler() is None, reason="needs a C++ compiler")
def test_the_headers_and_the_c_api_are_read_without_executorch(tmp_path: Path) -> None:
    """The preprocessor finds all that they include, and nothing of ExecuTorch is among it."""
    headers = [each for each in OURS if each.suffix == ".h"]
    everything = tmp_path / "everything.cpp"
    everything.write_text("".join(f'#include "{each}"\n' for each in headers), encoding="utf-8")
    units = [each for each in library.sources() if each.parent != PTE]
    command = [compiling.compiler(), "-std=c++20", f"-I{NATIVE}", "-M", everything, *units]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    read = {Path(word).resolve() for word in done.stdout.replace("\\\n", " ").split() if word.startswith("/")}
    assert {each.resolve() for each in headers} <= read
    assert not [each for each in read if "executorch" in each.parts or "torch" in each.parts]


def test_the_core_is_built_with_executorch_on_the_path_of_its_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[list[str]] = []

    def compile_all(commands: list[list[str]], folder: Path) -> str:
        compiled.extend(commands)
        return "not at all"

    monkeypatch.setattr(compiling, "compile_all", compile_all)
    with pytest.raises(library.NativeError):
        library._compile(tmp_path / library.NAME)
    assert len(compiled) > 30
    knowing = {
        Path(word) for each in compiled if any("executorch" in flag for flag in each) for word in each if word.endswith(".cpp")
    }
    assert knowing == set(PTE.glob("*.cpp"))


@pytest.mark.slow
def test_failures_keep_their_words_on_the_way_up() -> None:
    done = subprocess.run([native_program("status")], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
