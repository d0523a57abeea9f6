"""Building and loading the kernels: what is refused, what is left behind, and when nothing is built again."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridge.cache.errors import KernelsError
from hybridge.export.cli import app
from hybridge.runtime.kernels import library
from hybridge.runtime.kernels.instruction_sets import instruction_sets


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hybridge" / "kernels"


@pytest.fixture(autouse=True)
def fresh_key() -> Iterator[None]:
    """Neither another test's key nor one of these for other tests."""
    library._key.cache_clear()
    yield
    library._key.cache_clear()


def test_without_a_compiler_it_is_said_what_to_do(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "compiler", lambda: None)
    with pytest.raises(KernelsError, match=r"install g\+\+ or clang\+\+, or set CXX.*--kernels llm"):
        library.load()
    assert not library.is_available()
    assert not empty_cache.exists()


def test_a_compiler_that_fails_leaves_nothing(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(KernelsError, match="do not compile with"):
        library.build()
    assert "once, about a minute" in caplog.text  # nobody should wonder what takes so long
    assert not library.is_built()
    assert not [path for path in empty_cache.rglob("*") if path.is_file()]


def test_what_is_built_is_not_built_again(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.path().parent.mkdir(parents=True)
    library.path().write_bytes(b"")

    def run(command: Sequence[str]) -> None:
        raise AssertionError(command)

    monkeypatch.setattr(library, "_run", run)
    assert library.build() == library.path()


def test_one_library_serves_every_processor_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = library.path()
    library._key.cache_clear()
    monkeypatch.setattr(platform, "processor", lambda: "another")
    assert library.path() == mine
    library._key.cache_clear()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert library.path() != mine


def test_a_processor_without_instruction_sets_gets_the_plain_code() -> None:
    assert [(each.name, each.flags) for each in instruction_sets("riscv64")] == [("plain", ())]
    assert [each.name for each in instruction_sets("arm64")] == ["plain", "dotprod", "i8mm"]


def in_another_process(choice: str) -> subprocess.CompletedProcess[str]:
    """``hybridge kernels info`` with that $HYBRIDGE_ISA."""
    command = [sys.executable, "-c", "from hybridge.export.cli import main; main()", "kernels", "info", "--json"]
    environment = os.environ | {library.CHOICE: choice}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)


@pytest.mark.slow
def test_the_instruction_set_can_be_chosen() -> None:
    library.build()
    plain = in_another_process("plain")
    assert json.loads(plain.stdout)["instruction_set"] == "plain", plain.stderr
    best = json.loads(in_another_process("").stdout)["instruction_set"]
    assert best in [each.name for each in instruction_sets()]


@pytest.mark.slow
def test_an_instruction_set_that_there_is_not_is_refused() -> None:
    library.build()
    answer = in_another_process("avx3")
    assert answer.returncode == 2
    assert re.search(
        r"HYBRIDGE_ISA is avx3; this processor has plain\b.*Set it to one of them, or not at all",
        answer.stderr.replace("\n", " "),
    )


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("objdump"), reason="for x86-64; needs objdump")
def test_what_all_instruction_sets_share_needs_none() -> None:
    """The linker keeps one copy of an inline function of ExecuTorch's headers: it must not be one with AVX in it."""
    listed = subprocess.run(
        ["objdump", "-dC", "--no-show-raw-insn", library.build()], capture_output=True, text=True, check=True
    )
    functions = re.findall(r"^[0-9a-f]+ <(.*)>:\n((?:.+\n)*)", listed.stdout, flags=re.MULTILINE)
    shared = [(name, body) for name, body in functions if "hybridge::" not in name or "register_kernel" in name]
    assert len(shared) > 10
    assert any(name.startswith("_GLOBAL__sub_I_") for name, _ in shared)
    assert not [name for name, body in shared if re.search(r"%[yz]mm|\tv[a-z]", body)]


@pytest.mark.usefixtures("empty_cache")
def test_a_damaged_library_is_refused() -> None:
    library.path().parent.mkdir(parents=True)
    library.path().write_bytes(b"not a library")
    with pytest.raises(KernelsError, match="kernels build --force"):
        library.load()


@pytest.mark.usefixtures("empty_cache")
def test_the_command_line_says_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "compiler", lambda: None)
    library._key.cache_clear()
    answer = CliRunner().invoke(app, ["kernels", "info"])
    assert answer.exit_code == 0
    assert "none found; install g++" in answer.stdout
    assert "instruction set: chosen once they are built" in answer.stdout
    assert isinstance(CliRunner().invoke(app, ["kernels", "build"]).exception, KernelsError)
