"""Building and loading the kernels: what is refused, what is left behind, and when nothing is built again."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from compiler_flags import instruction_sets, link_flags
from typer.testing import CliRunner

from hybridge.__main__ import tree
from hybridge.errors import KernelsError
from hybridge.runtime.files import hash_path
from hybridge.runtime.kernels import compiling, library
from hybridge.runtime.pinned import executorch

needs_objdump = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("objdump"), reason="for x86-64; needs objdump"
)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hybridge" / "kernels"


@pytest.fixture(autouse=True)
def fresh_key() -> Iterator[None]:
    """Neither another test's key nor one of these for other tests."""
    library._key.cache_clear()
    yield
    library._key.cache_clear()


def test_without_a_compiler_it_is_said_what_to_do(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    with pytest.raises(KernelsError, match=r"install g\+\+ or clang\+\+, or set CXX.*--kernels llm"):
        library.load()
    assert not library.is_available()
    assert not empty_cache.exists()


@pytest.mark.parametrize(
    ("programs", "says"), [((), "no CMake here: pip install cmake"), (("cmake",), "neither make nor ninja")]
)
def test_without_cmake_or_what_it_runs_it_is_said_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...], says: str
) -> None:
    for name in ("compiler", *programs):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "compiler")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert says in str(compiling.missing_tool())


def test_a_compiler_that_fails_leaves_nothing(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(KernelsError, match="do not compile with"):
        library.build()
    assert "once, about a minute" in caplog.text  # nobody should wonder what takes so long
    assert not library.is_built()
    assert not [path for path in empty_cache.rglob("*") if path.is_file()]


def pretend(content: bytes = b"a library") -> Path:
    """Build a library that is none, in no time."""
    return compiling.built(library.path(), lambda unfinished: unfinished.write_bytes(content) and None)


@pytest.mark.usefixtures("empty_cache")
def test_what_is_built_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend()

    def run(command: Sequence[str], folder: Path) -> None:
        raise AssertionError(command)

    monkeypatch.setattr(compiling, "errors_of", run)
    assert library.build() == library.path()


def test_one_library_serves_every_processor_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = library.path()
    library._key.cache_clear()
    monkeypatch.setattr(platform, "processor", lambda: "another")
    assert library.path() == mine
    library._key.cache_clear()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert library.path() != mine


def in_another_process(choice: str) -> subprocess.CompletedProcess[str]:
    """``hybridge kernels info`` with that $HYBRIDGE_ISA."""
    command = [sys.executable, "-c", "from hybridge.__main__ import main; main()", "kernels", "info", "--json"]
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


def shared_functions(library: Path) -> list[tuple[str, str]]:
    """Return names and code of the functions that no instruction set has to itself, such as those of ExecuTorch's headers."""
    command = ["objdump", "-dC", "--no-show-raw-insn", library]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    functions = re.findall(r"^[0-9a-f]+ <(.*)>:\n((?:.+\n)*)", listed, flags=re.MULTILINE)
    # Where a name is too long for objdump it stays as the linker has it.
    # A compiler's clone of a function is its file's own: no other set calls it.
    own = re.compile(r"hybridge::(?!register_kernel)|8hybridge(?!15register_kernel)|\[clone ")
    shared = [(name, body) for name, body in functions if not own.search(name)]
    assert len(shared) > 10
    assert any(name.startswith("_GLOBAL__sub_I_") for name, _ in shared)
    return shared


AVX = re.compile(r"%[yz]mm|\tv[a-z]")


@pytest.mark.slow
@needs_objdump
def test_what_all_instruction_sets_share_needs_none() -> None:
    """The linker keeps one copy of an inline function of ExecuTorch's headers: it must not be one with AVX in it."""
    assert not [name for name, body in shared_functions(library.build()) if AVX.search(body)]


@pytest.fixture(scope="module")
def better_set_named_first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configure an app's build of the kernels, which names a better instruction set before a worse one."""
    folder, cmake = tmp_path_factory.mktemp("kernels"), Path(sys.executable).with_name("cmake")
    options = [f"-DCMAKE_PREFIX_PATH={executorch()}", "-DHYBRIDGE_INSTRUCTION_SETS=avx2;plain"]
    command = [cmake, "-G", "Unix Makefiles", "-S", compiling.NATIVE, "-B", folder, *options]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.slow
@needs_objdump
def test_a_worse_instruction_set_is_linked_first_however_they_are_named(better_set_named_first: Path) -> None:
    linked = (better_set_named_first / "hybridge_kernels/CMakeFiles/hybridge_kernel_objects.dir/link.txt").read_text()
    assert list(dict.fromkeys(re.findall(r"hybridge_kernels_(\w+)\.dir", linked))) == ["dispatch", "plain", "avx2"]


@pytest.mark.thorough
@pytest.mark.slow
@needs_objdump
def test_what_an_app_s_instruction_sets_share_needs_none(better_set_named_first: Path) -> None:
    cmake, linked = Path(sys.executable).with_name("cmake"), better_set_named_first / "kernels.so"
    subprocess.run([cmake, "--build", better_set_named_first, "--parallel", "2"], check=True, capture_output=True)
    whole = ["-Wl,--whole-archive", str(better_set_named_first / "libhybridge_kernel_objects.a"), "-Wl,--no-whole-archive"]
    subprocess.run(
        [compiling.compiler() or "", "-shared", *whole, "-o", linked, *link_flags()],
        check=True,
        capture_output=True,
    )
    assert not [name for name, body in shared_functions(linked) if AVX.search(body)]


@pytest.mark.usefixtures("empty_cache")
def test_what_is_no_library_is_refused() -> None:
    pretend(b"not a library")
    with pytest.raises(KernelsError, match=r"does not load .*kernels build --force"):
        library.load()


# Who may have written it


SPOILS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a flipped bit": ("altered or damaged", lambda path: path.write_bytes(b"A library")),
    "another hash": ("altered or damaged", lambda path: hash_path(path).write_text("0" * 64)),
    "an empty hash": ("altered or damaged", lambda path: hash_path(path).write_text("")),
    "a library that others may write": ("others may write .*kernels.so", lambda path: path.chmod(0o777)),
    "a hash that others may write": ("others may write .*sha256", lambda path: hash_path(path).chmod(0o666)),
    "a folder that others may write": ("others may write", lambda path: path.parent.chmod(0o777)),
    "the folder above it": ("others may write", lambda path: path.parent.parent.chmod(0o770)),
    "the folder of everything": ("others may write", lambda path: path.parents[2].chmod(0o777)),
    "a place where folders may be renamed": ("anybody may rename", lambda path: path.parents[3].chmod(0o777)),
    "a pipe": ("no regular file", lambda path: (path.unlink(), os.mkfifo(path, 0o600))),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_others_may_have_written_is_not_run(empty_cache: Path, spoil: str) -> None:
    """It once was loaded because its path existed."""
    says, change = SPOILS[spoil]
    path = pretend()
    change(path)
    with pytest.raises(KernelsError, match=f"{says}.*; it is not run"):
        library.load()
    path.parents[3].chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's file")
@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_what_belongs_to_another_user_is_not_run(empty_cache: Path, which: int) -> None:
    path = pretend()
    os.chown([path, *path.parents][which], 12345, -1)
    with pytest.raises(KernelsError, match="belongs to another user, of id 12345; it is not run"):
        library.load()


def test_the_folders_are_the_users_own(empty_cache: Path) -> None:
    empty_cache.parent.mkdir(mode=0o775)
    empty_cache.parent.chmod(0o775)
    before = os.umask(0o002)
    path = pretend()
    os.umask(before)
    assert [each.stat().st_mode & 0o777 for each in path.parents[:3]] == [0o700] * 3
    assert library.build() == path


def test_an_older_build_without_a_hash_is_built_again(empty_cache: Path) -> None:
    library.path().parent.mkdir(parents=True)
    library.path().write_bytes(b"")
    assert not library.is_built()
    pretend()
    assert library.is_built()
    assert library.path().read_bytes() == b"a library"


def test_a_forced_build_mends_what_is_damaged(empty_cache: Path) -> None:
    path = pretend()
    path.write_bytes(b"damaged")
    compiling.built(path, lambda unfinished: unfinished.write_bytes(b"a library") and None, again=True)
    assert path.read_bytes() == b"a library"


def test_what_killed_builds_left_is_removed_by_the_next(empty_cache: Path) -> None:
    """26 files of 76 MB once stayed: those of the compiler are in the same folder now."""
    for place in (library.path().parent, library.path().parent.with_name("an older key")):
        leftover = place / ".libhybridge_kernels.so.partial"
        leftover.mkdir(parents=True)
        (leftover / "attention.o").write_bytes(bytes(1000))
    compilers: list[str | None] = []

    def make(unfinished: Path) -> None:
        assert not compiling.errors_of(["sh", "-c", f"echo $TMPDIR > {unfinished}"], unfinished.parent)
        compilers.append(unfinished.read_text().strip())
        assert compilers == [str(unfinished.parent)]

    compiling.built(library.path(), make)
    left = sorted(path.name for path in empty_cache.rglob("*") if path.is_file())
    assert left == ["libhybridge_kernels.so", "libhybridge_kernels.so.sha256"]
    assert list(empty_cache.rglob(".*")) == []


def test_one_builds_while_the_others_wait(empty_cache: Path) -> None:
    builds: list[int] = []

    def make(unfinished: Path) -> None:
        builds.append(1)
        time.sleep(0.2)
        unfinished.write_bytes(b"a library")

    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: compiling.built(library.path(), make), range(4)))
    assert paths == [library.path()] * 4
    assert len(builds) == 1


@pytest.mark.usefixtures("empty_cache")
def test_the_command_line_says_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    library._key.cache_clear()
    answer = CliRunner().invoke(tree(), ["kernels", "info"])
    assert answer.exit_code == 0
    assert "none found; install g++" in answer.stdout
    assert "instruction set: chosen once they are built" in answer.stdout
    assert isinstance(CliRunner().invoke(tree(), ["kernels", "build"]).exception, KernelsError)
