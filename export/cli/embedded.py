"""Export the models that come with hybridge, and make prompts for them."""

from __future__ import annotations

import dataclasses
import hashlib
import sysconfig
from pathlib import Path
from typing import Literal

from hybridge.export.cli.progress import ConsoleProgress
from hybridge.runtime.artifact.manifest import Manifest
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.cli.console import err
from hybridge.runtime.kernels import library

EMBEDDED = Path(__file__).parents[1] / "embedded"
DRAFT, DSPARK = EMBEDDED / "draft", EMBEDDED / "dspark"
TARGET_OPTIONS = ExportOptions(
    max_seq_len=2048, verify_len=16, shorter_verify_lens=(4,), tap_layers=(-1,), mtp=True, draft_len=3
)
DRAFT_OPTIONS = ExportOptions(max_seq_len=2048, snapshot_slots=1)
DSPARK_OPTIONS = ExportOptions(max_seq_len=2048, verify_len=8, shorter_verify_lens=(4,), draft_blocks=(8,), snapshot_slots=1)
HELD_OUT = 8
"""Share, of 256, of the modules that examples/training keeps out of the training text, by a hash of their names."""


def export_embedded(target: Path, draft: Path | None = None, dspark: Path | None = None) -> Manifest:
    """Export the embedded model with its own drafter, its draft model, and the model again with a block drafter.

    Uses hybridge's kernels if there is a compiler. Returns the target's manifest.
    """
    from hybridge.export.api import export_model  # needs PyTorch, which prompts do not

    kernels: Literal["hybridge", "llm"] = "hybridge" if library.is_available() else "llm"
    steps = ConsoleProgress(err)
    err.print(
        f"[bold]The target[/], {EMBEDDED.name}: 3 gated delta nets to 1 attention layer, with a multi-token-prediction drafter"
    )
    manifest = export_model(EMBEDDED, target, dataclasses.replace(TARGET_OPTIONS, kernels=kernels), force=True, progress=steps)
    if draft is not None:
        err.print("[bold]The draft model[/]: 1 gated delta net")
        export_model(DRAFT, draft, dataclasses.replace(DRAFT_OPTIONS, kernels=kernels), force=True, progress=steps)
    if dspark is not None:
        err.print("[bold]The target[/] once more, with a block drafter (DSpark) in place of multi-token prediction")
        options = dataclasses.replace(DSPARK_OPTIONS, kernels=kernels)
        export_model(EMBEDDED, dspark, options, force=True, drafter=DSPARK, progress=steps)
    return manifest


def code_prompts(tokenizer: Tokenizer, count: int, characters: int = 400) -> list[list[int]]:
    """Return the beginnings of ``count`` modules of this Python's standard library that the embedded model has not seen."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(root.rglob("*.py")) if "site-packages" not in path.parts and "test" not in path.parts]
    unseen = [path for path in paths if hashlib.sha256(str(path.relative_to(root)).encode()).digest()[0] < HELD_OUT]
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in [*unseen, *paths]]
    # After the licence and the imports, where code begins.
    starts = [(text, text.find("\ndef ") if "\ndef " in text else text.find("\nclass ")) for text in texts]
    return [tokenizer.encode(text[at : at + characters]).ids for text, at in starts if 0 < at < len(text) - characters][:count]
