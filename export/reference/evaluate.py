"""Measure what rounding costs an artifact: its own logits beside those of the checkpoint in float32."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hybridge.cache.errors import UsageError
from hybridge.export.checks.comparison import Comparison, ComparisonReport
from hybridge.export.checks.texts import continued, logits_of, read_text, sampled, windows
from hybridge.export.output.progress import ExportProgress
from hybridge.export.reference.layer_costs import LayerCost, layer_costs
from hybridge.export.reference.oracle import load_original, uncached
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.artifacts.tokenizer import tokenizer_of
from hybridge.runtime.core.session import Session


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The texts of an evaluation: windows of the file ``text``, or the prompts of the file ``prompts`` with answers.

    Without either, texts that the artifact samples from one token. window: the tokens of a text; tokens: of all together.
    """

    text: Path | None = None
    prompts: Path | None = None
    window: int = 512
    tokens: int = 4096
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The comparison of an artifact with its checkpoint; layers: what each weight costs by itself, where that was asked."""

    comparison: ComparisonReport
    layers: list[LayerCost] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        costs = {} if self.layers is None else {"layers": [asdict(each) for each in self.layers]}
        return self.comparison.to_dict() | costs


def evaluate(
    artifact: Path, checkpoint: str | Path, texts: Texts, steps: ExportProgress, *, layers: bool = False
) -> Evaluation:
    """Compare ``artifact`` with ``checkpoint`` on ``texts``; ``layers`` also measures each weight.

    Raises UsageError for texts that are too short or too long for the artifact, and for a checkpoint of another model.
    """
    opened = open_artifact(artifact)
    session = Session.of(opened)
    chosen = list(token_texts(opened, session, texts, steps))
    original = uncached(load_original(checkpoint, opened.manifest).model)
    comparison = Comparison()
    with steps.counted("Comparing with the checkpoint") as notify:
        for done, text in enumerate(chosen):
            comparison.add(text, original(text), logits_of(session, text))
            notify(done + 1, len(chosen))
    costs = layer_costs(opened.manifest, checkpoint, chosen, steps) if layers else None
    return Evaluation(comparison=comparison.report(), layers=costs)


def token_texts(artifact: Artifact, session: Session, texts: Texts, steps: ExportProgress) -> Iterable[list[int]]:
    """Return the tokens of each text. Raises UsageError."""
    if texts.text is not None and texts.prompts is not None:
        raise UsageError("--text and --prompts are two kinds of texts; give one of them.")
    if artifact.tokenizer is None and (texts.text or texts.prompts):
        raise UsageError(f"{artifact.folder} has no tokenizer.json, so text cannot be turned into tokens; leave the texts out.")
    length = min(texts.window, session.max_seq_len)
    count = max(1, texts.tokens // length)
    if texts.text is not None:
        text, name = read_text(texts.text, "--text"), f"--text {texts.text}"
        return windows(tokenizer_of(artifact), text, length, count, name, ", or shorter windows by --window")
    if texts.prompts is not None:
        prompts, tokenizer = read_text(texts.prompts, "--prompts"), tokenizer_of(artifact)
        with steps.step("Answering the prompts"):
            return list(continued(session, tokenizer, prompts, length, f"--prompts {texts.prompts}", texts.seed))
    with steps.step("Sampling texts"):
        return list(sampled(session, length, count, texts.seed))
