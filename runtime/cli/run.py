"""``hybridge run``: continue a text, or answer a message, and show it as it comes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from hybridge.errors import UsageError
from hybridge.runtime.cli.console import (
    LEAST_SECONDS,
    LEAST_TOKENS,
    PlainComparison,
    ShownReasoning,
    check_writable_file,
    err,
    note_unused_delegate,
    print_json,
    show_calls,
    stats_rows,
    stats_table,
)
from hybridge.runtime.cli.options import (
    ContextOption,
    DrafterOptions,
    FindArtifact,
    GenerationOptions,
    HtmlOption,
    JsonOption,
    ModelArgument,
    NewTokensOption,
    SystemOption,
    TemplateOptions,
    ThreadsOption,
    system_prompt,
    with_options,
)

if TYPE_CHECKING:  # numpy takes long to start: it is imported when the command runs
    from hybridge.runtime.binding.pictures import Picture
    from hybridge.runtime.binding.session import Session
    from hybridge.runtime.binding.statistics import GenerationStats
    from hybridge.runtime.binding.tokenizer import Tokenizer
    from hybridge.runtime.text.answers import Answer, AnswerSplitter
    from hybridge.runtime.text.chat_template import ChatTemplate, Message
    from hybridge.runtime.text.generate import GenerationSettings, TextModel

EXAMPLES = (
    "hybridge run model-Q4_K_M.gguf --prompt 'The capital of France is'",
    "hybridge run OUT --prompt 'The capital of France is' --stats",
    "hybridge run OUT --prompt 'def open_file(name):' --html rounds.html",
    "hybridge run OUT --prompt 'def open_file(name):' --draft OUT2 --max-new-tokens 256",
    "hybridge run OUT --prompt 'A point: ' --json-schema point.json",
    "hybridge run OUT --prompt 'What is 2 + 2?' --system 'Answer in one word.' --no-thinking",
    "hybridge run OUT --chat --prompt - < question.txt",
    "hybridge run OUT --image cat.jpg --prompt 'What is on this picture?'",
    "hybridge run OUT --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95 --seed 1",
)
STDIN = "-"
USUAL_TOKENS = 128
"""Most new tokens of a text that is no answer, which may have no end."""
LARGEST_PROMPT = 64 << 20
"""Bytes; far more than any artifact holds tokens."""
MOST_SECONDS = 1.0
"""About as long as a turn takes in which speculative decoding is measured beside plain decoding; there are two of each."""


@with_options
def run(
    model: ModelArgument,
    *,
    find: FindArtifact,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Text to continue; - reads it from stdin.")] = None,
    prompt_file: Annotated[Path | None, typer.Option("--prompt-file", help="A file with the text; - is stdin.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The text is a message: the chat template goes around it. The next four imply it.")
    ] = False,
    system: SystemOption = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", help="A picture before the message, for a model that takes some; may be given several times."),
    ] = None,
    template: TemplateOptions,
    max_new_tokens: NewTokensOption = None,
    drafter: DrafterOptions,
    generation: GenerationOptions,
    context: ContextOption = None,
    threads: ThreadsOption = None,
    stats: Annotated[bool, typer.Option("--stats", help="Say on stderr what was accepted and how fast it was.")] = False,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Continue a text by speculative decoding; greedy output is the same with every drafter and without."""
    if html is not None:
        from hybridge.runtime.html_report import check_matplotlib

        check_writable_file(html)
        check_matplotlib("--html")
    from hybridge.runtime.text.generate import GenerationSettings, open_text_model

    sampling = generation.sampling()
    text, variables = read_prompt(prompt, prompt_file), template.variables()
    opened = open_text_model(find(model), threads=threads, context=context, **vars(drafter.found(find)))
    constrain = generation.constrain(opened)
    if chat or system or image or variables or template.thinking is not None:
        from hybridge.runtime.text.chat_template import load_template

        pictures = [opened.pictures.read(path) for path in image or ()]
        chat_template = load_template(opened.artifact, variables, template.thinking, opened.tokenizer)
        asked = as_message(opened.tokenizer, text, system_prompt(system), chat_template, pictures)
    else:
        asked = as_text(opened.tokenizer, text)
    settings = GenerationSettings(
        drafter=opened.drafter, sampling=sampling.of(opened), stop=tuple(generation.stop or ()),
        stop_after_reasoning=generation.stop_after_reasoning,
        max_new_tokens=USUAL_TOKENS if max_new_tokens is None and not asked.rendered else max_new_tokens,
        constrain=constrain,
    )  # fmt: skip
    continue_text(opened, asked, settings, stats=stats, html=html, json=json)


def continue_text(
    model: TextModel, prompt: RunPrompt, settings: GenerationSettings, *, stats: bool, html: Path | None, json: bool
) -> None:
    """Continue ``prompt``, and show the text and what it took. Raises like ``generate_text``."""
    from hybridge.runtime.binding.statistics import GenerationStats, Trace

    gc.freeze()
    done: GenerationStats = Trace() if html is not None else GenerationStats()
    answer, new = _generate(model, prompt, settings, done, silent=json)
    measured = None
    if stats or json or html is not None:
        measured = compared_with_plain(model.session, [*prompt.ids, *new], done, settings)
    if html is not None and isinstance(done, Trace):
        from hybridge.runtime.html_report import run_sections, write_page

        rows = list(stats_rows(done, measured))
        write_page(html, model.artifact.folder.name, run_sections(prompt.text, new, done, model.tokenizer, rows))
    if json:
        speed = {
            "plain_seconds_per_token": measured.plain_seconds if measured else None,
            "speed_up": measured.speed_up if measured else None,
        }
        said = {name: value for name, value in answer.message().items() if name not in ("role", "content")}
        print_json({"prompt": prompt.text, "text": answer.content, **said, **done.to_dict(), **speed})
    elif stats:
        err.print(stats_table(done, measured))
    note_unused_delegate(model.session)


