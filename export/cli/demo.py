"""``hybridge demo``: the whole way with the embedded model, and the figures that it should reach."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text
from tokenizers import Tokenizer

from hybridge.cache.errors import ValidationError
from hybridge.export.cli.common import app, err, out, table
from hybridge.export.cli.export import export_checkpoint
from hybridge.export.cli.figures import Figure, figures, print_figures
from hybridge.export.cli.validate import DEFAULT_PROGRAMS, print_report, validate_session
from hybridge.runtime.generation_stats import GenerationStats
from hybridge.runtime.manifest import ExportOptions
from hybridge.runtime.prompt_lookup import PromptLookup
from hybridge.runtime.session import Session

EMBEDDED = Path(__file__).parents[1] / "embedded"
OPTIONS = ExportOptions(max_seq_len=1024)
NEW_TOKENS = 400
PROMPT = '''class Point:
    """A point in the plane."""

    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def __sub__(self, other):
'''


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the artifact goes; replaced if it is one.")] = Path(
        "hybridge-demo"
    ),
    programs: Annotated[int, typer.Option(min=1, help="Random programs of 40 operations to validate with.")] = DEFAULT_PROGRAMS,
) -> None:
    """Export the embedded hybrid model, validate it, and generate with and without guessing ahead."""
    began = time.perf_counter()
    err.print(f"[bold]1. Export[/] the embedded model, {EMBEDDED.name} (3 gated delta nets to 1 attention layer)")
    manifest = export_checkpoint(EMBEDDED, output, OPTIONS, force=True, validate=False)
    err.print("[bold]2. Validate[/] it against the uncached eager model")
    report = validate_session(output, EMBEDDED, programs=programs, seed=0)
    print_report(report, out)
    err.print("[bold]3. Generate[/] with and without guessing ahead")
    session = Session.load(output)
    same = compare_generation(session, Tokenizer.from_file(str(output / "tokenizer.json")))
    results = [*figures(manifest, report, session), Figure(
        what="this demo's generation, speculative vs plain", target="identical",
        measured="identical" if same else "different", reached=same,
    )]  # fmt: skip
    print_figures(results)
    err.print(
        f"[bold]Done[/] in {time.perf_counter() - began:.0f} s. Next:\n"
        f"  hybridge run {output} --prompt 'def main(' --stats\n"
        f"  hybridge inspect {output}\n"
        "  hybridge export YOUR_CHECKPOINT -o OUT --validate",
        highlight=False,
    )
    if not all(figure.reached for figure in results):
        raise ValidationError("not every figure was reached; see the table above.")


def compare_generation(session: Session, tokenizer: Tokenizer) -> bool:
    """Generate both ways, show what was guessed in colour, and whether the tokens are the same."""
    prompt = tokenizer.encode(PROMPT).ids
    plain, plain_stats = _generate(session, prompt, drafter=None)
    guessed, stats = _generate(session, prompt, drafter=PromptLookup())
    out.print(
        Text("prompt ", "bold"), Text("accepted guess ", "green"), Text("rejected, then corrected ", "red"), Text("decoded", "")
    )
    out.print(colored(tokenizer, prompt, guessed, stats))
    grid = table("Generation, greedy", "", "tokens", "tokens/s", "accepted", "rejected", "rollbacks")
    for name, each in (("plain decoding", plain_stats), ("prompt lookup + verify", stats)):
        rejected = each.proposed - each.accepted
        grid.add_row(
            name, f"{each.new_tokens}", f"{each.tokens_per_second:.0f}", f"{each.accepted}", f"{rejected}", f"{each.rollbacks}"
        )
    out.print(grid)
    out.print(f"speed-up {stats.tokens_per_second / plain_stats.tokens_per_second:.2f}×, the same tokens: {plain == guessed}")
    return plain == guessed


def _generate(session: Session, prompt: list[int], drafter: PromptLookup | None) -> tuple[list[int], GenerationStats]:
    stats = GenerationStats()
    session.reset()
    return list(session.generate(prompt, max_new_tokens=NEW_TOKENS, drafter=drafter, stats=stats)), stats


def colored(tokenizer: Tokenizer, prompt: list[int], tokens: list[int], stats: GenerationStats) -> Text:
    """The text with accepted guesses in green and the token after a rejection in red."""
    text = Text(tokenizer.decode(prompt), "bold")
    styles = [""] * len(tokens)
    for first, accepted, rejected in stats.spans:
        styles[first : first + accepted] = ["green"] * accepted
        if rejected and first + accepted < len(styles):
            styles[first + accepted] = "red"
    for token, style in zip(tokens, styles, strict=False):
        text.append(tokenizer.decode([token]), style)
    return text
