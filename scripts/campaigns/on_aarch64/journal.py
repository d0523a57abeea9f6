"""Steps that are done once: what each took and found stays in a file, and a log has all that was said."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from campaigns.campaign import whole

Figures = Mapping[str, Any]
ANSWER = "answer"
"""The figure that is a whole text, and is not shown."""


class StepError(Exception):
    """A command failed; the message says which, and how it ended."""


class Journal:
    """The steps of one folder.

    done: of this run's steps what each took, in seconds, and its figures; the ones of earlier runs too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "steps"
        self._folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log.txt"
        self.done: dict[str, dict[str, Any]] = {}

    def step(self, name: str, key: str, work: Callable[..., Figures | None], *arguments: Any) -> Figures:
        """Do ``work`` of the arguments, unless it was done with this ``key`` before; returns its figures."""
        file = self._folder / f"{name.replace('/', '-')}.json"
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if kept.get("key") != key:
            self.say(f"{name} …")
            file.unlink(missing_ok=True)
            began = time.monotonic()
            figures = work(*arguments) or {}
            kept = {"key": key, "seconds": round(time.monotonic() - began, 1), "figures": dict(figures)}
            with whole(file) as unfinished:
                unfinished.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
            self.say(f"{name}: {kept['seconds']:.0f} s{shown(figures)}")
        else:
            self.say(f"{name}: done before, in {kept['seconds']:.0f} s{shown(kept['figures'])}")
        self.done[name] = kept
        figures_kept: Figures = kept["figures"]
        return figures_kept

    def forget(self) -> None:
        """Have every step done again."""
        for file in self._folder.glob("*.json"):
            file.unlink()

    def say(self, text: str) -> None:
        """Print a line, and write it into the log."""
        print(text, file=sys.stderr, flush=True)
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"=== {time.strftime('%H:%M:%S')} {text}\n")

    def run(self, words: Sequence[str | Path], **options: Any) -> str:
        """Return what a command prints; the log has that and its errors. Raises StepError."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(map(str, words))}\n")
            log.flush()
            done = subprocess.run(
                [str(word) for word in words],
                stdout=subprocess.PIPE,
                stderr=log,
                check=False,
                stdin=subprocess.DEVNULL,
                **options,
            )
            shown = done.stdout.decode("latin-1")  # the embedded model may write any byte
            log.write(shown)
        if done.returncode:
            raise StepError(
                f"this ended with {done.returncode}: {' '.join(map(str, words))}\n{self._end()}\nAll of it: {self.log}"
            )
        return shown

    def _end(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])


def shown(figures: Figures) -> str:
    """Return the figures, each behind a comma."""
    return "".join(f", {name} {value}" for name, value in figures.items() if name != ANSWER)
