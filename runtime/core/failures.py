"""The core's numbers for what went wrong, as the errors of ``hybridge.errors``."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.cache.errors import (
    ArtifactError,
    CapacityError,
    CommitError,
    DraftError,
    HybridgeError,
    NumericalError,
    OutputError,
    SnapshotError,
    StateFileError,
    TokenError,
    UsageError,
)
from hybridge.runtime.core.interface import Status
from hybridge.runtime.core.library import load

REFUSALS: Mapping[tuple[str, Status], tuple[type[HybridgeError], str]] = {
    ("commit", Status.INVALID_STATE): (
        CommitError,
        "there is no verified block: call verify first, and commit before anything else.",
    ),
    ("commit", Status.INVALID_ARGUMENT): (CommitError, "commit takes a count from 0 to the length of the verified block."),
    ("restore", Status.INVALID_STATE): (
        SnapshotError,
        "this slot keeps nothing, or was overwritten: tokens came below its length.",
    ),
    ("draft", Status.INVALID_ARGUMENT): (
        DraftError,
        "there is no drafter inside this model, or the token is unknown to it.",
    ),
    ("resume", Status.INVALID_ARGUMENT): (
        UsageError,
        "this checkpoint is of another model; resume it in a session over the one that made it.",
    ),
    ("save", Status.FILE_ACCESS): (OutputError, "the state cannot be written."),
    ("load", Status.FILE_ACCESS): (StateFileError, "the file cannot be read, or is no regular file."),
    ("load", Status.INVALID_FILE): (StateFileError, "the file is damaged, or no state of this model as the core saves it."),
    ("become", Status.INVALID_FILE): (StateFileError, "this is no state of this artifact: its numbers do not belong together."),
    ("checkpoint_read", Status.INVALID_FILE): (StateFileError, "this is no checkpoint of this artifact."),
    **{
        (call, Status.INVALID_ARGUMENT): (
            TokenError,
            "a draft token is outside the vocabulary, the drafter does not fit this model, or a mask leaves no token.",
        )
        for call in ("begin", "next", "end")
    },
    **{
        (call, Status.INVALID_FILE): (
            ArtifactError,
            f"the program failed in {call!r}: its file was changed, it refused what fits, or its state is of another length "
            "than the session's text. Open the artifact again, or reset the session.",
        )
        for call in ("prefill", "decode", "verify", "commit", "snapshot", "restore", "reset", "begin", "next", "end")
    },
    ("next", Status.INVALID_STATE): (UsageError, "the session's text was changed while the generation waited; begin another."),
}
"""By the call and the status: the error, and its words."""


def failure(call: str, status: int) -> HybridgeError:
    """Return the error for a status that a call, named as in ``hybridge.h``, has answered with."""
    if found := REFUSALS.get((call, Status(status))):
        return found[0](found[1])
    text = load().hybridge_status_text(status).decode()
    logged = load().hybridge_failure().decode(errors="replace")
    reason = "; ".join([text, *filter(None, map(str.strip, logged.splitlines()))])
    match status:
        case Status.NO_ROOM:
            return CapacityError(f"{call}: {reason}.")
        case Status.NOT_FINITE:
            return NumericalError(f"the program gave logits in {call!r} that are NaN or infinite: {reason}.")
        case Status.BUSY | Status.INVALID_HANDLE | Status.INVALID_ARGUMENT | Status.INVALID_STATE:
            return UsageError(f"{call}: {reason}.")
        case _:
            return ArtifactError(f"the program failed in {call!r}: {reason}.")


def run(call: str, *arguments: object) -> None:
    """Call ``hybridge_<call>``. Raises the error for what it answers, if that is not OK."""
    if status := getattr(load(), f"hybridge_{call}")(*arguments):
        raise failure(call, status)
