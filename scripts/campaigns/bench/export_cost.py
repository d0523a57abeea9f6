"""Export a checkpoint with ``hybridge export`` in a process of its own: how long it takes, how much memory at most."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from campaigns.campaign import fingerprint

SPARE = 2 * 2**30
"""Bytes of memory that are left to everything else."""
COMMAND = "from hybridge.__main__ import main; main()"


class CannotExportError(Exception):
    """The command failed or took too long; the message is its last words."""


@dataclass(frozen=True)
class Exported:
    """An artifact and what making it took. memory: the most bytes resident at once."""

    folder: str
    seconds: float
    memory: int
    size: int


def export(checkpoint: Path, work: Path, options: Sequence[str], limit: float, *, keep: bool) -> Exported:
    """Return the artifact of these options by this code; made anew unless it is there. keep: one of other code will do, too.

    Raises CannotExportError.
    """
    name = hashlib.sha256(" ".join(options).encode()).hexdigest()[:12]
    folder, record = work / f"artifact-{name}", work / f"artifact-{name}.json"
    found = json.loads(record.read_text()) if record.exists() else {}
    if found and (keep or found["code"] == fingerprint()):
        return Exported(**found["exported"])
    shutil.rmtree(folder, ignore_errors=True)
    record.unlink(missing_ok=True)
    arguments = ["export", str(checkpoint), "-o", str(folder), "--force", *options]
    seconds, memory = run_measured([sys.executable, "-c", COMMAND, *arguments], work / f"export-{name}.log", limit)
    size = sum(path.stat().st_size for path in folder.glob("model.*"))
    exported = Exported(str(folder), seconds, memory, size)
    record.write_text(json.dumps({"code": fingerprint(), "options": list(options), "exported": asdict(exported)}, indent=2))
    return exported


def run_measured(command: Sequence[str], log: Path, limit: float, cwd: Path | None = None) -> tuple[float, int]:
    """Seconds and peak resident bytes of a command. Raises CannotExportError with the last line that it wrote."""
    start = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=cwd, env=os.environ | {"COLUMNS": "1000"})
        while True:
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            if why := "memory ran out" if free_memory() < SPARE else "not finished" if time.monotonic() - start > limit else "":
                process.kill()
                process.wait()
                raise CannotExportError(f"{why} after {time.monotonic() - start:.0f} s")
            time.sleep(0.2)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise CannotExportError(last_words(log.read_text()))
    return time.monotonic() - start, usage.ru_maxrss * 1024


def free_memory() -> int:
    """Bytes that processes can still have."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def last_words(text: str) -> str:
    """Return the last words of a failed command, without frames that rich draws around them."""
    lines = [line.strip(" │╭╰─╮╯") for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "it failed without a word")[:200]
