"""Saved states altered by somebody who knows how their checksums are made."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from hybridge.runtime.core.saved_states import _checksum

Content = dict[str, Any]
"""format, artifact, texts and note as they stand in the header; buffers by name under ``buffers``."""


def forge_state(path: Path, change: Callable[[Content], object]) -> None:
    """Change what a state file of 0.2 says, and its checksum with it."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    metadata = json.loads(data[8 : 8 + size])["__metadata__"]
    del metadata["checksum"]
    content: Content = metadata | {"buffers": safetensors.numpy.load(data)}
    change(content)
    buffers: dict[str, NDArray[np.generic]] = content.pop("buffers")
    content["checksum"] = _checksum(content, buffers)
    path.write_bytes(safetensors.numpy.save(buffers, content))


def forge_texts(path: Path, change: Callable[[Content], object]) -> None:
    """Change the tokens of a state file, or of its slots."""

    def rewrite(content: Content) -> None:
        texts = json.loads(content["texts"])
        change(texts)
        content["texts"] = json.dumps(texts)

    forge_state(path, rewrite)


BASIS, PRIME, MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


def forge_native_state(path: Path, change: Callable[[bytearray], object]) -> None:
    """Change what stands behind the header of the state file, and its checksum with it."""
    data = bytearray(path.read_bytes())
    header, content = data[:48], data[48:]
    change(content)
    model = struct.unpack("<Q", header[16:24])[0]
    header[24:32] = struct.pack("<Q", _fnv1a(content, model))
    path.write_bytes(header + content)


def _fnv1a(data: bytes, start: int) -> int:
    value = start
    for byte in data:
        value = (value ^ byte) * PRIME & MASK
    return value
