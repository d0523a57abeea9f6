"""Building and loading the kernels: what is refused, what is left behind, and when nothing is built again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridge.cache.errors import KernelsError
from hybridge.export.cli import app
from hybridge.runtime.kernels import compiling, library


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
    assert "once, about half a minute" in caplog.text  # nobody should wonder what takes so long
    assert not library.is_built()
    assert not [path for path in empty_cache.rglob("*") if path.is_file()]


def test_what_is_built_is_not_built_again(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.path().parent.mkdir(parents=True)
    library.path().write_bytes(b"")

    def run(command: Sequence[str]) -> None:
        raise AssertionError(command)

    monkeypatch.setattr(library, "_run", run)
    assert library.build() == library.path()


def test_another_processor_gets_a_library_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = library.path()
    library._key.cache_clear()
    monkeypatch.setattr(compiling, "_features", lambda: "flags: sse2")
    assert library.path() != mine


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
    assert isinstance(CliRunner().invoke(app, ["kernels", "build"]).exception, KernelsError)
