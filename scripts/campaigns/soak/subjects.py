"""Subjects of the soak: a family of each recurrence, in each precision, with each kernel set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaigns.campaign import whole

SIZES = {"prefill_chunk": 17, "verify_len": 5, "snapshot_slots": 2}
SHORT = 67
"""The context of the random operations: it is full again and again."""
SESSIONS = 3
"""Most sessions of one program that are interleaved."""

FAMILIES = {
    "qwen3_5_text": "gated delta rule",
    "kimi_linear": "delta rule with a decay a channel",
    "lfm2": "short convolution",
    "falcon_h1": "Mamba-2 beside attention",
    "jamba": "Mamba, experts",
    "minimax": "lightning attention",
    "recurrent_gemma": "RG-LRU, sliding window",
    "gpt_oss": "sliding window with sinks",
}
"""Model types by what is special about their state."""

VARIANTS = (("hybridge", ""), ("hybridge", "8da4w"), ("llm", ""), ("hybridge", "8w"), ("aten", ""))
"""Kernel set and quantization. XNNPACK's groups of 4 bits want wider layers than these models have."""

EXPERTS = ("kimi_linear", "jamba", "gpt_oss")
"""Families whose activations are not rounded: another rounding of one number chooses other experts, and other logits.

Where an embedding is changed by 3e-7, the rounded kimi_linear itself gives logits that are off by 5 % after a token of 200.
"""

WIDER = {"kimi_linear": {"linear_head_dim": 24}, "recurrent_gemma": {"intermediate_size": 80}}
"""Sizes of families whose own are no multiples of ``GROUP``."""
LINEAR, SLIDING = "linear_attention", "sliding_attention"
RECURRENCES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {},
    "lfm2": {},
    "bailing_hybrid": {"layer_types": [LINEAR] * 4, "first_k_dense_replace": 4},
    "mamba": {"time_step_rank": 8},
    "mamba2": {},
    "minimax": {"layer_types": [LINEAR] * 3, "num_local_experts": 1, "num_experts_per_tok": 1},
    "recurrent_gemma": WIDER["recurrent_gemma"],
    "gpt_oss": {"layer_types": [SLIDING] * 2, "num_local_experts": 1, "num_experts_per_tok": 1},
}
"""Families of each recurrence for long texts, and their sizes.

Full attention over 100,000 positions takes an hour, so the first two alone have it; and of two experts with equal scores either
is right, so there is one.
"""
GROUP = 8
"""Columns of a rounded weight that share a scale."""


@dataclass(frozen=True)
class Subject:
    """One artifact and what runs it."""

    family: str
    kernels: str
    quantize: str
    max_seq_len: int = SHORT

    @property
    def is_long(self) -> bool:
        """Return whether it is for long texts."""
        return self.max_seq_len != SHORT

    @property
    def name(self) -> str:
        length = str(self.max_seq_len) if self.is_long else ""
        return "-".join(filter(None, (self.family, self.kernels, self.quantize, length)))

    @property
    def sizes(self) -> dict[str, Any]:
        """Return what its config has other than the family's usual sizes."""
        return RECURRENCES[self.family] if self.is_long else WIDER.get(self.family, {})

    def prepare(self, work: Path) -> tuple[Path, Path]:
        """Return checkpoint and artifact below ``work``, made on first use; either is there whole or not at all."""
        from tiny import save_lively_checkpoint, tiny_config

        checkpoint, artifact = work / (f"{self.family}-long" if self.is_long else self.family), work / self.name
        if not checkpoint.exists():
            with whole(checkpoint) as folder:
                save_lively_checkpoint(folder, tiny_config(self.family, **self.sizes))
        if not artifact.exists():
            with whole(artifact) as folder:
                folder.mkdir()
                self._export(checkpoint, folder)
        return checkpoint, artifact

    def _export(self, checkpoint: Path, folder: Path) -> None:
        from hybridge.export.progress import ExportProgress
        from hybridge.export.source.checkpoint import load_checkpoint
        from hybridge.export.write.pte import PteWriter
        from hybridge.runtime.artifact.options import ExportOptions

        options: dict[str, Any] = {**SIZES, "max_seq_len": self.max_seq_len, "kernels": self.kernels}
        if self.quantize:
            options |= {"quantize": self.quantize, "group_size": GROUP}
        asked = ExportOptions(**options)
        loaded = load_checkpoint(checkpoint)
        PteWriter(loaded.config, asked).write(loaded, folder, ExportProgress())


def _subject(family: str, kernels: str, quantize: str) -> Subject:
    weights_alone = {"8da4w": "4w"} if family in EXPERTS else {}
    return Subject(family, kernels, weights_alone.get(quantize, quantize))


SUBJECTS = {each.name: each for family in FAMILIES for each in (_subject(family, *variant) for variant in VARIANTS)}


@contextmanager
def opened(subject: Subject, artifact: Path) -> Iterator[Sequence[Any]]:
    """Yield ``SESSIONS`` sessions of one artifact: the last has a model of its own, the others share one."""
    from hybridge.runtime import Model, Session, open_artifact

    model = Model.open(open_artifact(artifact))
    yield [*(Session(model) for _ in range(SESSIONS - 1)), Session.load(artifact)]
