"""Render published chat templates by the core and by transformers' sandbox, and compare the texts of random conversations."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from campaigns import ROOT, campaign
from hybridge.errors import HybridgeError
from hybridge.runtime.binding.jinja import JinjaTemplate, TemplateError

OURS = ROOT / "tests" / "helpers" / "chat_templates"


def compare(source: str, count: int, seed: int) -> Counter[str]:
    """Return how many conversations are ``equal``, ``refused`` by both, and ``different``, which are printed."""
    from template_oracle import NOW, Conversations, reference

    template, conversations, found = JinjaTemplate(source), Conversations(seed), Counter[str]()
    for _ in range(count):
        variables = conversations.variables()
        wanted = reference(source, variables)
        try:
            written: str | None = template.render(variables, NOW.isoformat()).text
        except TemplateError:
            written = None
        same = written is None if isinstance(wanted, Exception) else written == wanted
        found["different" if not same else "refused" if written is None else "equal"] += 1
        if not same:
            print(f"{variables!r}: {wanted!r}, not {written!r}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Print a table; exit with 1 if any conversation differs."""
    parser = campaign.parser("chat-templates", __doc__)
    parser.add_argument("templates", type=Path, nargs="?", help="a folder of *.jinja; left out, those of our tests")
    parser.add_argument("--count", type=int, default=500, help="conversations of each template (default: 500)")
    parser.add_argument("--seed", type=int, default=1, help="of the conversations (default: 1)")
    options = parser.parse_args()
    paths = sorted((options.templates or OURS).glob("*.jinja"))
    if not paths:
        parser.error(f"{options.templates} has no *.jinja")
    print("| template | equal | both refuse | different |\n|---|---|---|---|")
    wrong = 0
    for path in paths:
        try:
            found = compare(path.read_text(encoding="utf-8"), options.count, options.seed)
        except (HybridgeError, TemplateError) as error:
            found = Counter(different=options.count)
            print(f"{path.stem}: {error}", file=sys.stderr, flush=True)
        wrong += found["different"]
        print(f"| {path.stem} | {found['equal']} | {found['refused']} | {found['different']} |", flush=True)
    print(f"\n{len(paths)} templates; {wrong} conversations differ.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
