"""Measure the server over an artifact with a long context: a table of figures from one run, each a ratio within it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from campaigns import campaign
from campaigns.serve_bench.measurements import crowd, overhead, restart, structured, turns
from campaigns.serve_bench.server import Row, made_artifact, serving

FIGURES = ("turns", "restart", "json", "overhead", "crowd")


def arguments() -> argparse.Namespace:
    parser = campaign.parser("serve-bench", __doc__)
    parser.add_argument("artifact", type=Path, nargs="?", help="of a context that holds --tokens, and with a chat template")
    parser.add_argument("--shape", help="instead of an artifact: a shape of scripts/bench with random weights, in 8da4w")
    parser.add_argument("--work", type=Path, default=Path("serve-bench"), help="where the files of --shape are kept")
    parser.add_argument("--tokens", type=int, default=2000, help="of a conversation")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each figure")
    parser.add_argument("--streamed", type=int, default=400, help="tokens of a text whose overhead is measured")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=200, help="of each client")
    parser.add_argument("--only", choices=FIGURES, nargs="+", default=FIGURES, help="some of the figures")
    options = parser.parse_args()
    if (options.artifact is None) == (options.shape is None):
        parser.error("give an artifact or --shape")
    return options


def figures(artifact: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of the table that were asked for."""
    if "turns" in options.only:
        with serving(artifact) as one:
            one.ask([{"role": "user", "content": "warm up"}], 20)
            yield from turns(one, options.tokens, options.rounds)
    if "restart" in options.only:
        yield from restart(artifact, options.tokens, options.rounds)
    if "json" in options.only:
        yield from structured(artifact, options.rounds)
    if "overhead" in options.only:
        yield from overhead(artifact, options.rounds, options.streamed)
    if "crowd" in options.only:
        yield from crowd(artifact, options.clients, options.requests)


def main() -> int:
    """Print the table; exit code 1 where an answer is wrong."""
    options = arguments()
    artifact = options.artifact or made_artifact(options.shape, options.work, options.tokens + 1072)
    print("| what | measured | target |\n|---|---|---|")
    row: Row = ("", "0 ", "")
    for row in figures(artifact, options):
        print("| " + " | ".join(row) + " |", flush=True)
    return 0 if row[2] != "0" or row[1].startswith("0 ") else 1


if __name__ == "__main__":
    sys.exit(main())
