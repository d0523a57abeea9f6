"""examples/swift: its sources, names and versions are ours, and where a Swift compiler is, its own tests pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from c_functions import uncalled
from checkout import CHECKOUT

from hybridge.runtime.binding.library import SOURCES as NATIVE
from hybridge.runtime.pinned import executorch

PACKAGE = CHECKOUT / "examples/swift"
MANIFEST = (PACKAGE / "Package.swift").read_text(encoding="utf-8")
SOURCES = PACKAGE / "Sources"


def test_it_compiles_the_core_and_the_kernels() -> None:
    """A file or folder that was left out would be missing in an app alone."""
    listed = re.search(r"let core = \[(.*?)\]", MANIFEST)
    assert listed
    sources = {path.relative_to(NATIVE).parts[0] for path in NATIVE.rglob("*.cpp")}
    assert set(re.findall(r'"([\w.]+)"', listed[1])) == sources - {"cli", "third_party"}
    assert 'sources: core + thirdParty + ["kernels"]' in MANIFEST
    assert (SOURCES / "CHybridge/kernels").resolve() == CHECKOUT / "runtime/kernels"
    assert (SOURCES / "CHybridge/native").resolve() == CHECKOUT / "runtime/native"
    assert (SOURCES / "CHybridge/include/hybridge/hybridge.h").resolve() == CHECKOUT / "runtime/native/hybridge/hybridge.h"


def test_it_names_the_version_of_executorch() -> None:
    assert f'branch: "swiftpm-{version("executorch")}"' in MANIFEST


def test_the_statuses_are_the_headers() -> None:
    statuses = (NATIVE / "hybridge/hybridge.h").read_text(encoding="utf-8").partition("hybridge_status;")[0]
    swift = (SOURCES / "Hybridge/HybridgeError.swift").read_text(encoding="utf-8")
    cases = re.search(r"enum Status: UInt32, Sendable \{(.*?)\}", swift, re.DOTALL)
    assert cases
    named = [name.upper() for name in re.findall(r"(?:case|,)\s+`?(\w+)", cases[1])]
    assert named == [name.replace("_", "") for name in re.findall(r"^  HYBRIDGE_(\w+) = [1-9]", statuses, re.MULTILINE)]
    assert "case invalidArgument = 1" in cases[1]


def test_each_c_function_is_called() -> None:
    header = (NATIVE / "hybridge/hybridge.h").read_text(encoding="utf-8")
    swift = "".join(path.read_text(encoding="utf-8") for path in (SOURCES / "Hybridge").glob("*.swift"))
    assert uncalled(header, swift) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("swift") is None, reason="needs Swift: apt-get install swiftlang (Debian 13)")
def test_its_own_tests_pass(kernels_artifact: Path, tmp_path: Path) -> None:
    """A copy, because the link to ExecuTorch's package is the user's own."""
    package = tmp_path / "examples/swift"
    shutil.copytree(PACKAGE, package, symlinks=True, ignore=shutil.ignore_patterns(".build", "executorch"))
    (package / "executorch").symlink_to(executorch())
    (tmp_path / "runtime").symlink_to(CHECKOUT / "runtime")
    done = subprocess.run(
        ["swift", "test", "--package-path", str(package), "--scratch-path", str(tmp_path / "build")],
        env=os.environ | {"HYBRIDGE_MODEL": str(kernels_artifact / "model.pte")},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "Executed 11 tests, with 0 failures" in done.stdout + done.stderr
