"""An opened artifact with its tokenizer, a session and a drafter, and the table of what a generation took."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import typer
from rich.table import Table
from tokenizers import Tokenizer

from hybridge.cache.errors import UsageError
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.artifacts.tokenizer import tokenizer_of
from hybridge.runtime.cli.console import table
from hybridge.runtime.cli.options import TEMPLATE_ARG
from hybridge.runtime.core.checkpoint import PrefixCache
from hybridge.runtime.core.checkpoint_folder import CheckpointFolder
from hybridge.runtime.core.drafters import BlockDrafter, Drafter, DraftModel, PromptLookup
from hybridge.runtime.core.library import set_threads
from hybridge.runtime.core.model import Model as Program
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats
from hybridge.runtime.text.text_stream import Render

PLAIN_STEPS, LEAST_PLAIN_STEPS = 16, 8
"""Tokens that are decoded to measure a plain decode, and the fewest that say anything."""
LEAST_TOKENS = 32
"""New tokens of a generation from which on its speed is compared: in a shorter one a single slow call decides."""


@dataclass(frozen=True)
class Model:
    """An opened artifact, ready to generate text."""

    artifact: Artifact
    session: Session
    tokenizer: Tokenizer
    drafter: Drafter | None


def open_model(folder: Path, *, draft: Path | None, lookup: bool, own: bool, plain: bool, threads: int | None) -> Model:
    """Open an artifact and its drafter.

    Raises UsageError for two drafters at once and without a tokenizer, DraftError for one that does not fit, and ArtifactError.
    """
    return open_models(folder, 1, draft=draft, lookup=lookup, own=own, plain=plain, threads=threads)[0]


def open_models(
    folder: Path, sessions: int, *, draft: Path | None, lookup: bool, own: bool, plain: bool, threads: int | None
) -> list[Model]:
    """Open an artifact once for so many sessions, each with a drafter; see ``open_model``."""
    if sum((draft is not None, lookup, own, plain)) > 1:
        raise UsageError("--draft, --prompt-lookup, --drafter and --no-speculation exclude each other; give one of them.")
    opened = open_artifact(folder)
    if opened.tokenizer is None:
        raise UsageError(f"{folder} has no tokenizer.json, so text cannot be turned into tokens; use Session from Python.")
    tokenizer = tokenizer_of(opened)
    if threads is not None:
        set_threads(threads)
    shared = Program.open(opened)
    drafter = _drafter(opened, shared, draft, own, plain)
    # A program of onnxruntime has one state.
    programs = [shared, *(shared if opened.manifest.onnx is None else Program.open(opened) for _ in range(sessions - 1))]
    return [Model(opened, Session(program), tokenizer, drafter) for program in programs]


def _drafter(opened: Artifact, program: Program, draft: Path | None, own: bool, plain: bool) -> Drafter | None:
    if draft is not None:
        return DraftModel.load(draft, opened, program)
    if own:
        return BlockDrafter(program)
    # An artifact that verifies one token at a time has no use for a drafter; only who asks for one is told.
    return None if plain or program.verify_len < 2 else PromptLookup()


def plain_seconds(model: Model) -> float | None:
    """Measure the seconds of a plain decode, by decoding a few more tokens; None without room for any.

    Changes the session's text, so it comes last.
    """
    stats = GenerationStats()
    steps = min(PLAIN_STEPS, model.session.room - 1)
    if steps < LEAST_PLAIN_STEPS:
        return None
    for _ in model.session.generate([0], max_new_tokens=steps, stats=stats):
        pass
    return stats.new_seconds / (stats.new_tokens - 1) if stats.new_tokens > 1 else None


def speed_up(stats: GenerationStats, plain: float | None) -> float | None:
    """Return how many times faster than plain decoding a generation was, by the seconds of a plain token.

    None where that would be noise: nothing was verified, or there are too few tokens.
    """
    if plain is None or not stats.verifies or stats.new_tokens < LEAST_TOKENS:
        return None
    return plain * stats.tokens_per_second


def stats_table(stats: GenerationStats, plain: float | None) -> Table:
    """Return a table of counts, times and speed of a generation."""
    grid = table("Generation", "", "")
    for name, value in stats_rows(stats, plain):
        grid.add_row(name, value)
    return grid


def stats_rows(stats: GenerationStats, plain: float | None) -> Iterator[tuple[str, str]]:
    """Yield the names and values of that table."""
    yield "prompt", f"{stats.prompt_tokens} tokens in {stats.prefill_seconds:.3f} s"
    yield "new", f"{stats.new_tokens} tokens, {stats.tokens_per_second:.0f} tokens/s"
    yield "draft tokens", f"{stats.proposed}, accepted {stats.accepted} ({stats.acceptance_rate:.0%})"
    yield "mean accepted length", f"{stats.mean_accepted_length:.2f} tokens a block"
    yield "calls", f"{stats.verifies} verifies, {stats.decodes} decodes, {stats.rollbacks} rollbacks"
    for phase in ("draft", "verify", "commit", "decode"):
        seconds = getattr(stats, f"{phase}_seconds")
        yield phase, f"{seconds:.3f} s, {seconds / stats.new_seconds if stats.new_seconds else 0:.0%}"
    faster = speed_up(stats, plain)
    if faster is not None and plain is not None:
        tokens_per_second = f"{1 / plain:.0f} tokens/s, measured on up to {PLAIN_STEPS} more tokens"
        yield "speed-up over plain decoding", f"{faster:.2f}× ({tokens_per_second})"


# The prompt of ``hybridge run``: where it comes from, and whether the chat template goes around it.


STDIN = "-"
LARGEST_PROMPT = 64 << 20
"""Bytes; far more than any artifact holds tokens."""


@dataclass(frozen=True)
class RunPrompt:
    """A prompt: the text as it was given, its tokens, and what stands before the continuation where it is shown.

    rendered: what the chat template made of it, if it did.
    """

    text: str
    ids: list[int]
    shown: str
    rendered: str = ""


def as_text(tokenizer: Tokenizer, text: str) -> RunPrompt:
    """Return a text to be continued, which is shown with what follows it."""
    return RunPrompt(text, tokenizer.encode(text).ids, text)


def as_message(tokenizer: Tokenizer, text: str, system: Sequence[str], render: Render) -> RunPrompt:
    """Return a message to be answered, in the words of the chat template; only the answer is shown."""
    opening = [{"role": "system", "content": told} for told in system]
    rendered = render([*opening, {"role": "user", "content": text}])
    return RunPrompt(text, tokenizer.encode(rendered, add_special_tokens=False).ids, "", rendered)


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Return the text that was given, or that is in ``file`` or on stdin. Raises UsageError for none, two or no text."""
    if prompt is not None and file is not None:
        raise UsageError("--prompt and --prompt-file exclude each other; give one of them.")
    if prompt is None and file is None:
        raise UsageError("there is no text to continue; give --prompt TEXT, --prompt - for stdin, or --prompt-file FILE.")
    if prompt == STDIN or file == Path(STDIN):
        return _prompt_text(sys.stdin.buffer, "stdin")
    if file is None:
        assert prompt is not None
        return prompt
    try:
        with file.open("rb") as opened:
            return _prompt_text(opened, str(file))
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}); give a text file.") from None


