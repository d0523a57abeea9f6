"""``hybridge run``"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer
from tokenizers import Tokenizer

from hybridge.cache.errors import UsageError
from hybridge.export.cli.common import ArtifactArgument, JsonOption, app, err, print_json
from hybridge.runtime.artifact import open_artifact
from hybridge.runtime.generation_stats import GenerationStats
from hybridge.runtime.program import Program
from hybridge.runtime.prompt_lookup import PromptLookup
from hybridge.runtime.session import Session


@app.command()
def run(
    artifact: ArtifactArgument,
    prompt: Annotated[str, typer.Option("--prompt", help="Text to continue.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Stop after this many tokens.")] = 128,
    speculation: Annotated[
        bool,
        typer.Option("--prompt-lookup/--no-speculation", help="Guess ahead from what the text says already, or not at all."),
    ] = True,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Of the sampling; drawn if left out.")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Say on stderr what was accepted and how fast it was.")] = False,
    json: JsonOption = False,
) -> None:
    """Continue a text, guessing ahead where the text repeats itself; the output is the same either way."""
    opened = open_artifact(artifact)
    if opened.tokenizer is None:
        raise UsageError(f"{artifact} has no tokenizer.json, so text cannot be turned into tokens; use Session from Python.")
    tokenizer = Tokenizer.from_file(str(opened.tokenizer))
    session = Session(Program(opened), opened.manifest)
    done = GenerationStats()
    tokens = session.generate(
        tokenizer.encode(prompt).ids,
        max_new_tokens=max_new_tokens,
        drafter=PromptLookup() if speculation else None,
        temperature=temperature,
        seed=seed,
        stats=done,
    )
    pieces = stream_text(tokenizer, tokens)
    if json:
        print_json({"prompt": prompt, "text": "".join(pieces), **done.to_dict()})
        return
    sys.stdout.write(prompt)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    if stats:
        print_stats(done)


def stream_text(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """Text as it becomes complete: a character of several tokens is held back until all have come."""
    ids: list[int] = []
    shown = ""
    for token in tokens:
        ids.append(token)
        text = tokenizer.decode(ids)
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text
    yield tokenizer.decode(ids)[len(shown) :]


def print_stats(stats: GenerationStats) -> None:
    """Counts and speed, on stderr."""
    err.print(
        f"[dim]{stats.prompt_tokens} prompt tokens in {stats.prefill_seconds:.3f} s; {stats.new_tokens} new at "
        f"{stats.tokens_per_second:.0f} tokens/s; guessed {stats.proposed}, accepted {stats.accepted} "
        f"({stats.acceptance_rate:.0%}), {stats.verifies} verifies, {stats.decodes} decodes, {stats.rollbacks} rollbacks[/]",
        highlight=False,
    )
