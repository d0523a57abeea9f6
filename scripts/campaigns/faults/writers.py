"""The writers of files that users keep. Each is tried over what it wrote before, and says whether what is left is whole."""

from __future__ import annotations

import contextlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from campaigns import ROOT
from hybridge.errors import HybridgeError
from hybridge.export.write.folder import output_folder
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.manifest import MANIFEST, PROGRAM
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.kernels import compiling
from hybridge.runtime.text.chat_template import ChatTemplate
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings

CHECKPOINT = ROOT / "export" / "embedded" / "draft"
OPTIONS = ExportOptions(max_seq_len=256, prefill_chunk=16, verify_len=4, snapshot_slots=1)
OLD, NEW = [5, 6, 7], [40, 41, 42, 43, 44]


class Broken(Exception):  # noqa: N818  it is what a campaign finds, and no error of the script
    """The remaining files are neither the old nor the new."""


class Writer(ABC):
    """Writes into a folder of its own, where nobody else does."""

    name: ClassVar[str]
    may_vanish: ClassVar[bool] = False
    """True for a cache, which may lose the old and is then filled again."""

    @abstractmethod
    def before(self, folder: Path) -> None:
        """Put there what was there before."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the new. Raises HybridgeError where it cannot."""

    @abstractmethod
    def found(self, folder: Path) -> str:
        """Return ``old``, ``new`` or ``nothing``. Raises Broken."""

    def check(self, folder: Path, before: str) -> str:
        """Return what is found, where there was ``before`` and a writer did not come to its end. Raises Broken."""
        outcome = self.found(folder)
        if outcome in (before, "new") or (self.may_vanish and outcome == "nothing"):
            return outcome
        raise Broken(f"there was {before}, and now there is {outcome}")


def loads(reader: Session, path: Path) -> bool:
    """Load the state in ``path`` and return whether there is one. Raises Broken if it does not load."""
    if path.exists():
        try:
            reader.load_state(path)
        except HybridgeError as error:
            raise Broken(f"the state does not load: {error}") from None
    return path.exists()


class SaveOver(Writer):
    """``Session.save`` over an earlier save."""

    name = "save"

    def __init__(self, artifact: Path) -> None:
        self.old, self.new, self.reader = (Session.load(artifact) for _ in range(3))
        self.old.prefill(OLD)
        self.new.prefill(NEW)

    def before(self, folder: Path) -> None:
        self.old.save(folder / "talk.state")

    def write(self, folder: Path) -> None:
        self.new.save(folder / "talk.state")

    def found(self, folder: Path) -> str:
        if not loads(self.reader, folder / "talk.state"):
            return "nothing"
        for name, session in (("old", self.old), ("new", self.new)):
            if self.reader.tokens == session.tokens and all(map(np.array_equal, _saved(self.reader), _saved(session))):
                return name
        raise Broken(f"the state is of the tokens {self.reader.tokens}")


class SaveFirst(SaveOver):
    """``Session.save`` where there was nothing."""

    name = "first save"

    def before(self, folder: Path) -> None:
        pass


class SaveChat(SaveOver):
    """``/save`` of a chat over an earlier one: a state with the conversation in its note."""

    name = "chat save"

    def __init__(self, artifact: Path) -> None:
        super().__init__(artifact)
        tokenizer = Tokenizer.from_file(CHECKPOINT / "tokenizer.json")
        template = ChatTemplate(JinjaTemplate("{% for each in messages %}{{ each.content }}\n{% endfor %}"))
        self.talks = {
            name: Conversation(session, tokenizer, template, GenerationSettings(), name)
            for name, session in (("old", self.old), ("new", self.new), ("reader", self.reader))
        }

    def before(self, folder: Path) -> None:
        self.talks["old"].save(folder / "talk.state")

    def write(self, folder: Path) -> None:
        self.talks["new"].save(folder / "talk.state")

    def found(self, folder: Path) -> str:
        outcome = super().found(folder)
        if outcome != "nothing":
            self.talks["reader"].load(folder / "talk.state")
            if (said := self.talks["reader"].messages[0]["content"]) != outcome:
                raise Broken(f"the state is the {outcome} one, and the conversation the {said} one")
        return outcome


class Replace(Writer):
    """Put the files of an artifact in place as ``hybridge export --force`` does."""

    name = "replace an artifact"

    def __init__(self, artifact: Path, other: Path) -> None:
        self.sources = {"old": artifact, "new": other}
        self.identities = {name: open_artifact(path).manifest.identity for name, path in self.sources.items()}

    def before(self, folder: Path) -> None:
        shutil.copytree(self.sources["old"], folder / "out")

    def write(self, folder: Path) -> None:
        with output_folder(folder / "out", force=True) as place:
            for path in sorted(self.sources["new"].iterdir()):
                shutil.copyfile(path, place / path.name)

    def found(self, folder: Path) -> str:
        return _artifact(folder / "out", self.identities)


class Compile(Writer):
    """The cache of compiled code, over an earlier build; the compiler is one that copies."""

    name = "kernel build"
    may_vanish = True

    def before(self, folder: Path) -> None:
        self._build(folder, b"old " * 100_000)

    def write(self, folder: Path) -> None:
        self._build(folder, b"new " * 100_000)

    def _build(self, folder: Path, content: bytes) -> None:
        with _cache_in(folder):
            compiling.built(_library(folder), lambda path: path.write_bytes(content) and None, again=True)

    def found(self, folder: Path) -> str:
        if not compiling.is_built(_library(folder)):
            return "nothing"
        try:
            with _cache_in(folder):
                content = compiling.built(_library(folder), lambda path: None).read_bytes()
        except HybridgeError as error:
            raise Broken(f"the library is refused: {error}") from None
        for name in ("old", "new"):
            if content == f"{name} ".encode() * 100_000:
                return name
        raise Broken("the library is neither the old nor the new, and its hash is right")


def other_options() -> ExportOptions:
    """Return options of an artifact with another program."""
    return ExportOptions(max_seq_len=320, prefill_chunk=16, verify_len=4, snapshot_slots=1)


def _saved(session: Session) -> list[NDArray[np.generic]]:
    """Return the state but for what waits for a commit, which is not saved."""
    return [each for name, each in session.state().items() if not name.rpartition(".")[2].startswith("staged")]


def _library(folder: Path) -> Path:
    return folder / "hybridge" / "kernels" / "key" / "library.so"


@contextlib.contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """Let the user's cache be there."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        yield
    finally:
        del os.environ["XDG_CACHE_HOME"]
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


def _artifact(path: Path, identities: dict[str, str | None]) -> str:
    if not path.exists():
        return "nothing"
    if not (path / MANIFEST).exists():
        raise Broken(f"{path.name} has no {MANIFEST}")
    try:
        artifact = open_artifact(path)
        with artifact.program.open("rb") as file:
            file.read(1)
    except HybridgeError as error:
        raise Broken(f"the artifact does not open: {error}") from None
    assert artifact.program.name == PROGRAM
    for name, identity in identities.items():
        if artifact.manifest.identity == identity:
            return name
    raise Broken("it is another artifact")