def _prompt_text(source: BinaryIO, name: str) -> str:
    """Read it all without the end of its last line, which is the file's and not the text's."""
    content = source.read(LARGEST_PROMPT + 1)
    if len(content) > LARGEST_PROMPT:
        raise UsageError(f"{name} has more than {LARGEST_PROMPT >> 20} MB, which no artifact can read; give a shorter text.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text ({error.reason} at byte {error.start}); convert it.") from None
    return text.removesuffix("\n").removesuffix("\r")


# ``--cache-bytes`` and ``--cache-dir``: checkpoints in memory, and on disk.


@contextmanager
def kept_checkpoints(session: Session, budget: int, folder: Path | None) -> Iterator[PrefixCache]:
    """Yield a cache with what ``folder`` has for the session's artifact; at the end everything is in the folder.

    Raises OutputError where there can be no such folder.
    """
    if folder is None or not budget:
        yield PrefixCache(session.model, budget)
        return
    disk = CheckpointFolder(folder, session, budget)
    try:
        cache = PrefixCache(session.model, budget)
        disk.keep(cache)
        yield cache
    finally:
        disk.close()


# ``--template-arg NAME=VALUE``: variables for a chat template, such as ``enable_thinking=false``.


OURS = frozenset(
    {
        *("messages", "conversations", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "return_assistant_tokens_mask"),
    }
)
"""What rendering a conversation sets itself."""
LISTS = ("tools", "documents")


def template_variables(given: Sequence[str]) -> dict[str, Any]:
    """The variables of ``NAME=VALUE`` texts. Raises typer.BadParameter for a text that is none, or a name that is taken."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise _wrong(f"{text!r}: expected a name, an equals sign and a value, such as enable_thinking=false.")
        if name in OURS:
            raise _wrong(f"{name} is set by the conversation itself: leave it out.")
        if name in found:
            raise _wrong(f"{name} is given twice: give it one value.")
        found[name] = _value(value)
    for name in LISTS:
        if name in found and not _is_list_of_objects(found[name]):
            raise _wrong(f'{name} must be a JSON list of objects, such as {name}=[{{"name": …}}], but is {found[name]!r}.')
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _wrong(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint=f"'{TEMPLATE_ARG}'")
