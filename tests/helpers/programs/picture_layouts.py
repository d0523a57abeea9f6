"""Pictures as the core resizes and cuts them, by tests/native/picture_layout.cpp."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from typing import IO, Self

import numpy as np
from native_programs import native_program
from numpy.typing import NDArray
from pydantic import TypeAdapter

from hybridge.runtime.artifact.pictures import PictureDescription


@dataclass(frozen=True)
class Layout:
    """The parts of a picture, uint8 [height, width, 3]; rows, columns: of its tiles."""

    parts: list[NDArray[np.uint8]]
    rows: int
    columns: int


class RefusedPictureError(Exception):
    """The core takes no such picture; the message is its own."""


class Layouts:
    """A process that prepares pictures as a description says. A context manager."""

    def __init__(self, description: PictureDescription, program: str = "picture_layout") -> None:
        json = TypeAdapter(PictureDescription).dump_json(description)
        self._process = subprocess.Popen([native_program(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._write(struct.pack("Q", len(json)) + json)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe(self._process.stdin).close()
        assert self._process.wait(60) == 0
        self._pipe(self._process.stdout).close()

    def of(self, rgb: NDArray[np.uint8]) -> Layout:
        """Return the parts of a picture uint8 [height, width, 3]. Raises RefusedPictureError."""
        return self.of_size(rgb.shape[1], rgb.shape[0], rgb.tobytes())

    def of_size(self, width: int, height: int, rgb: bytes = b"") -> Layout:
        """Return the parts of a picture of a size, whose pixels are left out if it is to be refused for having too many."""
        self._write(struct.pack("2Q", width, height) + rgb)
        rows, columns = self._numbers(2)
        if rows == 0:
            raise RefusedPictureError(self._read(columns).decode())
        parts = []
        for _ in range(self._numbers(1)[0]):
            across, down = self._numbers(2)
            parts.append(np.frombuffer(self._read(across * down * 3), np.uint8).reshape(down, across, 3))
        return Layout(parts, rows, columns)

    def _numbers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"{count}Q", self._read(8 * count))

    def _write(self, data: bytes) -> None:
        self._pipe(self._process.stdin).write(data)
        self._pipe(self._process.stdin).flush()

    def _read(self, size: int) -> bytes:
        data = self._pipe(self._process.stdout).read(size)
        assert len(data) == size, "the program has ended"
        return data

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe
