"""``hybridge demo``: export, validate and run the embedded models, and compare the measured figures with their targets."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from hybridge.errors import ValidationError
from hybridge.runtime.artifact.options import DEFAULT_PROGRAMS
from hybridge.runtime.cli.console import err, out

if TYPE_CHECKING:  # PyTorch and numpy take long to start: they are imported when the command runs
    from hybridge.export.cli.figures import Subject
    from hybridge.runtime.binding.drafters import Drafter
    from hybridge.runtime.binding.session import Session
    from hybridge.runtime.binding.statistics import GenerationStats
    from hybridge.runtime.binding.tokenizer import Tokenizer

EXAMPLES = ("hybridge demo", "hybridge demo -o somewhere/else")
NEW_TOKENS, CODE_PROMPTS, ROUNDS = 400, 5, 6
PROMPT = '''class Point:
    """A point in the plane."""

    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def __sub__(self, other):
'''


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the artifact goes; replaced if it is one.")] = Path(
        "hybridge-demo"
    ),
    programs: Annotated[int, typer.Option(min=1, help="Random programs of 40 operations to validate with.")] = DEFAULT_PROGRAMS,
) -> None:
    """Export the embedded hybrid model and its drafters, validate it, and generate with and without speculation."""
    from hybridge.export.check.validate import validate_session
    from hybridge.export.cli.bench import Artifacts, load
    from hybridge.export.cli.embedded import EMBEDDED, export_embedded
    from hybridge.export.cli.figures import Figure, figures, print_figures
    from hybridge.export.cli.progress import ConsoleProgress, print_report
    from hybridge.export.source.checkpoint import resolve_checkpoint
    from hybridge.runtime.binding.tokenizer import Tokenizer

    began = time.perf_counter()
    draft, dspark = (output.with_name(f"{output.name}-{name}") for name in ("draft", "dspark"))
    err.print("[bold]1. Export[/] the embedded models")
    manifest = export_embedded(output, draft, dspark)
    err.print("[bold]2. Validate[/] the target against the uncached eager model")
    report = validate_session(output, resolve_checkpoint(EMBEDDED), ConsoleProgress(err), programs=programs, seed=0)
    print_report(report, out)
    err.print("[bold]3. Generate[/] with and without speculation")
    subject = load(Artifacts(output, draft, dspark))
    gc.freeze()
    same = compare_generation(subject, Tokenizer.from_file(output / "tokenizer.json"))
    results = [*figures(manifest, report, subject.session), Figure(
        what="this demo's generation, each drafter vs plain", target="identical",
        measured="identical" if same else "different", reached=same,
    )]  # fmt: skip
    print_figures(results)
    err.print(
        f"[bold]Done[/] in {time.perf_counter() - began:.0f} s. Next:\n"
        f"  hybridge run {output} --prompt 'def open_file(name, mode=\"r\"):' --max-new-tokens 256 --stats\n"
        f"  hybridge chat {output}\n"
        "  hybridge bench\n"
        "  hybridge export YOUR_CHECKPOINT -o OUT --validate",
        highlight=False,
    )
    if not all(figure.reached for figure in results):
        raise ValidationError("not every figure was reached; see the table above.")


def compare_generation(subject: Subject, tokenizer: Tokenizer) -> bool:
    """Show draft tokens in colour, and generate with every drafter. Return whether all give the same tokens."""
    from hybridge.export.cli.bench import print_outcomes
    from hybridge.runtime.binding.sampling import Sampling
    from hybridge.runtime.measure import contest

    prompt = tokenizer.encode(PROMPT).ids
    tokens, stats = _generate(subject.session, prompt, subject.ways["draft model"])
    out.print(
        Text("prompt ", "bold"), Text("accepted ", "green"), Text("rejected, then corrected ", "red"), Text("decoded", "")
    )
    out.print(colored(tokenizer, prompt, tokens, stats))
    prompts = [prompt, *subject.prompts[:CODE_PROMPTS]] * ROUNDS
    outcomes = contest(
        subject.session, subject.ways, prompts, new_tokens=NEW_TOKENS, sampling=Sampling(), sessions=subject.sessions
    )
    print_outcomes("Generation, greedy, of code", outcomes)
    differing = sum(each.differing for each in outcomes.values())
    out.print(f"tokens other than plain decoding's: {differing} of {sum(each.total.new_tokens for each in outcomes.values())}")
    return differing == 0


def _generate(session: Session, prompt: list[int], drafter: Drafter | None) -> tuple[list[int], GenerationStats]:
    """Generate with the shortest blocks all the time, so that there is something to see."""
    from hybridge.runtime.binding.statistics import GenerationStats

    stats = GenerationStats()
    session.reset()
    tokens = session.generate(
        prompt, max_new_tokens=NEW_TOKENS, drafter=drafter, block_length=session.verify_lens[0], stats=stats
    )
    return list(tokens), stats


def colored(tokenizer: Tokenizer, prompt: list[int], tokens: list[int], stats: GenerationStats) -> Text:
    """Return the text with accepted draft tokens in green and the token after a rejection in red."""
    text = Text(tokenizer.decode(prompt), "bold")
    styles = [""] * len(tokens)
    for first, accepted, rejected in stats.spans:
        styles[first : first + accepted] = ["green"] * accepted
        if rejected and first + accepted < len(styles):
            styles[first + accepted] = "red"
    for token, style in zip(tokens, styles, strict=False):
        text.append(tokenizer.decode([token]), style)
    return text
