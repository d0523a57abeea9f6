"""From a shape and a variant to a loaded engine: the checkpoint, the artifact or GGUF file, and the process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import export_cost, peers
from benchmarks.client import Client, EngineError
from benchmarks.driver import Contestant
from benchmarks.engine import ROOM
from benchmarks.results import Row
from benchmarks.shapes import Sizes, vocabulary
from benchmarks.variants import PREFILL_CHUNK, Variant

LOAD_LIMIT, SPARE = 900.0, 2 * 2**30


@dataclass(frozen=True)
class Workplace:
    """Where the files of one shape are and how long things may take. context: the longest that is measured."""

    work: Path
    folder: Path
    context: int
    export_limit: float
    keep: bool

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"


class CannotRunError(Exception):
    """Why a variant has no figures."""


def contestant(variant: Variant, place: Workplace) -> Contestant | Row:
    """The loaded engine, or a row that says why there is none."""
    row = Row(variant=variant.name, group=variant.group)
    try:
        python, engine, options, needed = BUILDERS[variant.engine](variant, place, row)
        _check_memory(needed)
        client = Client(python, engine, options, place.folder / f"{_slug(variant.name)}.log")
        row.bare = client.bare
        loaded = client.ask(LOAD_LIMIT, do="load")
        client.close()  # the second load finds the file in memory
        client = Client(python, engine, options, place.folder / f"{_slug(variant.name)}.log")
        loaded = client.ask(LOAD_LIMIT, do="load")
        row.load_seconds, row.resident = loaded["seconds"][0], loaded["resident"]
        return Contestant(client, row)
    except (CannotRunError, EngineError, export_cost.CannotExportError) as error:
        row.failed = str(error)
        return row


def bytes_read(variant: Variant, sizes: Sizes, context: int) -> float:
    """What one decode reads at least: every weight once, the recurrent state, and the rows of the context."""
    return weight_bytes(variant, sizes) + sizes.row * context * variant.bits.row / 8 + 4 * sizes.recurrent


def weight_bytes(variant: Variant, sizes: Sizes) -> float:
    """All weights, once."""
    return (sizes.linear * variant.bits.linear + sizes.head * variant.bits.head) / 8 + 4 * sizes.small


Built = tuple[Path | str, str, dict[str, Any], int]
"""Interpreter, engine, its options, and bytes of memory that it will need."""


def _hybridge(variant: Variant, place: Workplace, row: Row) -> Built:
    sizes = ("--max-seq-len", str(place.context + ROOM), "--prefill-chunk", PREFILL_CHUNK, "--verify-len", "8")
    options = (*sizes, "--snapshot-slots", "0", *variant.options)
    made = export_cost.export(place.checkpoint, place.folder, options, place.export_limit, keep=place.keep)
    row.file_bytes, row.export_seconds, row.export_memory = made.size, made.seconds, made.memory
    return sys.executable, "benchmarks.hybridge_engine:HybridgeEngine", {"artifact": made.folder}, 2 * made.size


def _eager(variant: Variant, place: Workplace, row: Row) -> Built:
    row.file_bytes = _size(place.checkpoint)
    options = {"checkpoint": str(place.checkpoint)}
    return sys.executable, "benchmarks.eager_engine:EagerEngine", options, row.file_bytes


def _compiled(variant: Variant, place: Workplace, row: Row) -> Built:
    row.file_bytes = _size(place.checkpoint)
    options = {"checkpoint": str(place.checkpoint), "cache": str(place.work / "inductor")}
    return sys.executable, "benchmarks.eager_engine:CompiledEngine", options, row.file_bytes


def _pte(variant: Variant, place: Workplace, row: Row) -> Built:
    folder = place.folder / "transformers-pte"
    command = [sys.executable, "-m", "benchmarks.pte_engine", str(place.checkpoint), str(folder)]
    if not folder.exists():
        log = place.folder / "transformers-pte.log"
        row.export_seconds, row.export_memory = export_cost.run_measured(command, log, place.export_limit)
    row.file_bytes = sum(path.stat().st_size for path in folder.glob("*.pte"))
    return sys.executable, "benchmarks.pte_engine:PteEngine", {"folder": str(folder)}, 2 * row.file_bytes


def _llama(variant: Variant, place: Workplace, row: Row) -> Built:
    if not peers.installed(place.work):
        raise CannotRunError(peers.HOW)
    python, (kind, kv) = peers.python_of(place.work), variant.options
    path = place.folder / f"{kind}.gguf"
    if not path.exists():
        scripts = Path(__file__).parents[1]
        command = [str(python), "-m", "benchmarks.gguf_file", str(place.checkpoint), str(path), kind]
        made = subprocess.run(command, cwd=scripts, capture_output=True, text=True, check=False)
        if made.returncode:
            raise CannotRunError(export_cost.last_words(made.stderr))
    row.file_bytes = path.stat().st_size
    options = {"gguf": str(path), "kv": kv, "context": place.context, "rollback": variant.rollback}
    known = {"vocabulary": vocabulary(place.checkpoint)}
    return python, "benchmarks.llama_engine:LlamaEngine", options | known, row.file_bytes


BUILDERS = {"hybridge": _hybridge, "eager": _eager, "compiled": _compiled, "pte": _pte, "llama": _llama}


def _check_memory(needed: int) -> None:
    """Refuse what would not fit beside the others: swapping would be measured."""
    fields = dict(_meminfo())
    available = fields["MemAvailable"]
    if needed + SPARE > available:
        raise CannotRunError(
            f"needs about {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB of memory are free; run fewer with --only"
        )


def _meminfo() -> Iterator[tuple[str, int]]:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        yield name, int(value.split()[0]) * 1024


def _size(checkpoint: Path) -> int:
    return sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c == "." else "-" for c in name)
