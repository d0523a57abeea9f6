"""Compare every client of the demo's artifact with the greedy tokens of the uncached model: 20 prompts, second turns, resets.

Exit code 1 where a client gives another token or cannot be run on this machine; its row says why.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from campaigns import campaign
from campaigns.clients import in_process, in_programs
from campaigns.clients.conversations import NEW, NEW_LATER, ClientError, Conversation, Row, conversation, score
from hybridge.export.api import export_model
from hybridge.export.check.oracle import load_oracle
from hybridge.export.check.random_program import Oracle
from hybridge.export.cli.embedded import EMBEDDED, TARGET_OPTIONS, code_prompts
from hybridge.runtime import ExportOptions
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.binding.tokenizer import Tokenizer

PROMPTS, PROMPT_CHARACTERS, TURN_TOKENS = 20, 200, 30
ARTIFACTS = {
    "llm": dataclasses.replace(TARGET_OPTIONS, kernels="llm"),
    "hybridge": dataclasses.replace(TARGET_OPTIONS, kernels="hybridge"),
    "onnx": ExportOptions(max_seq_len=2048, verify_len=16, format="onnx"),
}
"""The demo's artifact for each runtime."""


def main() -> int:
    """Print the tables; returns the exit code."""
    options = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = options.artifacts or Path(name)
        chosen = [row for row in rows(folder) if options.only in row.name]
        if not chosen:
            names = "\n  ".join(row.name for row in rows(folder))
            print(f"no client's name has {options.only!r} in it; there are:\n  {names}", file=sys.stderr)
            return 2
        export(folder)
        oracle = load_oracle(EMBEDDED, open_artifact(folder / "llm").manifest)
        right = print_clients(chosen, asked(folder, oracle))
    return 0 if right else 1


def arguments() -> argparse.Namespace:
    """Parse the arguments."""
    parser = campaign.parser("clients", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="clients with TEXT in their name")
    parser.add_argument("--artifacts", type=Path, metavar="FOLDER", help="export to FOLDER, or use what is there already")
    return parser.parse_args()


def rows(folder: Path) -> list[Row]:
    """Return all clients in the order of the table."""
    return [*in_process.rows(folder, EMBEDDED), *in_programs.rows(folder)]


def export(folder: Path) -> None:
    """Export what is not there yet."""
    for kind, options in ARTIFACTS.items():
        if not (folder / kind).exists():
            export_model(EMBEDDED, folder / kind, options)


def asked(folder: Path, oracle: Oracle) -> list[Conversation]:
    """Return what every client is asked, with the uncached model's answers."""
    tokenizer = Tokenizer.from_file(str(folder / "llm" / "tokenizer.json"))
    texts = code_prompts(tokenizer, 2 * PROMPTS, characters=PROMPT_CHARACTERS)
    turns = [text[:TURN_TOKENS] for text in texts[PROMPTS:]]
    eos_ids = open_artifact(folder / "llm").manifest.eos_ids
    return [conversation(oracle, eos_ids, text, turn) for text, turn in zip(texts[:PROMPTS], turns, strict=True)]


def print_clients(chosen: Sequence[Row], conversations: Sequence[Conversation]) -> bool:
    """Print the table, a row as soon as it is known; returns whether all are right."""
    count = len(conversations)
    print(f"| client | prompts of {count}, {NEW} tokens each | second turns, {NEW_LATER} | after a reset, {NEW_LATER} |")
    print("|---|---|---|---|")
    right = [print_client(row, conversations) for row in chosen]  # each of them, whatever the others gave
    return all(right)


def print_client(row: Row, conversations: Sequence[Conversation]) -> bool:
    """Run one client from its start to its end."""
    try:
        with ExitStack() as stack:
            scored = score(row.start(stack), row.turns, conversations)
    except Exception as error:  # whatever a client raises is its row, and stops no other
        kind = "" if isinstance(error, ClientError) else f"{type(error).__name__}: "
        print(f"| {row.name} | not run: {kind}{' '.join(str(error).split())} | | |", flush=True)
        return False
    turns = "none" if scored.turns is None else scored.turns
    print(f"| {row.name} | {scored.prompts} | {turns} | {scored.resets} |", flush=True)
    return scored.is_perfect(len(conversations))


if __name__ == "__main__":
    sys.exit(main())
