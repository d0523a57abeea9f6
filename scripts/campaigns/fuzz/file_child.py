"""The child of ``files.py``: ACTION FOLDER FILE; opens copies of the folder in which the file is what stdin gives.

An error of hybridge's own is a refusal. Any other error is wrong, and so are other logits where the computation was accepted.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from forgery import forge

from campaigns.fuzz import picture_child
from campaigns.fuzz.driver import PIPE
from hybridge.errors import HybridgeError
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.manifest import MANIFEST
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.tokenizer import Tokenizer

PROMPT = [1, 2, 3, 4, 5]


def main(action: str, base: Path, name: str) -> None:
    """Answer every input."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    run = ACTIONS[action](base)
    while head := sys.stdin.buffer.read(4):
        (size,) = struct.unpack("<I", head)
        with changed(base, name, sys.stdin.buffer.read(size)) as folder:
            print(answer(run, folder), file=answers)


def answer(run: Callable[[Path], None], folder: Path) -> str:
    """Return the line for one input."""
    try:
        run(folder)
    except HybridgeError as error:
        return f"refused: {_line(error)}" if str(error).strip() else f"wrong: {type(error).__name__} without a message"
    except AssertionError as error:
        return f"wrong: {_line(error)}"
    except BaseException as error:  # whatever a library raises, or a panic of one
        return f"wrong: {type(error).__name__}: {_line(error)}"
    return "accepted"


@contextmanager
def changed(base: Path, name: str, data: bytes) -> Iterator[Path]:
    """Yield a folder with the files of ``base``, in which ``name`` is another file and the hashes are right.

    The others are hard links: what onnxruntime reads beside a graph must not be a symbolic one that leads out of the folder.
    Folders in it, such as a checkpoint's drafters, are left out.
    """
    with tempfile.TemporaryDirectory(dir=base.parent) as place:
        folder = Path(place)
        for path in base.iterdir():
            if path.is_file() and path.name not in (name, MANIFEST):
                (folder / path.name).hardlink_to(path)
        if (base / MANIFEST).exists():
            shutil.copy(base / MANIFEST, folder)
        if data == PIPE:
            os.mkfifo(folder / name)
        else:
            (folder / name).write_bytes(data)
        if (folder / MANIFEST).exists():
            _forge(folder)
        yield folder


def _forge(folder: Path) -> None:
    with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        forge(folder)  # of what is no manifest any more, no hash can be made right


def of_artifact(base: Path) -> Callable[[Path], None]:
    """Load, and compute: what is accepted may be another model, but not bring the process down."""

    def run(folder: Path) -> None:
        session = Session.load(folder)
        session.prefill(PROMPT[: session.room])
        if session.room and session.verify_len <= session.room:
            session.verify(PROMPT[: min(2, session.verify_len)])
            session.commit(1)
        if session.snapshot_slots:
            session.snapshot(0)
            session.restore(0)
        session.reset()

    return run


def of_tokenizer(base: Path) -> Callable[[Path], None]:
    """Encode and decode a text with the artifact's tokenizer."""

    def run(folder: Path) -> None:
        path = open_artifact(folder).tokenizer
        assert path, "the tokenizer is gone"
        tokenizer = Tokenizer.from_file(path)
        tokenizer.decode(tokenizer.encode("def main() -> None:\n\tprint('ä\U0001f600')").ids, skip_special_tokens=False)

    return run


def of_state(base: Path, name: str = "saved") -> Callable[[Path], None]:
    """Go on from a state with one session, and see that it is whole afterwards, whatever was loaded."""
    session = Session.load(base)
    want = session.prefill(PROMPT)

    def run(folder: Path) -> None:
        try:
            length = session.load_state(folder / name)
            assert length == session.length == len(session.tokens), f"{length} tokens are loaded, {session.tokens} known"
            if session.room:
                session.decode(PROMPT[0])
        finally:
            session.reset()
            assert np.array_equal(session.prefill(PROMPT), want), "the session computes something else afterwards"

    return run


def of_checkpoint(base: Path) -> Callable[[Path], None]:
    """Read a checkpoint and lay out its state, as an export begins."""
    from hybridge.export.program.build import build_cache
    from hybridge.export.source.checkpoint import load_checkpoint
    from hybridge.runtime.artifact.options import ExportOptions

    def run(folder: Path) -> None:
        build_cache(load_checkpoint(folder).config, ExportOptions(max_seq_len=48, prefill_chunk=9, verify_len=3))

    return run


ACTIONS: Mapping[str, Callable[[Path], Callable[[Path], None]]] = {
    "artifact": of_artifact,
    "tokenizer": of_tokenizer,
    "state": of_state,
    "checkpoint": of_checkpoint,
    "picture": picture_child.of_picture,
    "picture-rows": picture_child.of_rows,
    "picture-chat": picture_child.of_chat,
    "picture-request": picture_child.of_request,
}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
