"""The driver's end of an engine: its process, asked one thing at a time."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from campaigns import ROOT


class EngineError(Exception):
    """The engine cannot do what it was asked for, says why, or is gone."""


class Client:
    """One engine in a process of its own; only the driver decides when it runs."""

    def __init__(self, python: Path | str, engine: str, options: dict[str, Any], log: Path) -> None:
        paths = [str(ROOT / "scripts"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
        command: Sequence[Any] = [python, "-m", "campaigns.bench.worker", engine, json.dumps(options)]
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, env=environment
            )
        self.bare = int(self._answer(300)["resident"])
        """Resident bytes before anything is loaded."""

    def ask(self, limit: float, **request: Any) -> dict[str, Any]:
        """The answer to a request. Raises EngineError where there is none within ``limit`` seconds."""
        _pipe(self.process.stdin).write(json.dumps(request) + "\n")
        _pipe(self.process.stdin).flush()
        answer = self._answer(limit)
        if "error" in answer:
            raise EngineError(answer["error"].removeprefix("NotImplementedError: "))
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()

    def _answer(self, limit: float) -> dict[str, Any]:
        pipe = _pipe(self.process.stdout)
        if not select.select([pipe], [], [], limit)[0]:
            self.close()
            raise EngineError(f"no answer within {limit:.0f} s")
        line = pipe.readline()
        if not line:
            code = self.process.wait()
            raise EngineError(f"its process ended with {code}; see {self.log.name}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
