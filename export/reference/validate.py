"""Hold an artifact against the checkpoint that it was exported from."""

from __future__ import annotations

from pathlib import Path

from hybridge.export.layers.rounded_weight import Rounder
from hybridge.export.output.progress import ExportProgress
from hybridge.export.quantization.quantize import is_lossy
from hybridge.export.quantization.stored_weights import stored_rounder
from hybridge.export.reference.oracle import load_oracle, load_original, uncached
from hybridge.export.source.named import Named
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.checks.checked_session import CheckedSession, Oracle
from hybridge.runtime.checks.drift import measure_drift
from hybridge.runtime.checks.validation import validate
from hybridge.runtime.checks.validation_report import ValidationReport
from hybridge.runtime.native import NativeProcess, NativeSession
from hybridge.runtime.sessions.session import Session

PROMPTS, NEW_TOKENS = 20, 200


def validate_session(
    artifact: Path, checkpoint: str | Path | Named, steps: ExportProgress, *, programs: int, seed: int
) -> ValidationReport:
    """Compare an artifact in Python's harness with the eager model; ``report.check()`` then raises where it failed."""
    opened = open_artifact(artifact)
    session = Session.of(opened)
    oracle = load_oracle(checkpoint, opened.manifest, _stored(opened))
    report = _compare(session, oracle, steps, programs=programs, seed=seed)
    if is_lossy(session.manifest.options):
        original = uncached(load_original(checkpoint, session.manifest).model)
        report.drift = measure_drift(session, original, oracle, seed=seed)
    return report


def validate_native(
    artifact: Path, checkpoint: str | Path | Named, steps: ExportProgress, *, programs: int, seed: int
) -> ValidationReport:
    """Validate the native harness likewise, but for the drift, which belongs to the artifact and not to what runs it."""
    with NativeProcess(open_artifact(artifact)) as process:
        oracle = load_oracle(checkpoint, process.artifact.manifest, _stored(process.artifact))
        return _compare(NativeSession(process), oracle, steps, programs=programs, seed=seed)


def _stored(artifact: Artifact) -> Rounder | None:
    """The rounded weights of a calibrated artifact, which nothing else has."""
    calibration = artifact.manifest.calibration
    return stored_rounder(artifact.program, calibration.stored) if calibration else None


def _compare(session: CheckedSession, oracle: Oracle, steps: ExportProgress, *, programs: int, seed: int) -> ValidationReport:
    new_tokens = max(1, min(NEW_TOKENS, session.max_seq_len // 2))
    with steps.counted("Validating against eager") as notify:
        return validate(session, oracle, programs=programs, prompts=PROMPTS, new_tokens=new_tokens, seed=seed, notify=notify)
