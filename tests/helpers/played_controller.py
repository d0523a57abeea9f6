"""The core's controller, call by call: ``tests/native/draft_length_controller.cpp`` plays it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from native_programs import native_program


class Player:
    """A process that answers calls of controllers, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [native_program("draft_length_controller")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="ascii",
        )

    def tell(self, name: str, *values: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {' '.join(map(repr, values))}\n")

    def ask(self, name: str, *values: float) -> float:
        self.tell(name, *values)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class DraftLengthController:
    """``hybridge::DraftLengthController``; of one player one controller is played at a time."""

    def __init__(self, player: Player, lengths: Sequence[int], fixed: int | None = None) -> None:
        self._player = player
        if fixed is None:
            player.tell("controller", *lengths)
        else:
            player.tell("fixed", fixed, *lengths)

    def choose(self, room: int, confidence: float | None = None) -> int:
        return int(self._player.ask("choose", room, *(() if confidence is None else (confidence,))))

    def trim_draft(self, confidences: Sequence[float]) -> int:
        return int(self._player.ask("trim_draft", *confidences))

    def tokens_worth_verifying(self, count: int) -> int:
        return int(self._player.ask("tokens_worth_verifying", count))

    def round_done(self, length: int, proposed: int, accepted: int, seconds: float, drafting: float = 0.0) -> None:
        self._player.tell("done", length, proposed, accepted, seconds, drafting)

    def shadow(self, tokens: Sequence[int], seconds: float) -> None:
        self._player.tell("shadow", seconds, *tokens)

    def compare(self, token: int) -> None:
        self._player.tell("compare", token)

    def wants_shadow(self) -> bool:
        return bool(self._player.ask("wants"))

    @property
    def shadow_length(self) -> int:
        return int(self._player.ask("shadowing"))

    @property
    def acceptance(self) -> float:
        return self._player.ask("acceptance")
