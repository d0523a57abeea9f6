"""Hold an artifact against the checkpoint that it was exported from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hybridge.export.checks.comparison import measure_drift
from hybridge.export.checks.random_program import Oracle
from hybridge.export.checks.validation import Drafted, TextCheck, ValidationReport, validate
from hybridge.export.layers.rounded_weight import Rounder
from hybridge.export.output.progress import ExportProgress
from hybridge.export.quantization.quantize import is_lossy
from hybridge.export.quantization.stored_weights import stored_rounder
from hybridge.export.reference.oracle import load_original, round_as, uncached
from hybridge.export.reference.texts import compare_texts
from hybridge.export.source.named import Named
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.core.drafters import BlockDrafter
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats

PROMPTS, NEW_TOKENS = 20, 200


def validate_session(
    artifact: Path, checkpoint: str | Path | Named, steps: ExportProgress, *, programs: int, seed: int
) -> ValidationReport:
    """Compare an artifact with the eager model; ``report.check()`` then raises where it failed."""
    opened = open_artifact(artifact)
    session = Session.of(opened)
    oracle, texts = _load(checkpoint, opened)
    report = _compare(session, oracle, steps, _drafted(session), programs=programs, seed=seed)
    report.tokenizer = texts
    if is_lossy(session.manifest.options):
        original = uncached(load_original(checkpoint, session.manifest).model)
        report.drift = measure_drift(session, original, oracle, seed=seed)
    return report


def _load(checkpoint: str | Path | Named, artifact: Artifact) -> tuple[Oracle, TextCheck]:
    """Return the checkpoint with the artifact's roundings, and how their tokenizers compare."""
    original = load_original(checkpoint, artifact.manifest)
    round_as(original, artifact.manifest.options, _stored(artifact))
    return uncached(original.model), compare_texts(artifact, original)


def _stored(artifact: Artifact) -> Rounder | None:
    """The rounded weights of a calibrated artifact, which nothing else has."""
    calibration = artifact.manifest.calibration
    return stored_rounder(artifact.program, calibration.stored) if calibration else None


def _drafted(session: Session) -> Drafted | None:
    """Generation with the artifact's own drafter, if it has one, always by the longest block."""
    if session.manifest.drafter is None:
        return None
    drafter = BlockDrafter(session)

    def drafted(prompt: list[int], new_tokens: int, stats: GenerationStats) -> Iterator[int]:
        return session.generate(
            prompt, max_new_tokens=new_tokens, drafter=drafter, block_length=session.verify_len, stats=stats
        )

    return drafted


def _compare(
    session: Session, oracle: Oracle, steps: ExportProgress, drafted: Drafted | None, *, programs: int, seed: int
) -> ValidationReport:
    new_tokens = max(1, min(NEW_TOKENS, session.max_seq_len // 2))
    with steps.counted("Validating against eager") as notify:
        return validate(
            session,
            oracle,
            programs=programs,
            prompts=PROMPTS,
            new_tokens=new_tokens,
            seed=seed,
            notify=notify,
            drafted=drafted,
        )
