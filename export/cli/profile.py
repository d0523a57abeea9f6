"""``hybridge bench OUT --profile``"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from hybridge.cache.errors import UsageError
from hybridge.export.cli.common import err, megabytes, out, print_json, table
from hybridge.runtime.artifacts.artifact import open_artifact
from hybridge.runtime.core.library import set_threads

if TYPE_CHECKING:
    from hybridge.export.profiling.cut import Profile  # imports ExecuTorch's exporter, which takes seconds

METHODS = ("decode", "verify", "prefill")
ROUNDS = 21


def profile_parts(artifact: Path, threads: int | None, context: int, *, json: bool) -> None:
    """Time and show the parts of a decode, a verify and a prefill. Raises what opening the artifact raises."""
    from hybridge.export.profiling.profile import profile

    opened = open_artifact(artifact)
    if opened.manifest.options.format != "pte":
        raise UsageError(
            f"{artifact} is for onnxruntime, and --profile takes ExecuTorch's programs apart; "
            "profile a .pte of the same model, or use onnxruntime's own profiler."
        )
    if threads is not None:
        set_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    with err.status("Timing the parts of a decode, a verify and a prefill"):
        profiles = profile(opened, METHODS, context, ROUNDS, clock)
    if json:
        print_json([each.to_dict() for each in profiles])
    else:
        _show(profiles)


def _show(profiles: Sequence[Profile]) -> None:
    for each in profiles:
        out.print(_grid(each))
        out.print(
            f"The parts add up to {each.sum:.2f} ms, {each.sum / each.milliseconds:.0%} of the whole. "
            f"Memory reads {each.bandwidth / 1e9:.1f} GB/s here.\n",
            highlight=False,
        )


def _grid(profile: Profile) -> Table:
    """A row for each part, the slowest first."""
    grid = table(
        f"A {profile.method} after {profile.context} tokens", "", "calls", "ms", "of the time", "moves", "of the limit"
    )
    for part in profile.parts:
        share = part.milliseconds / profile.milliseconds
        limit = part.share_of_limit(profile.bandwidth)
        grid.add_row(
            part.name, f"{part.calls}", f"{part.milliseconds:.3f}", f"{share:.1%}", megabytes(part.bytes), f"{limit:.0%}"
        )
    limit = profile.bytes / profile.bandwidth / profile.milliseconds * 1e3
    grid.add_section()
    calls = sum(part.calls for part in profile.parts)
    grid.add_row("the whole", f"{calls}", f"{profile.milliseconds:.3f}", "", megabytes(profile.bytes), f"{limit:.0%}")
    return grid
