"""Files that hybridge opens: artifacts, state files, tokenizers, checkpoints. Hashes are made to fit where they are checked."""

from __future__ import annotations

import atexit
import copy
import json
import random
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from state_files import forge_state

from campaigns import ROOT
from campaigns.fuzz.driver import PIPE, Input

INTEGERS = (0, 1, 2, 3, 7, 127, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 1.5, 2**31, 2**63, -(2**63), 10**30, 1e308, float("nan"), float("inf")),
    *("", "x", "0", "../../etc/passwd", "/dev/zero", "\0", "\ud800", "a" * 70_000),
    *([], {}, [[]], [None], [1, "x"], {"a": 1}, {"": {}}, [0] * 100_000),
)
DEEP = 20_000

Place = tuple[str | int, ...]


def changed_json(rng: random.Random, content: Any) -> Any:
    """Return ``content`` with one to three places replaced, removed, moved or doubled."""
    changed = copy.deepcopy(content)
    for _ in range(rng.randint(1, 3)):
        paths = list(_paths(changed))
        if not paths:
            return changed
        *way, last = rng.choice(paths)
        holder = _at(changed, tuple(way))
        rng.choice(JSON_CHANGES)(rng, holder, last, changed)
    return changed


def changed_text(rng: random.Random, text: bytes) -> bytes:
    """Return a JSON file changed by its structure, three times of four, otherwise as text."""
    return json.dumps(changed_json(rng, json.loads(text))).encode() if rng.random() < 0.75 else changed_plain(rng, text)


def changed_plain(rng: random.Random, text: bytes) -> bytes:
    """Return a file changed as text."""
    at = rng.randrange(len(text))
    return rng.choice(
        (
            text[:at],
            text[:at] + text[at + rng.randint(1, 9) :],
            text[:at] + rng.randbytes(4) + text[at:],
            b"[" * DEEP + b"]" * DEEP,
            b'{"a":' * DEEP + b"1" + b"}" * DEEP,
            text.decode().encode("utf-16"),
            b"\xef\xbb\xbf" + text,
            b"",
            b"null",
            text.replace(b"{", b'{"version": 1, ', 1),
            text.replace(b"0", b"-0e9999", 1),
        )
    )


def changed_bytes(rng: random.Random, data: bytes, first: int = 0, end: int | None = None) -> bytes:
    """Return ``data`` with numbers, bits or stretches changed between ``first`` and ``end``."""
    changed, end = bytearray(data), len(data) if end is None else end
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(first, min(end, len(changed)))
        kind = rng.random()
        if kind < 0.5:  # a number of a flatbuffer or a header, where those lie
            width, form = rng.choice(((4, "<I"), (4, "<I"), (8, "<Q"), (1, "<B")))
            at -= at % width
            changed[at : at + width] = struct.pack(form, rng.choice(INTEGERS) % 2 ** (8 * width))
        elif kind < 0.75:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind < 0.9:  # a stretch from somewhere else: tables and offsets that belong to others
            length, source = 4 * rng.randint(1, 16), rng.randrange(first, end)
            changed[at : at + length] = data[source : source + length]
        else:
            changed[at : at + rng.randint(1, 64)] = bytes(rng.randint(1, 64))
    return bytes(changed[: rng.randrange(len(changed))]) if rng.random() < 0.05 else bytes(changed)


def _paths(content: Any, way: Place = ()) -> Any:
    children = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in children:
        yield (*way, name)
        yield from _paths(value, (*way, name))


def _at(content: Any, way: Place) -> Any:
    for step in way:
        content = content[step]
    return content


def _replace(rng: random.Random, holder: Any, place: Any, whole: Any) -> None:
    holder[place] = copy.deepcopy(rng.choice(VALUES))


def _nudge(rng: random.Random, holder: Any, place: Any, whole: Any) -> None:
    value = holder[place]
    if isinstance(value, bool) or not isinstance(value, int | float):
        _replace(rng, holder, place, whole)
    else:
        holder[place] = rng.choice((value + 1, value - 1, -value, 2 * value, value * 2**20, str(value), [value]))


def _remove(rng: random.Random, holder: Any, place: Any, whole: Any) -> None:
    del holder[place]


def _take(rng: random.Random, holder: Any, place: Any, whole: Any) -> None:
    """Take the value of another place."""
    holder[place] = copy.deepcopy(_at(whole, rng.choice(list(_paths(whole)))))


def _rename(rng: random.Random, holder: Any, place: Any, whole: Any) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(("", "x", f"{place} ", "../x", "a" * 5000))] = holder.pop(place)
    else:
        holder += holder[: rng.randint(1, 4)]


JSON_CHANGES: tuple[Callable[[random.Random, Any, Any, Any], None], ...] = (_replace, _replace, _nudge, _remove, _take, _rename)


EMBEDDED = ROOT / "export" / "embedded"
SIZES = {"max_seq_len": 48, "prefill_chunk": 9, "verify_len": 3, "snapshot_slots": 2}


