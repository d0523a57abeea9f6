"""Writes of files that users keep survive power cuts and Ctrl-C: by the recorder of ``scripts/trust faults``."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from campaigns.faults import power
from campaigns.faults.writers import Broken, Compile, SaveOver, Writer
from interrupts import Interrupt

from hybridge.errors import KernelsError
from hybridge.runtime.files import hash_path
from hybridge.runtime.kernels import compiling

SYNCED = "f = open(part, 'w'); f.write('new' * 1000); f.flush(); os.fsync(f.fileno()); os.replace(part, path)"
WAYS = {
    "in place": "open(path, 'w').write('new' * 1000)",
    "renamed and not synced": "open(part, 'w').write('new' * 1000); os.replace(part, path)",
    "synced, but not its name": SYNCED,
    "synced": f"{SYNCED}; d = os.open(folder, os.O_RDONLY); os.fsync(d)",
}
FOUND = {
    "in place": "there was old, and now there is nothing",
    "renamed and not synced": "neither old nor new",
    "synced, but not its name": "the writer was done, and there is old",
    "synced": "",
}


class Text(Writer):
    """A file of text, written as ``WAYS`` says."""

    name = "text"
    way: ClassVar[str] = "in place"

    def before(self, folder: Path) -> None:
        (folder / "file").write_text("old" * 1000)

    def write(self, folder: Path) -> None:
        path, part = folder / "file", folder / "part"
        exec(WAYS[self.way], {"os": os}, {"path": path, "part": part, "folder": folder})

    def found(self, folder: Path) -> str:
        text = (folder / "file").read_text() if (folder / "file").exists() else ""
        if text in ("old" * 1000, "new" * 1000, ""):
            return text[:3] or "nothing"
        raise Broken("neither old nor new")


needs_preloading = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="for Linux; needs a C compiler")


@needs_preloading
@pytest.mark.parametrize("way", WAYS)
def test_a_power_cut_finds_what_is_not_synced(way: str, tmp_path: Path) -> None:
    code = f"import os, sys; folder = sys.argv[-1]; path, part = folder + '/file', folder + '/part'; {WAYS[way]}"
    outcomes, wrong = power.campaign(Text(), tmp_path, [sys.executable, "-c", code])
    assert outcomes["new"] > 0
    assert outcomes["old"] > 0
    assert any(FOUND[way] in line for line in wrong) == bool(FOUND[way])
    assert bool(wrong) == bool(FOUND[way]), wrong


@pytest.mark.slow
@needs_preloading
def test_a_save_survives_power_cuts(kernels_artifact: Path, tmp_path: Path) -> None:
    writer = SaveOver(kernels_artifact)
    command = [
        sys.executable,
        "-m",
        "campaigns.faults",
        "--writer",
        "save",
        "--write",
        str(kernels_artifact),
        str(kernels_artifact),
    ]
    outcomes, wrong = power.campaign(writer, tmp_path / "power", command)
    assert wrong == []
    assert outcomes["old"] > outcomes["new"] > 0


def test_a_build_that_is_killed_between_two_names_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of the new one stood beside the old one, which was refused as damaged from then on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    writer = Compile()
    writer.before(tmp_path)
    library = next(tmp_path.rglob("library.so"))
    replace = Path.replace

    def killed(source: Path, target: Path) -> Path:
        if Path(target) == library:
            raise KeyboardInterrupt
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        writer.write(tmp_path)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hash_path(library).exists()
    assert writer.found(tmp_path) == "nothing"
    writer.write(tmp_path)
    assert writer.found(tmp_path) == "new"


def test_a_library_beside_the_hash_of_another_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Compile()
    writer.before(tmp_path)
    next(tmp_path.rglob("library.so")).write_bytes(b"another")
    with pytest.raises(Broken, match="the library is refused"):
        writer.found(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(KernelsError, match="altered or damaged"):
        compiling.built(next(tmp_path.rglob("library.so")), lambda path: None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a strike where a forgotten claim is released
def test_a_build_survives_ctrl_c_at_every_line(tmp_path: Path) -> None:
    """Struck after the claim of its folder, it kept the folder from every later build of the process."""
    writer, counting = Compile(), Interrupt(-1)
    writer.before(tmp_path)
    counting.struck(lambda: writer.write(tmp_path))
    found = set()
    for strike in range(1, counting.places + 1):
        writer.before(tmp_path)
        Interrupt(strike).struck(lambda: writer.write(tmp_path))
        found.add(writer.check(tmp_path, "old"))
        writer.write(tmp_path)
        assert writer.found(tmp_path) == "new"
    assert found >= {"old", "new"}
