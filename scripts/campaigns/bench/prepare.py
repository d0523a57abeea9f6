"""From a shape and a variant to a loaded engine: the checkpoint, the artifact or GGUF file, and the process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaigns import ROOT
from campaigns.bench import export_cost, peers
from campaigns.bench.driver import Client, Contestant, EngineError
from campaigns.bench.results import PREFILL_CHUNK, Row, Variant
from campaigns.bench.shapes import Sizes, vocabulary
from campaigns.bench.worker import ROOM

LOAD_LIMIT = 900.0
"""Seconds for loading."""


@dataclass(frozen=True)
class Workplace:
    """The folder of one shape's files, and how long things may take.

    context: the longest that is measured. isa: a name of ``peers.INSTRUCTION_SETS``.
    """

    work: Path
    folder: Path
    context: int
    export_limit: float
    keep: bool
    isa: str = ""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"


Built = tuple[Path | str, str, dict[str, Any], int]
"""Interpreter, engine, its options, and bytes of memory that it will need."""


class CannotRunError(Exception):
    """The reason why a variant has no figures."""


def build(variant: Variant, place: Workplace, row: Row) -> Built | None:
    """Make the files of a variant. Where that fails, the row says why."""
    try:
        return BUILDERS[variant.engine](variant, place, row)
    except (CannotRunError, export_cost.CannotExportError) as error:
        row.failed = str(error)
        return None


def load(built: Built, place: Workplace, row: Row) -> Contestant | None:
    """Return the engine in a process of its own. It loads twice, so that the file is in memory."""
    python, engine, options, needed = built
    log = place.folder / f"{_slug(row.variant)}.log"
    try:
        _check_memory(needed)
        _loaded(python, engine, options, log, row).close()
        return Contestant(_loaded(python, engine, options, log, row), row)
    except (CannotRunError, EngineError) as error:
        row.failed = str(error)
        return None


def _loaded(python: Path | str, engine: str, options: dict[str, Any], log: Path, row: Row) -> Client:
    client = Client(python, engine, options, log)
    try:
        answer = client.ask(LOAD_LIMIT, do="load")
    except EngineError:
        client.close()
        raise
    row.bare, row.resident, row.load_seconds = client.bare, answer["resident"], answer["seconds"][0]
    return client


def bytes_read(variant: Variant, sizes: Sizes, context: int) -> float:
    """Return what one decode reads at least: every weight once, the recurrent state, and the rows of the context."""
    return weight_bytes(variant, sizes) + sizes.row * context * variant.bits.row / 8 + 4 * sizes.recurrent


def weight_bytes(variant: Variant, sizes: Sizes) -> float:
    """All weights, once."""
    return (sizes.linear * variant.bits.linear + sizes.head * variant.bits.head) / 8 + 4 * sizes.small


def _hybridge(variant: Variant, place: Workplace, row: Row) -> Built:
    sizes = ("--max-seq-len", str(place.context + ROOM), "--prefill-chunk", PREFILL_CHUNK, "--verify-len", "8")
    options = (*sizes, "--snapshot-slots", "0", *variant.options)
    made = export_cost.export(place.checkpoint, place.folder, options, place.export_limit, keep=place.keep)
    row.file_bytes, row.export_seconds, row.export_memory = made.size, made.seconds, made.memory
    return sys.executable, "campaigns.bench.hybridge_engine:HybridgeEngine", {"artifact": made.folder}, 2 * made.size


def _eager(variant: Variant, place: Workplace, row: Row) -> Built:
    row.file_bytes = _size(place.checkpoint)
    options = {"checkpoint": str(place.checkpoint)}
    return sys.executable, "campaigns.bench.eager_engine:EagerEngine", options, row.file_bytes


def _llama(variant: Variant, place: Workplace, row: Row) -> Built:
    if not peers.installed(place.work, place.isa):
        raise CannotRunError(peers.how(place.isa))
    python, (kind, kv) = peers.python_of(place.work, place.isa), variant.options
    path = place.folder / f"{kind}.gguf"
    if not path.exists():
        command = [str(python), "-m", "campaigns.bench.gguf_file", str(place.checkpoint), str(path), kind]
        made = subprocess.run(command, cwd=ROOT / "scripts", capture_output=True, text=True, check=False)
        if made.returncode:
            raise CannotRunError(export_cost.last_words(made.stderr))
    row.file_bytes = path.stat().st_size
    options = {"gguf": str(path), "kv": kv, "context": place.context, "rollback": variant.rollback}
    known = {"vocabulary": vocabulary(place.checkpoint)}
    return python, "campaigns.bench.llama_engine:LlamaEngine", options | known, row.file_bytes


BUILDERS = {"hybridge": _hybridge, "eager": _eager, "llama": _llama}


def _check_memory(needed: int) -> None:
    """Refuse what would not fit beside the others: swapping would be measured."""
    free = export_cost.free_memory()
    if needed + export_cost.SPARE > free:
        raise CannotRunError(
            f"needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB of memory are free; run fewer with --only"
        )


def _size(checkpoint: Path) -> int:
    return sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c == "." else "-" for c in name)