def _generate(
    model: TextModel, prompt: RunPrompt, settings: GenerationSettings, stats: GenerationStats, *, silent: bool
) -> tuple[Answer, list[int]]:
    """Generate the answer and its tokens, writing the text as it comes unless ``silent``."""
    from hybridge.runtime.text.answers import unsplit
    from hybridge.runtime.text.generate import generate_text

    splitter = prompt.splitter or unsplit(model.tokenizer)
    answer, new, reasoning = splitter.answer(prompt.rendered), list[int](), ShownReasoning()
    pieces = generate_text(
        model.session, prompt.ids, splitter.decoder, answer=answer, max_new_tokens=settings.max_new_tokens,
        drafter=settings.drafter, sampling=settings.sampling, stop=settings.stop, stats=stats,
        stop_after_reasoning=settings.stop_after_reasoning,
        constraint=settings.constrain(prompt.rendered) if settings.constrain is not None else None,
    )  # fmt: skip
    try:
        with closing(pieces):  # type: ignore[type-var]  # a generator
            for piece in pieces:
                if not new and not silent:  # not earlier: a prompt that is refused is not shown
                    _write(prompt.shown)
                new += piece.tokens
                if piece.reasoning and not silent:
                    reasoning.show(piece.reasoning)
                if piece.content and not silent:
                    reasoning.end()
                    _write(piece.content)
    finally:
        if new and not silent:
            _write("\n")
            show_calls(answer.message().get("tool_calls", ()))
    return answer, new


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def compared_with_plain(
    session: Session, text: list[int], stats: GenerationStats, settings: GenerationSettings
) -> PlainComparison | None:
    """Compare a generation with plain decoding: both continue the middle of its text once more, in turns.

    So both run at the same positions, and a slower or faster time of the machine is in both. Call it last: it changes the
    session's text.

    Args:
        session: the one that generated.
        text: prompt and new tokens.
        stats: of the generation.
        settings: of the generation; a constraint is left out.

    Returns:
        None if nothing was verified, or if the generation is too short to compare.
    """
    from hybridge.runtime.binding.statistics import GenerationStats

    if not stats.verifies or stats.new_tokens < LEAST_TOKENS or stats.new_seconds < LEAST_SECONDS:
        return None
    steps = min(stats.new_tokens, max(LEAST_TOKENS, int(MOST_SECONDS * stats.tokens_per_second)))
    begin = len(text) - (stats.new_tokens - steps) // 2 - steps
    session.reset()
    if begin > 1:
        session.prefill(text[: begin - 1])
    kept = session.checkpoint()
    plain, drafted = GenerationStats(), GenerationStats()
    for way, drafter in ((plain, None), (drafted, settings.drafter), (drafted, settings.drafter), (plain, None)):
        turn = GenerationStats()
        session.resume(kept)
        for _ in session.generate(
            text[begin - 1 : begin], max_new_tokens=steps, eos_ids=(), drafter=drafter, sampling=settings.sampling, stats=turn
        ):
            pass
        way.new_seconds += turn.new_seconds
        way.new_tokens += turn.new_tokens - 1
    seconds = plain.new_seconds / plain.new_tokens
    return PlainComparison(seconds, seconds / (drafted.new_seconds / drafted.new_tokens))


# The prompt


@dataclass(frozen=True)
class RunPrompt:
    """A prompt: the text as given, its tokens, and the text that is shown before the continuation.

    rendered: the prompt as the chat template wrote it; empty for a text to continue. pictures: in it, open as long as it lives.
    splitter: splits the answer; left out, all of it is content.
    """

    text: str
    ids: list[int]
    shown: str
    rendered: str = ""
    pictures: Sequence[Picture] = ()
    splitter: AnswerSplitter | None = None


def as_text(tokenizer: Tokenizer, text: str) -> RunPrompt:
    """Return the prompt of a text to continue, which is shown with its continuation."""
    return RunPrompt(text, tokenizer.encode(text).ids, text)


def as_message(
    tokenizer: Tokenizer, text: str, system: str, template: ChatTemplate, pictures: Sequence[Picture] = ()
) -> RunPrompt:
    """Return the prompt of a message to answer, rendered by the chat template; only the answer is shown.

    pictures: before the text of the message. Raises PictureError if the template writes them otherwise.
    """
    from hybridge.runtime.binding.chat import message_content
    from hybridge.runtime.text.pictures import with_pictures

    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    rendered = template.render([*opening, {"role": "user", "content": message_content(text, len(pictures))}])
    ids = with_pictures(tokenizer.encode(rendered.text, around=False, plain=rendered.words).ids, pictures)
    return RunPrompt(text, ids, "", rendered.text, pictures, template.splitter(tokenizer))


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Return the text of the options, which may be in ``file`` or on stdin. Raises UsageError unless there is exactly one."""
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
    """Read all of a text without its last line break, which belongs to the file."""
    content = source.read(LARGEST_PROMPT + 1)
    if len(content) > LARGEST_PROMPT:
        raise UsageError(f"{name} has more than {LARGEST_PROMPT >> 20} MB, which no artifact can read; give a shorter text.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text ({error.reason} at byte {error.start}); convert it.") from None
    return text.removesuffix("\n").removesuffix("\r")
