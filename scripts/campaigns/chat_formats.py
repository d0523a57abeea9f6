"""Find the chat formats of published templates; compare the core with Jinja on more conversations than an export does."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from campaigns import ROOT, campaign
from hybridge.cache.errors import UsageError
from hybridge.export.cli.embedded import EMBEDDED
from hybridge.export.write.chat_format import FoundFormat, InexpressibleError, find_chat_format, verify_rendering
from hybridge.runtime.artifacts.chat_format import ChatFormatEntry, RoleEntry
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.text.answers import CoreFormat
from hybridge.runtime.text.chat_template import ChatTemplates

HEAD = "| template | thinking switched | dates | reserved words | answers | found in |\n|---|---|---|---|---|---|"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
OURS = ROOT / "tests" / "helpers" / "chat_templates"


def reserved(entry: ChatFormatEntry) -> int:
    """Return how many words are refused in messages, each counted once."""
    every = entry.renderings.default
    answers = (every.earlier.plain, every.last.plain, every.earlier.reasoned, every.last.reasoned)
    roles: Iterator[RoleEntry] = filter(None, (every.system, every.user, *answers))
    return len({word for role in roles for word in role.reserved})


def row(name: str, entry: ChatFormatEntry, seconds: float) -> str:
    """Return a line of the table."""
    switch = "yes" if entry.renderings.thinking is not None else "no"
    dates = ", ".join(entry.renderings.default.dates) or "none"
    parts = ", ".join(f"{each.kind} in `{each.open[0]}`" for each in entry.sections) or "one part"
    return f"| {name} | {switch} | {dates} | {reserved(entry)} | {parts} | {seconds:.1f} s |"


def compare(templates: ChatTemplates, found: FoundFormat, count: int, seed: int) -> str | None:
    """Return what the core writes otherwise than the template, if it does, in ``count`` further conversations."""
    assert found.entry is not None
    try:
        verify_rendering(found.entry.renderings.default, templates, count, seed)
    except (InexpressibleError, UsageError) as error:
        return str(error)
    return None


def main() -> int:
    """Print a table, and the reasons of templates without a format; exit with 1 if any conversation differs."""
    parser = campaign.parser("chat-formats", __doc__)
    parser.add_argument("templates", type=Path, nargs="?", help="a folder of *.jinja; left out, those of our tests")
    parser.add_argument("--count", type=int, default=2000, help="conversations of each template (default: 2,000)")
    parser.add_argument("--seed", type=int, default=1, help="of the conversations (default: 1)")
    options = parser.parse_args()
    paths = sorted((options.templates or OURS).glob("*.jinja"))
    if not paths:
        parser.error(f"{options.templates} has no *.jinja")
    print(HEAD)
    without, wrong, tokenizer = [], 0, Tokenizer.from_file(EMBEDDED / "tokenizer.json")
    for path in paths:
        text, began = path.read_text(encoding="utf-8"), time.perf_counter()
        templates = ChatTemplates(path.parent, {"default": text}, TOKENS)
        found = find_chat_format(templates, CoreFormat.find(text, tokenizer))
        seconds = time.perf_counter() - began
        if found.entry is None:
            without.append(f"- {path.stem}: {found.reason}")
            continue
        print(row(path.stem, found.entry, seconds), flush=True)
        if differs := compare(templates, found, options.count, options.seed):
            wrong += 1
            print(f"{path.stem}: {differs}", file=sys.stderr, flush=True)
    print(f"\n{len(paths) - len(without)} of {len(paths)} have a format; {wrong} differ. Without one:\n")
    print("\n".join(without) or "- none")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
