"""Hand hybridge hostile input and print what crashes, hangs or is wrongly accepted. Exit code 1 if anything is."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from campaigns import campaign
from campaigns.fuzz import files, pictures
from campaigns.fuzz.driver import Report, Target, fuzz
from campaigns.fuzz.kernels import Kernels
from campaigns.fuzz.tokenizers import Calls, Chats, Grammars, Templates, Tokenizers

BASELINE = "x86-64" if platform.machine() == "x86_64" else "armv8-a"  # a processor with few instructions, whose code is another
TARGETS: Mapping[str, Callable[[], Target]] = {
    "kernels": Kernels,
    "kernels-baseline": lambda: Kernels("kernels-baseline", BASELINE),
    "native-tokenizers": Tokenizers,
    "native-chats": Chats,
    "native-grammars": Grammars,
    "native-calls": Calls,
    "native-templates": Templates,
    "native-picture-files": pictures.PictureFiles,
    **{each.name: partial(replace, each) for each in (*files.TARGETS, *pictures.TARGETS)},
}


def arguments() -> argparse.Namespace:
    """Parse the arguments; exits with 2 for wrong ones."""
    parser = campaign.parser("fuzz", __doc__)
    parser.add_argument("--minutes", type=float, help="how long, all targets together (default: 1)")
    parser.add_argument("--count", type=int, help="how many inputs of each target, instead of --minutes")
    parser.add_argument("--seed", type=int, default=0, help="of all inputs (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="the first input of the seed (default: 0)")
    parser.add_argument("--only", choices=TARGETS, action="append", help="a target; all without this")
    options = parser.parse_args()
    if options.minutes is not None and options.count is not None:
        parser.error("give --minutes or --count, not both")
    if (options.minutes is not None and options.minutes <= 0) or (options.count is not None and options.count <= 0):
        parser.error("--minutes and --count are more than 0")
    if options.seed < 0 or options.first < 0:
        parser.error("--seed and --first are at least 0")
    return options


def main() -> int:
    """Give each target its share of the time; findings are printed as they come, figures at the end."""
    options = arguments()
    reports: list[Report] = []
    targets = [TARGETS[name]() for name in options.only or TARGETS]
    for target in targets:
        target.prepare()
        share = None if options.count is not None else 60 * (options.minutes or 1.0) / len(targets)
        deadline = None if share is None else time.monotonic() + share
        reports.append(fuzz(target, options.seed, options.first, options.count, deadline))
        for finding in reports[-1].findings:
            print(finding, flush=True)
    for report in reports:
        print(report)
    return 1 if any(report.findings for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