@dataclass(frozen=True)
class Files:
    """See ``Target``: one file of a folder is changed, and ``file_child.py`` opens the folder. child: what it does there."""

    name: str
    child: str
    base: Callable[[], Path]
    file: str
    change: Callable[[random.Random, bytes], bytes]

    def prepare(self) -> None:
        self.base()

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "campaigns.fuzz.file_child", self.child, str(self.base()), self.file]

    def environment(self) -> Mapping[str, str]:
        return {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def make(self, seed: int, index: int) -> Input:
        """One input of twenty is the file as it is, which must be taken, and one of a checkpoint a pipe in its place."""
        rng = random.Random(f"{self.name} {seed} {index}")
        good = (self.base() / self.file).read_bytes()
        if index % 20 == 1 and self.child == "checkpoint":
            return Input(PIPE, f"{self.file}, a pipe that nobody writes to")
        data = good if index % 20 == 0 else self.change(rng, good)
        return Input(data, f"{self.file}, {len(data)} bytes{' as they are' * (data == good)}", good=data == good)


@cache
def work() -> Path:
    """Return a folder for this run."""
    folder = Path(tempfile.mkdtemp(prefix="hybridge-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def artifact(kind: str) -> Path:
    """Return an artifact of the embedded model: ``hybridge``, ``llm`` or ``onnx``; the first with a saved state beside it."""
    from state_files import save_in_full

    from hybridge.export.api import export_model
    from hybridge.runtime.artifact.options import ExportOptions
    from hybridge.runtime.binding.session import Session

    options = ExportOptions(**SIZES, **{"format": "onnx"} if kind == "onnx" else {"kernels": kind})  # type: ignore[arg-type]
    folder = work() / kind
    export_model(EMBEDDED, folder, options)
    if kind == "hybridge":
        session = Session.load(folder)
        save_in_full(session, list(range(20)), folder / "saved")
    return folder


@cache
def checkpoint() -> Path:
    """Return a copy of the embedded checkpoint."""
    return Path(shutil.copytree(EMBEDDED, work() / "checkpoint"))


SIZES_OF_NONE = (0, -1, -2, -(2**31), 2**20, 2**31, 2**63, 10**30)


def changed_config(rng: random.Random, text: bytes) -> bytes:
    """Return a config.json with one whole number below 1 or beyond any model's, or changed as other JSON is."""
    content = json.loads(text)
    places = [way for way in _paths(content) if type(_at(content, way)) is int]
    if rng.random() < 0.6:
        return changed_text(rng, text)
    *way, last = rng.choice(places)
    _at(content, tuple(way))[last] = rng.choice(SIZES_OF_NONE)
    return json.dumps(content).encode()


def changed_program(rng: random.Random, data: bytes) -> bytes:
    """Return a .pte with its flatbuffer changed, not its weights: those may be anything."""
    from hybridge.export.pinned.executorch import HEAD_BYTES, read_header

    header = read_header(data[:HEAD_BYTES])
    return changed_bytes(rng, data, end=header.program_size if header else len(data))


def changed_graph(rng: random.Random, data: bytes) -> bytes:
    """Return an ONNX graph changed by its structure, as far as it is one then, and now and then as bytes."""
    import onnx
    from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

    for _ in range(8 if rng.random() < 0.8 else 0):
        content = changed_json(rng, MessageToDict(onnx.ModelProto.FromString(data)))
        with suppress(ParseError, ValueError, OverflowError, SystemError):  # the last for half a surrogate
            return bytes(ParseDict(content, onnx.ModelProto()).SerializeToString())
    return changed_bytes(rng, data)


def changed_safetensors(rng: random.Random, data: bytes) -> bytes:
    """Return a safetensors file with its header changed: by structure, or as bytes."""
    (size,) = struct.unpack("<Q", data[:8])
    if rng.random() < 0.3:
        return changed_bytes(rng, data, end=min(len(data), 8 + size))
    header = json.dumps(changed_json(rng, json.loads(data[8 : 8 + size]))).encode()
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


def changed_state(rng: random.Random, data: bytes) -> bytes:
    """Return a state file with a right checksum, and now and then another header."""
    if rng.random() < 0.2:
        return changed_bytes(rng, data, end=64)
    path = work() / "forged"
    path.write_bytes(data)

    def change(content: bytearray) -> None:
        content[:] = changed_bytes(rng, bytes(content), end=min(len(content), 512))

    forge_state(path, change)
    return path.read_bytes()


TARGETS = (
    Files("programs", "artifact", lambda: artifact("hybridge"), "model.pte", changed_program),
    Files("stock-programs", "artifact", lambda: artifact("llm"), "model.pte", changed_program),
    Files("graphs", "artifact", lambda: artifact("onnx"), "model.onnx", changed_graph),
    Files("manifests", "artifact", lambda: artifact("hybridge"), "manifest.json", changed_text),
    Files("tokenizers", "tokenizer", lambda: artifact("hybridge"), "tokenizer.json", changed_text),
    Files("states", "state", lambda: artifact("hybridge"), "saved", changed_state),
    Files("configs", "checkpoint", checkpoint, "config.json", changed_config),
    Files("weights", "checkpoint", checkpoint, "model.safetensors", changed_safetensors),
)
