"""ExecuTorch is known to the program of the core and to the kernels alone: the rest compiles without its headers."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from native_programs import native_program

from hybridge.runtime.binding import library
from hybridge.runtime.kernels import compiling
from hybridge.runtime.pinned import executorch

NATIVE = library.SOURCES
OURS = [each for each in sorted(NATIVE.rglob("*")) if each.suffix in (".h", ".cpp", ".c") and "third_party" not in each.parts]
PTE = NATIVE / "pte"
OWN = {PTE / "heap.h"}
"""Headers that its sources share."""


def test_only_the_program_of_executorch_names_its_headers() -> None:
    naming = {each for each in OURS if re.search(r"[<\"]executorch/", each.read_text(encoding="utf-8"))}
    assert naming == {*PTE.glob("*.cpp"), *OWN}


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The commands of CMake's build as a first use has it."""
    build = tmp_path_factory.mktemp("configured")
    options = {"CMAKE_EXPORT_COMPILE_COMMANDS": "ON", "CMAKE_PREFIX_PATH": executorch(), "HYBRIDGE_INSTALL": "OFF"}
    command = [str(compiling.cmake()), "-S", NATIVE, "-B", build, *(f"-D{name}={value}" for name, value in options.items())]
    subprocess.run(command, check=True, capture_output=True)
    found: list[dict[str, str]] = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.skipif(compiling.compiler() is None, reason="needs a C++ compiler")
def test_the_headers_and_the_c_api_are_read_without_executorch(tmp_path: Path) -> None:
    """The preprocessor finds all that they include, and nothing of ExecuTorch is among it."""
    headers = [each for each in OURS if each.suffix == ".h" and each not in OWN]
    everything = tmp_path / "everything.cpp"
    everything.write_text("".join(f'#include "{each}"\n' for each in headers), encoding="utf-8")
    units = [each for each in OURS if each.suffix == ".cpp" and each.parent != PTE and "cli" not in each.parts]
    command = [compiling.compiler(), "-std=c++20", f"-I{NATIVE}", "-M", everything, *units]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    read = {Path(word).resolve() for word in done.stdout.replace("\\\n", " ").split() if word.startswith("/")}
    assert {each.resolve() for each in headers} <= read
    assert not [each for each in read if "executorch" in each.parts or "torch" in each.parts]


def test_the_core_is_built_with_executorch_on_the_path_of_its_program_alone(configured: list[dict[str, str]]) -> None:
    core = [each for each in configured if each["output"].startswith("CMakeFiles/hybridge_") and "_cli." not in each["output"]]
    knowing = {Path(each["file"]) for each in core if "executorch" in each["command"]}
    assert {each.resolve() for each in knowing} == {each.resolve() for each in PTE.glob("*.cpp")}


def test_every_source_is_compiled_as_for_a_first_use(configured: list[dict[str, str]]) -> None:
    """Flags that were lost would be noticed as a slower core, or as other numbers."""
    compiled = {Path(each["file"]).resolve(): each["command"].split() for each in configured}
    for path in (each for each in OURS if each.suffix == ".cpp"):
        flags = compiled[path.resolve()]
        assert {"-std=c++20", "-O2", "-fvisibility=hidden"} <= {*flags}, path
    for path in library.SOURCES.with_name("kernels").rglob("*.cpp"):
        flags = compiled[path.resolve()]
        assert {"-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-DNDEBUG"} <= {*flags}, path


@pytest.mark.slow
def test_failures_keep_their_words_on_the_way_up() -> None:
    done = subprocess.run([native_program("status")], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
