"""``hybridge demo``: what hybridge is for, on the models that come with it: text, the gain of drafts, and an exact undo."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from hybridge.errors import ValidationError
from hybridge.runtime.cli.console import err, out, table

if TYPE_CHECKING:  # PyTorch and numpy take long to start: they are imported when the command runs
    from collections.abc import Mapping

    from rich.table import Table

    from hybridge.export.cli.figures import Subject
    from hybridge.runtime.binding.drafters import Drafter
    from hybridge.runtime.binding.session import Session
    from hybridge.runtime.binding.statistics import GenerationStats
    from hybridge.runtime.binding.tokenizer import Tokenizer
    from hybridge.runtime.measure import Outcome

EXAMPLES = ("hybridge demo", "hybridge demo -o somewhere/else")
NEW_TOKENS, SHOWN_TOKENS, CODE_PROMPTS = 400, 300, 4
PROMPT = 'def open_file(name, mode="r"):\n'
ASIDE = """
# By the way, here is something else that you did not want to hear about.
"""


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the artifact goes; replaced if it is one.")] = Path(
        "hybridge-demo"
    ),
) -> None:
    """Export a small hybrid model, let it write code, show what draft tokens gain, and take a turn back exactly.

    The model has 2.4 million parameters, reads bytes and was trained on Python: it shows how hybridge works, and not how well
    models write.
    """
    from hybridge.export.cli.bench import Artifacts, load
    from hybridge.export.cli.embedded import export_embedded
    from hybridge.runtime.binding.tokenizer import Tokenizer

    began, draft = time.perf_counter(), output.with_name(f"{output.name}-draft")
    err.print("[bold]1. Export[/] a model with recurrent layers, and a smaller one that drafts for it")
    export_embedded(output, draft)
    subject = load(Artifacts(output, draft))
    tokenizer = Tokenizer.from_file(output / "tokenizer.json")
    prompt = tokenizer.encode(PROMPT).ids

    err.print("\n[bold]2. Write[/] the rest of a function")
    out.print(
        Text("the prompt ", "bold"), Text("drafted and accepted ", "green"), Text("drafted wrongly, and corrected ", "red"),
        Text("decoded alone", ""),
    )  # fmt: skip
    tokens, stats = _generate(subject.session, prompt, subject.ways["draft model"])
    out.print(colored(tokenizer, prompt, tokens, stats))

    err.print("[bold]3. Compare[/] with plain decoding, one token at a time, in turns on the same texts")
    same = _compare(subject, [prompt, *subject.prompts[:CODE_PROMPTS]])

    err.print("\n[bold]4. Undo[/] a turn, though a recurrent state cannot be cut")
    exact = _undo(subject.session, prompt, tokenizer.encode(ASIDE).ids)
    err.print(
        f"\n[bold]Done[/] in {time.perf_counter() - began:.0f} s. Next:\n"
        f"  hybridge run {output} --prompt 'def open_file(name, mode=\"r\"):' --max-new-tokens 256 --stats\n"
        f"  hybridge chat YOUR_MODEL.gguf\n"
        "  hybridge bench",
        highlight=False,
    )
    if not (same and exact):
        raise ValidationError("draft tokens or the undo changed the text, which they never may; see above.")


def _compare(subject: Subject, prompts: list[list[int]]) -> bool:
    """Generate with every drafter and print a row for each. Return whether all give the same tokens."""
    from hybridge.runtime.binding.sampling import Sampling
    from hybridge.runtime.measure import contest

    outcomes = contest(
        subject.session, subject.ways, prompts, new_tokens=NEW_TOKENS, sampling=Sampling(), sessions=subject.sessions
    )
    out.print(speeds(outcomes))
    return not any(each.differing for each in outcomes.values())


def speeds(outcomes: Mapping[str, Outcome]) -> Table:
    """Return a row for each way to generate: how fast, how many draft tokens were right, and whether the text is the same."""
    from hybridge.runtime.measure import PLAIN

    grid = table("", "drafts by", "tokens/s", "× plain", "draft tokens accepted", "text")
    for name, outcome in outcomes.items():
        text = "[bold red]another one[/]" if outcome.differing else "the same"
        accepted = f"{outcome.total.acceptance_rate:.0%}" if outcome.total.verifies else ""
        grid.add_row(
            name, f"{outcome.tokens_per_second:.0f}", f"{outcome.times(outcomes[PLAIN]):.2f}", accepted, text
        )  # fmt: skip
    return grid


def _undo(session: Session, prompt: list[int], turn: list[int]) -> bool:
    """Go back over a turn by a snapshot. Return whether the state is as it was, bit for bit."""
    session.reset()
    began = time.perf_counter()
    session.prefill(prompt)
    read = time.perf_counter() - began
    session.snapshot(0)
    before = committed_state(session)
    list(session.generate(turn, max_new_tokens=NEW_TOKENS // 4))
    length, began = session.length, time.perf_counter()
    session.restore(0)
    back = time.perf_counter() - began
    exact = before == committed_state(session)
    state = "is as before, bit for bit" if exact else "[bold red]is not as before[/]"
    out.print(
        f"{length - len(prompt)} tokens were taken back in {1e3 * back:.2f} ms; the state {state}. "
        f"To read the {len(prompt)} before them again would take {1e3 * read:.0f} ms.",
        highlight=False,
    )
    return exact


def committed_state(session: Session) -> dict[str, bytes]:
    """Return the committed state as bytes: rows of attention up to the length, and all recurrent state."""
    state = {name: array for name, array in session.state().items() if "staged" not in name and name != "operations"}
    rows = {name: array[:, : session.length] for name, array in state.items() if name.endswith((".keys", ".values"))}
    return {name: array.tobytes() for name, array in (state | rows).items()}


def _generate(session: Session, prompt: list[int], drafter: Drafter | None) -> tuple[list[int], GenerationStats]:
    """Generate with the shortest blocks all the time, so that there is something to see."""
    from hybridge.runtime.binding.statistics import GenerationStats

    stats = GenerationStats()
    session.reset()
    tokens = session.generate(
        prompt, max_new_tokens=SHOWN_TOKENS, drafter=drafter, block_length=session.verify_lens[0], stats=stats
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
