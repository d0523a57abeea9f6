"""Cut the power at every moment of a writer's work: what was not synced by then may be there, in part, or not at all.

The writer runs once, under a recorder of all that it does to files. Then, for every beginning of that record, the folder is
made as a disk may have it after a cut there: names that are not synced are kept or lost, and bytes that are not synced are
kept, zeros or missing. A folder's names are durable once the folder was synced after them; a file's bytes once it was.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from campaigns.faults.writers import Broken, Writer

SOURCE = Path(__file__).with_name("recorder.c")
NAMES, BYTES = ("kept", "lost"), ("kept", "zeros", "lost")


@dataclass(frozen=True)
class Step:
    """One operation: its kind, its words, and the bytes of a write."""

    kind: str
    words: tuple[str, ...]
    data: bytes = b""


@dataclass
class File:
    """A file's bytes, and those that are synced. A folder has neither."""

    is_folder: bool = False
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class Disk:
    """The files below a root by inode, and the names of each folder: those that are seen, and those that are synced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[int, File] = {}
        self.seen: dict[int, dict[str, int]] = {}
        self.synced: dict[int, dict[str, int]] = {}
        self._take(root)

    def _take(self, path: Path) -> int:
        """Take over what is there at first, all of it synced."""
        number = path.stat().st_ino
        if path.is_dir():
            names = {each.name: self._take(each) for each in path.iterdir()}
            self.files[number], self.seen[number], self.synced[number] = File(is_folder=True), names, dict(names)
        else:
            content = path.read_bytes()
            self.files[number] = File(content=bytearray(content), synced=content)
        return number

    def apply(self, step: Step) -> None:
        """Do what a step did."""
        getattr(self, f"_{step.kind}")(*step.words, *([step.data] if step.kind == "write" else []))

    def _create(self, number: str, path: str) -> None:
        self.files[int(number)] = File()
        self._names(path)[Path(path).name] = int(number)

    def _folder(self, number: str, path: str) -> None:
        self.files[int(number)], self.seen[int(number)], self.synced[int(number)] = File(is_folder=True), {}, {}
        self._names(path)[Path(path).name] = int(number)

    def _write(self, number: str, at: str, count: str, data: bytes) -> None:
        content = self.files[int(number)].content
        content.extend(b"\0" * (int(at) - len(content)))
        content[int(at) : int(at) + int(count)] = data

    def _truncate(self, number: str, size: str) -> None:
        del self.files[int(number)].content[int(size) :]

    def _sync(self, number: str) -> None:
        file = self.files[int(number)]
        if file.is_folder:
            self.synced[int(number)] = dict(self.seen[int(number)])
        else:
            file.synced = bytes(file.content)

    def _rename(self, old: str, new: str) -> None:
        self._names(new)[Path(new).name] = self._names(old).pop(Path(old).name)

    def _exchange(self, old: str, new: str) -> None:
        one, other = self._names(old), self._names(new)
        one[Path(old).name], other[Path(new).name] = other[Path(new).name], one[Path(old).name]

    def _remove(self, path: str) -> None:
        del self._names(path)[Path(path).name]

    def _names(self, path: str) -> dict[str, int]:
        """Return the names of the folder that a path is in."""
        number = self.root.stat().st_ino
        for part in Path(path).parent.relative_to(self.root).parts:
            number = self.seen[number][part]
        return self.seen[number]

    def write_out(self, target: Path, names: str, content: str) -> None:
        """Make ``target`` what a cut leaves, with what is not synced ``kept``, ``lost``, or ``zeros``."""
        self._write_out(self.root.stat().st_ino, target, self.seen if names == "kept" else self.synced, content)

    def _write_out(self, number: int, path: Path, names: dict[int, dict[str, int]], content: str) -> None:
        file = self.files[number]
        if file.is_folder:
            path.mkdir()
            for name, inner in names[number].items():
                self._write_out(inner, path / name, names, content)
        elif content == "kept":
            path.write_bytes(file.content)
        else:
            missing = max(0, len(file.content) - len(file.synced)) if content == "zeros" else 0
            path.write_bytes(file.synced + b"\0" * missing)


def campaign(writer: Writer, work: Path, command: Sequence[str]) -> tuple[Counter[str], list[str]]:
    """Return what was found how often, and what was wrong. ``command`` runs the writer over its last argument, a folder."""
    place, after = work / "place", work / "after"
    shutil.rmtree(work, ignore_errors=True)
    place.mkdir(parents=True)
    writer.before(place)
    expected = writer.found(place)
    disk, outcomes = Disk(place.resolve()), Counter[str]()
    steps = record(work, place, command)
    wrong: list[str] = []
    for number in range(len(steps) + 1):
        for names, content in product(NAMES, BYTES):
            shutil.rmtree(after, ignore_errors=True)
            disk.write_out(after, names, content)
            try:
                outcome = writer.check(after, expected)
                if number == len(steps) and outcome != "new":
                    raise Broken(f"the writer was done, and there is {outcome}")
                outcomes[outcome] += 1
            except Broken as error:
                step = steps[number - 1] if number else Step("nothing", ())
                wrong.append(f"{writer.name}, cut after {number} ({step.kind}), names {names}, bytes {content}: {error}")
        if number < len(steps):
            disk.apply(steps[number])
    return outcomes, wrong


def record(work: Path, place: Path, command: Sequence[str]) -> list[Step]:
    """Run the writer under the recorder. Raises CalledProcessError where either fails."""
    library, log = work / "recorder.so", work / "log"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    settings = {"LD_PRELOAD": str(library), "FAULTS_ROOT": str(place), "FAULTS_LOG": str(log)}
    subprocess.run([*command, str(place)], check=True, env=os.environ | settings, stdout=subprocess.DEVNULL)
    return list(read(log))


def read(log: Path) -> Iterator[Step]:
    """Read what the recorder wrote."""
    with log.with_name(f"{log.name}.data").open("rb") as data:
        for line in log.read_text(encoding="utf-8").splitlines():
            kind, *words = line.split("\t")
            yield Step(kind, tuple(words), data.read(int(words[2])) if kind == "write" else b"")
