"""Load and drop sessions, have many at once, in threads and in children; exit code 1 if anything differs from one alone."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from campaigns import campaign
from campaigns.faults.writers import CHECKPOINT, OPTIONS

KINDS = ("hybridge", "llm", "onnx")
"""Our kernels, the stock runtime's with XNNPACK, and onnxruntime."""
CHECKS = ("loads", "sessions", "threads", "children", "one_session")
SANITIZED = "native threads"
"""The C interface from many threads, under the thread sanitizer."""


def arguments() -> argparse.Namespace:
    """Parse the arguments; exits with 2 for wrong ones."""
    parser = campaign.parser("processes", __doc__)
    parser.add_argument("--loads", type=int, default=1000, help="loads of each artifact (default: 1000)")
    parser.add_argument("--sessions", type=int, default=100, help="sessions at once (default: 100)")
    parser.add_argument("--threads", type=int, default=8, help="threads at once (default: 8)")
    parser.add_argument("--children", type=int, default=8, help="children at once (default: 8)")
    parser.add_argument("--calls", type=int, default=1000, help="calls of two threads in one session (default: 1000)")
    parser.add_argument("--kind", choices=KINDS, dest="kinds", action="append", help="a kind of artifact; all without this")
    parser.add_argument("--only", choices=(*CHECKS, SANITIZED), action="append", help="a check; all without this")
    parser.add_argument("--check", nargs=3, help=argparse.SUPPRESS)  # what a process of its own runs: name, artifact, count
    options = parser.parse_args()
    if min(options.loads, options.sessions, options.threads, options.children, options.calls) < 1:
        parser.error("give counts of 1 or more")
    return options


def main() -> int:
    """Run each check in a process of its own, and print a line for it as it ends."""
    options = arguments()
    if options.check:
        return run(*options.check)
    counts = dict(zip(CHECKS, (options.loads, options.sessions, options.threads, options.children, options.calls), strict=True))
    failed = False
    with tempfile.TemporaryDirectory(prefix="hybridge-processes-") as scratch:
        artifacts = {name: export(name, Path(scratch) / name) for name in options.kinds or KINDS}
        print("| check | of | artifact | found | seconds | wrong |\n|---|---|---|---|---|---|", flush=True)
        for name, artifact in artifacts.items():
            for check in counts:
                if check in (options.only or CHECKS):
                    command = [sys.executable, "-m", "campaigns.processes", "--check", check, str(artifact), str(counts[check])]
                    failed |= report(check, counts[check], name, lambda command=command: in_a_process(command))
        if "hybridge" in artifacts and SANITIZED in (options.only or (SANITIZED,)):
            from native_programs import native_program
            from store import demo_folder

            from campaigns.processes.checks import under_the_thread_sanitizer

            program, demo = native_program("threads_sanitized"), demo_folder()
            models = demo / "hybridge-demo", demo / "hybridge-demo-draft"
            failed |= report(SANITIZED, 20, "hybridge", lambda: under_the_thread_sanitizer(program, *models, 20))
    return 1 if failed else 0


def export(kind: str, folder: Path) -> Path:
    """Export the embedded draft model."""
    from dataclasses import replace

    from hybridge.export.api import export_model

    own = replace(OPTIONS, kernels="hybridge", format="onnx") if kind == "onnx" else replace(OPTIONS, kernels=kind)
    export_model(CHECKPOINT, folder, own)
    return folder


def run(check: str, artifact: str, count: str) -> int:
    """Run one check in this process; what is wrong goes to standard error."""
    from campaigns.processes import checks

    try:
        print(getattr(checks, check)(Path(artifact), int(count)))
    except checks.Wrong as error:
        print(f"wrong: {error}", file=sys.stderr)
        return 1
    return 0


def in_a_process(command: list[str]) -> tuple[bool, str]:
    """Return whether it went well, and what was found."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=7200)
    return done.returncode == 0, (done.stdout if done.returncode == 0 else done.stderr).strip()[-400:] or str(done.returncode)


def report(check: str, count: int, kind: str, play: Callable[[], tuple[bool, str]]) -> bool:
    """Run a check and print its line; True where anything was wrong."""
    start = time.monotonic()
    fine, found = play()
    words = found.splitlines()[-1]
    print(f"| {check} | {count} | {kind} | {words} | {time.monotonic() - start:.0f} | {int(not fine)} |", flush=True)
    if not fine:
        print(f"  {found}", file=sys.stderr, flush=True)
    return not fine


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
