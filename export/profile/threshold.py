"""The length from which an artifact's accelerator reads prompts faster than the CPU: measured, and written to its manifest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hybridge.errors import OutputError
from hybridge.runtime.artifact.folder import Artifact
from hybridge.runtime.artifact.manifest import MANIFEST
from hybridge.runtime.artifact.options import NEVER
from hybridge.runtime.binding.session import Session
from hybridge.runtime.files import replace_file
from hybridge.runtime.measure import delegate_and_cpu

ROUNDS = 5
"""Prompts of each length by each of both, in turn, of which the fastest counts."""


@dataclass(frozen=True)
class PromptSeconds:
    """Seconds that a prompt of as many tokens takes by the accelerator and by the CPU's own methods."""

    tokens: int
    delegate: float
    cpu: float


def measure_prompts(artifact: Artifact) -> list[PromptSeconds]:
    """Time prompts from the shortest that is not read as a block to the longest that fits, each about twice as long.

    Raises UsageError if the artifact has no accelerator, or it cannot be used here.
    """
    options, found = artifact.manifest.options, []
    with delegate_and_cpu(artifact) as (delegated, by_cpu):
        tokens = max(options.prefill_chunk // 4, options.verify_len) + 1
        while tokens <= delegated.max_seq_len:
            seconds = [(_seconds(delegated, tokens), _seconds(by_cpu, tokens)) for _ in range(ROUNDS)]
            found.append(PromptSeconds(tokens, *map(min, zip(*seconds, strict=True))))
            tokens = options.prefill_chunk if tokens < options.prefill_chunk else 2 * tokens
    return found


def threshold(measured: Sequence[PromptSeconds]) -> int:
    """Return the shortest length from which on the accelerator was the faster one at every length; NEVER if it was not."""
    slower = [each.tokens for each in measured if each.delegate >= each.cpu]
    return min((each.tokens for each in measured if each.tokens > max(slower, default=0)), default=NEVER)


def write_threshold(artifact: Artifact, tokens: int) -> None:
    """Write to the artifact's manifest from how many tokens on prompts are read by its accelerator. Raises OutputError."""
    manifest, path = artifact.manifest, artifact.folder / MANIFEST
    changed = manifest.model_copy(update={"options": replace(manifest.options, delegate_from=tokens)})
    try:
        mode = path.stat().st_mode
        replace_file(path, changed.to_json().encode())
        path.chmod(mode)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}.") from None


def _seconds(session: Session, tokens: int) -> float:
    session.reset()
    prompt = [(7 * i) % session.vocab_size for i in range(tokens)]
    start = time.perf_counter()
    session.prefill(prompt)
    return time.perf_counter() - start
