"""``hybridge bench --device``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hybridge.export.cli.common import err, out, print_json, table
from hybridge.runtime.artifacts.artifact import open_artifact

if TYPE_CHECKING:
    from hybridge.export.profiling.device import DeviceReport


def bench_device(artifact: Path, context: int, *, json: bool) -> None:
    """Measure and show what this device does with an artifact. Raises what opening and measuring it raise."""
    from hybridge.export.profiling.device import measure_device  # it reads programs with the exporter's libraries

    with err.status("Measuring decode, verify, commit, prefill and memory"):
        report = measure_device(open_artifact(artifact), context)
    if json:
        print_json(report.to_dict())
        return
    show(report)
    out.print("\nFor the table in docs/benchmarks.md:", highlight=False)
    out.print(report.row(), highlight=False, soft_wrap=True, markup=False)


def show(report: DeviceReport) -> None:
    """Print what was measured, and on what."""
    sets = f"{report.instruction_set}, of {', '.join(report.instruction_sets)}" if report.instruction_set else report.kernels
    grid = table(f"{report.processor}, {report.cores} cores: {sets}; {report.threads} threads", "", "ms", "tokens/s", "decodes")
    decode = report.decode_milliseconds
    for name, tokens, milliseconds in (
        ("decode", 1, decode),
        (f"verify of {report.verify_len}", report.verify_len, report.verify_milliseconds),
        (f"commit of {max(1, report.verify_len // 2)}", 0, report.commit_milliseconds),
    ):
        speed = f"{1e3 * tokens / milliseconds:.1f}" if tokens else ""
        grid.add_row(name, f"{milliseconds:.3f}", speed, f"{milliseconds / decode:.2f}")
    grid.add_row("prefill", "", f"{report.prefill_tokens_per_second:.1f}", "")
    out.print(grid)
    out.print(
        f"A decode after {report.context} tokens moves {report.decode_bytes / 1e6:.1f} MB, {report.share_of_bandwidth:.0%} of "
        f"what memory gives ({report.bandwidth / 1e9:.1f} GB/s).",
        highlight=False,
    )
