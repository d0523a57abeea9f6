"""Hold an artifact against the checkpoint that it was exported from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hybridge.export.checks.comparison import measure_drift
from hybridge.export.checks.random_program import CheckedSession, Oracle
from hybridge.export.checks.validation import Drafted, TextCheck, ValidationReport, validate
from hybridge.export.layers.rounded_weight import Rounder
from hybridge.export.output.progress import ExportProgress
from hybridge.export.quantization.quantize import is_lossy
from hybridge.export.quantization.stored_weights import stored_rounder
from hybridge.export.reference.oracle import load_original, round_as, uncached
from hybridge.export.reference.texts import compare_texts
from hybridge.export.source.named import Named
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.drafters.block_drafter import BlockDrafter
from hybridge.runtime.generation.stats import GenerationStats
from hybridge.runtime.native import NativeSession
from hybridge.runtime.sessions.session import Session

PROMPTS, NEW_TOKENS = 20, 200


def validate_session(
    artifact: Path, checkpoint: str | Path | Named, steps: ExportProgress, *, programs: int, seed: int
) -> ValidationReport:
    """Compare an artifact in Python's harness with the eager model; ``report.check()`` then raises where it failed."""
    opened = open_artifact(artifact)
    session = Session.of(opened)
    oracle, texts = _load(checkpoint, opened)
    report = _compare(session, oracle, steps, _drafted(session), programs=programs, seed=seed)
    report.tokenizer = texts
    if is_lossy(session.manifest.options):
        original = uncached(load_original(checkpoint, session.manifest).model)
        report.drift = measure_drift(session, original, oracle, seed=seed)
    return report


def validate_native(
    artifact: Path, checkpoint: str | Path | Named, steps: ExportProgress, *, programs: int, seed: int
) -> ValidationReport:
    """Validate the native core likewise, but for the drift, which belongs to the artifact and not to what runs it."""
    session = NativeSession.load(artifact)
    oracle, texts = _load(checkpoint, session.model.artifact)
    report = _compare(session, oracle, steps, _drafted(session), programs=programs, seed=seed)
    report.tokenizer = texts
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


def _drafted(session: Session | NativeSession) -> Drafted | None:
    """Generation with the artifact's own drafter, if it has one that runs there, always by the longest block."""
    if session.manifest.drafter is None:
        return None
    if isinstance(session, Session):
        generate = partial(session.generate, drafter=BlockDrafter(session))
    elif session.model.draft_len:
        generate = partial(session.generate, drafter="own")
    else:  # a program of before, which does not say which blocks its drafter has
        return None

    def drafted(prompt: list[int], new_tokens: int, stats: GenerationStats) -> Iterator[int]:
        return generate(prompt, max_new_tokens=new_tokens, block_length=session.verify_len, stats=stats)

    return drafted


def _compare(
    session: CheckedSession, oracle: Oracle, steps: ExportProgress, drafted: Drafted | None, *, programs: int, seed: int
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
