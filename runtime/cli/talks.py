"""Conversations that were begun at a terminal, kept after each answer, to be continued after whatever ended the process."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

from hybridge.errors import StateFileError, UsageError
from hybridge.runtime.files import private_folder, read_regular, replace_file

LARGEST = 256 << 20
"""Bytes of a file: the core's note, of at most 64 MB, written in JSON once more."""
MOST_SHOWN = 10
MOST_WORDS, LONGEST_NAME = 5, 40


@dataclass(frozen=True)
class Talk:
    """A conversation: of which model and tokenizer, and the core's note of it.

    asked: the message whose answer was not complete when it was kept.
    """

    model: str
    tokenizer: str
    note: str
    asked: str = ""


class Talks:
    """The folder of conversations, each a file that only the user may read."""

    def __init__(self, folder: Path, model: str, tokenizer: str) -> None:
        """model: what the user calls it. tokenizer: a hash; tokens of another one say something else."""
        self.folder, self.model, self.tokenizer = folder, model, tokenizer
        self.name = ""
        """Of the conversation that goes on; none before its first message."""
        self._written = b""

    def begin(self) -> None:
        """Begin another conversation; what was kept of the last one stays."""
        self.name, self._written = "", b""

    def names(self) -> list[str]:
        """Return the names of the conversations, the newest one first."""
        try:
            files = [(each.stat().st_mtime_ns, each.stem) for each in self.folder.glob("*.json")]
        except OSError:
            return []
        return [name for _, name in sorted(files, reverse=True)]

    def newest(self) -> Talk:
        """Return the newest conversation with this model, and go on with it. Raises UsageError without one."""
        for name in self.names():
            try:
                talk = self._read(name)
            except StateFileError:
                continue
            if (talk.model, talk.tokenizer) == (self.model, self.tokenizer):
                self.name = name
                return talk
        raise UsageError(f"there is no earlier conversation with {self.model} in {self.folder}; begin one without --continue.")

    def named(self, name: str) -> Talk:
        """Return a conversation, and go on with it. Raises UsageError without it, StateFileError for one that cannot be."""
        names = self.names()
        if name not in names:
            found = ", ".join(names[:MOST_SHOWN]) or "none yet"
            raise UsageError(f"there is no conversation {name!r}; the newest ones are: {found}.")
        talk = self._read(name)
        if talk.tokenizer != self.tokenizer:
            raise StateFileError(f"the conversation {name} was with {talk.model}, whose tokens are others: open that model.")
        self.name = name
        return talk

    def keep(self, note: str, asked: str = "") -> None:
        """Write the conversation as it is now. A file that another chat has changed meanwhile stays: this one gets a new name.

        Raises OSError.
        """
        talk = Talk(self.model, self.tokenizer, note, asked)
        data = json.dumps(vars(talk)).encode()
        if not self.name or self._bytes(self.name) != self._written:
            self.name = self._free_name(self.name or _name(_first_message(note) or asked))
        private_folder(self.folder, self.folder.parent)
        replace_file(self._file(self.name), data)
        self._written = data

    def _read(self, name: str) -> Talk:
        self._written = self._bytes(name)
        try:
            talk = Talk(**json.loads(self._written))
            if all(isinstance(each, str) for each in vars(talk).values()):
                return talk
        except (ValueError, TypeError, RecursionError):
            pass
        raise StateFileError(f"{self._file(name)} is damaged: it holds no conversation of hybridge chat.")

    def _bytes(self, name: str) -> bytes:
        try:
            return read_regular(self._file(name), LARGEST)
        except OSError:
            return b""

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _free_name(self, name: str) -> str:
        free, number = name, 2
        while self._file(free).exists():
            free, number = f"{name}-{number}", number + 1
        return free


def _name(message: str) -> str:
    """Return a name from the day and the first words of a message."""
    words = re.findall(r"\w+", message.lower())[:MOST_WORDS]
    return "-".join([time.strftime("%Y-%m-%d"), *words])[:LONGEST_NAME].rstrip("-")


def _first_message(note: str) -> str:
    messages = json.loads(note)["messages"]
    contents = [each["content"] for each in messages if each["role"] == "user"]
    return contents[0] if contents and isinstance(contents[0], str) else ""
