"""Files that hybridge opens: artifacts, state files, tokenizers, checkpoints. Hashes are made to fit where they are checked."""

from __future__ import annotations

import atexit
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

from state_files import forge_state

from campaigns import ROOT
from campaigns.fuzz.driver import Input
from campaigns.fuzz.mutations import changed_bytes, changed_json, changed_text

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
        """One input of twenty is the file as it is, which must be taken."""
        rng = random.Random(f"{self.name} {seed} {index}")
        good = (self.base() / self.file).read_bytes()
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
    from hybridge.runtime.artifacts.options import ExportOptions
    from hybridge.runtime.core.session import Session

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
    Files("configs", "checkpoint", checkpoint, "config.json", changed_text),
    Files("weights", "checkpoint", checkpoint, "model.safetensors", changed_safetensors),
)
