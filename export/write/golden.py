"""Golden steps: calls of a session with the eager model's logits, which an artifact carries to be checked without PyTorch.

``golden.json`` has a few rows of logits at some ids, computed by the uncached forward before the model is taken apart, and
hashes of what the written program answered here. docs/artifact.md has the format; the core replays it (engine/golden.cpp).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

import hybridge
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.manifest import GOLDEN
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.model import Model

IDS, READ = 64, 24
"""Logits of each row that are stored, and tokens of the prefill."""
TOLERANCE, ROUNDED_ROWS, ROUNDED_INPUTS = 2e-4, 2e-2, 5e-2
"""Least error that passes, as a share of the largest logit: in float32, with keys and values rounded, with inputs rounded."""
MARGIN = 4
"""Another instruction set rounds otherwise: its error may be as many times that of the exporting machine."""

Step = dict[str, Any]


class GoldenSteps:
    """The steps of one artifact. options: its own; room for them is needed, so a very short context has none."""

    def __init__(self, options: ExportOptions, vocab_size: int, *, drafts: bool) -> None:
        self.options, self.vocab_size, self.rng = options, vocab_size, random.Random(0)
        self.steps: list[Step] = []
        self.texts: list[tuple[int, ...]] = []
        """The text of each row, in the order of the rows."""
        self._lay_out(drafts)
        self.ids = sorted(self.rng.sample(range(vocab_size), min(IDS, vocab_size)))

    @staticmethod
    def fit(options: ExportOptions) -> bool:
        """Return whether the context has room for the steps."""
        return options.has_own_kernels and options.max_seq_len >= READ + 2 * options.verify_len + 8

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(self.vocab_size) for _ in range(count)]

    def _lay_out(self, drafts: bool) -> None:
        text: list[int] = []

        def run(call: str, tokens: list[int]) -> None:
            self.steps.append({"call": call, "tokens": tokens})
            ends = [len(tokens)] if call == "prefill" else range(1, len(tokens) + 1)
            self.texts += [(*text, *tokens[:end]) for end in ends]

        def extend(call: str, tokens: list[int]) -> None:
            run(call, tokens)
            text.extend(tokens)

        def verify(length: int, accepted: int) -> None:
            run("verify", block := self._tokens(length))
            self.steps.append({"call": "commit", "count": accepted})
            text.extend(block[:accepted])

        extend("prefill", self._tokens(READ))
        extend("decode", self._tokens(1))
        verify(self.options.verify_len, max(1, self.options.verify_len // 2))
        if self.options.snapshot_slots:
            self.steps.append({"call": "snapshot", "slot": 0})
            kept = list(text)
            extend("decode", self._tokens(1))
            verify(self.options.verify_lens[0], 0)
            self.steps.append({"call": "restore", "slot": 0})
            text[:] = kept
        extend("decode", self._tokens(1))
        if drafts:
            self.steps.append({"call": "draft", "tokens": self._tokens(1), "limit": 2})

    @torch.no_grad()
    def ask(self, model: Any) -> None:
        """Fill in the logits of the uncached forward of ``model``, which is packed but not adapted."""
        ends = [text for text in set(self.texts) if not any(other[: len(text)] == text != other for other in self.texts)]
        rows = torch.zeros(len(ends), max(map(len, ends)), dtype=torch.long)  # what follows a text does not change its logits
        for row, end in zip(rows, ends, strict=True):
            row[: len(end)] = torch.tensor(end)
        answers = dict(zip(ends, model(rows, use_cache=False).logits.float(), strict=True))
        wanted = {
            text: next(found[len(text) - 1] for end, found in answers.items() if end[: len(text)] == text)
            for text in self.texts
        }
        self.largest = max(float(row.abs().max()) for row in wanted.values())
        texts = iter(self.texts)
        for step in self.steps:
            if step["call"] in ("prefill", "decode", "verify"):
                count = 1 if step["call"] == "prefill" else len(step["tokens"])
                step["rows"] = [
                    [float(f"{value:.7g}") for value in wanted[next(texts)][self.ids].tolist()] for _ in range(count)
                ]

    def write(self, folder: Path, tolerance: float = 1.0) -> None:
        content = {
            "version": 1,
            "made_by": hybridge.__version__,
            "instruction_set": self.instruction_set,
            "tolerance": tolerance,
            "largest": self.largest,
            "ids": self.ids,
            "steps": self.steps,
        }
        (folder / GOLDEN).write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")

    instruction_set = ""

    def record(self, folder: Path) -> str | None:
        """Add what the artifact in ``folder`` answers here; return a warning if it is far from the eager model."""
        with Model.open(open_artifact(folder)) as model:
            found = model.validate()
        for step, bits in zip(self.steps, found.bits, strict=True):
            step["bits"] = f"{bits:016x}"
        self.instruction_set = found.instruction_set
        least = (
            ROUNDED_INPUTS if self.options.rounds_inputs else ROUNDED_ROWS if self.options.kv_dtype != "float32" else TOLERANCE
        )
        self.write(folder, min(1.0, max(least, MARGIN * found.worst)))
        if found.worst <= least:
            return None
        return f"the program's logits differ from the eager model's by {found.worst:.2g} of the largest one; validate it."
