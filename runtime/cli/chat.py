"""``hybridge chat``: talk with a model, with commands that begin with a slash."""

from __future__ import annotations

import gc
import json as json_
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer
from rich.markup import escape

from hybridge.errors import HybridgeError, PictureError, UsageError
from hybridge.runtime.cli.console import ShownReasoning, err, note_unused_delegate, print_json, show_calls, stats_table
from hybridge.runtime.cli.options import (
    CacheOptions,
    ContextOption,
    DrafterOptions,
    FindArtifact,
    GenerationOptions,
    JsonOption,
    ModelArgument,
    NewTokensOption,
    SystemOption,
    TemplateOptions,
    ThreadsOption,
    system_prompt,
    with_options,
)
from hybridge.runtime.cli.prompt import Lines, Prompt, Reader, keys_wait
from hybridge.runtime.cli.talks import Talks
from hybridge.runtime.files import user_state

if TYPE_CHECKING:  # numpy takes long to start: it is imported when the command runs
    from hybridge.runtime.binding.chat import OnWords
    from hybridge.runtime.binding.pictures import Picture
    from hybridge.runtime.binding.statistics import GenerationStats
    from hybridge.runtime.binding.tokenizer import Tokenizer
    from hybridge.runtime.text.conversation import Conversation
    from hybridge.runtime.text.generate import GenerationSettings

Kind = TypeVar("Kind")
EXAMPLES = (
    "hybridge chat LiquidAI/LFM2-350M",
    "hybridge chat OUT",
    "hybridge chat OUT --continue",
    "hybridge chat OUT --system 'Answer in one sentence.' --temperature 0.7",
    "hybridge chat OUT --no-thinking --draft OUT2",
    "hybridge chat OUT --load talk.state",
)
OTHER_TEMPERATURE = 0.7
"""Of another answer to a message whose first one was greedy, and would be the same again."""
NOTHING = ('""', "none")
HELP = '''/undo         take the last message and its answer back
/retry        another answer to the last message
/continue     go on with an answer that ended by its length
/result TEXT  what a tool that the answer calls has found; one for each call
/image FILE   a picture before the next message
/system TEXT  tell the model something else; "" for nothing
/set NAME VALUE  temperature, top_k and others; /set shows them
/tokens       how full the context is
/save FILE    keep the conversation and the model's state
/load FILE    continue a saved one
/talks        conversations that --resume NAME continues
/reset        start anew
/stats        what the last answer took
/help         this
/exit         leave (also Ctrl-D); Ctrl-C clears the line, or stops an answer
"""           begins and ends a message of several lines; at a terminal Alt-Enter begins a line, and a paste is one message'''


@with_options
def chat(
    model: ModelArgument,
    *,
    find: FindArtifact,
    system: SystemOption = None,
    template: TemplateOptions,
    load: Annotated[Path | None, typer.Option("--load", help="Continue a saved conversation.")] = None,
    newest: Annotated[bool, typer.Option("--continue", help="Continue the last conversation with this model.")] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="NAME", help="Continue a conversation by its name; /talks lists them.")
    ] = None,
    max_new_tokens: NewTokensOption = None,
    drafter: DrafterOptions,
    generation: GenerationOptions,
    cache: CacheOptions,
    context: ContextOption = None,
    threads: ThreadsOption = None,
    raw: Annotated[bool, typer.Option("--plain", help="Show answers as the model writes them, not as Markdown.")] = False,
    history: Annotated[
        bool,
        typer.Option(
            "--history/--no-history", help="At a terminal, remember what is typed for the next chat, and keep the conversation."
        ),
    ] = True,
    json: JsonOption = False,
) -> None:
    """Talk with a model; /help lists the commands. Answers go to stdout."""
    from hybridge.runtime.text.chat_template import load_template
    from hybridge.runtime.text.conversation import Conversation
    from hybridge.runtime.text.generate import GenerationSettings, kept_checkpoints, open_text_model

    if sum((load is not None, newest, resume is not None)) > 1:
        raise UsageError("--load, --continue and --resume exclude each other; give one of them.")
    sampling, variables = generation.sampling(), template.variables()
    opened = open_text_model(
        find(model), threads=threads, context=context, strict_reuse=cache.strict_reuse, **vars(drafter.found(find))
    )
    note_unused_delegate(opened.session)
    settings = GenerationSettings(
        drafter=opened.drafter, sampling=sampling.of(opened), stop=tuple(generation.stop or ()),
        stop_after_reasoning=generation.stop_after_reasoning, max_new_tokens=max_new_tokens,
        constrain=generation.constrain(opened),
    )  # fmt: skip
    chat_template = load_template(opened.artifact, variables, template.thinking, opened.tokenizer)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with kept_checkpoints(opened.session, cache.cache_bytes, cache.cache_dir) as checkpoints:
        processor = opened.pictures if opened.artifact.manifest.pictures is not None else None
        instructions = system_prompt(system)
        conversation = Conversation(opened.session, opened.tokenizer, chat_template, settings, instructions, checkpoints)
        talks = None
        if newest or resume is not None or (is_terminal and history):
            name = str(model.resolve() if model.exists() else model)
            talks = Talks(user_state() / "chats", name, opened.artifact.manifest.files["tokenizer.json"].sha256)
        terminal = Terminal(
            conversation, json, processor.read if processor else None, talks, opened.tokenizer,
            is_markdown=is_terminal and not raw and not json and os.environ.get("TERM") != "dumb",
        )  # fmt: skip
        if load is not None:
            conversation.load(load)
        elif newest or resume is not None:
            terminal.resume(resume)
        gc.freeze()
        commands = [line.split()[0] for line in HELP.splitlines() if line.startswith("/")]
        terminal.loop(Prompt(commands, terminal.settings, remember=history) if is_terminal else Lines())


class Shown(Protocol):
    """Shows an answer as it comes."""

    def write(self, piece: str) -> None:
        """Show the next piece."""

    def end(self) -> None:
        """Show what is left, and begin a new line."""


class RawText:
    """Writes an answer as it is."""

    def write(self, piece: str) -> None:
        """Write the next piece."""
        sys.stdout.write(piece)
        sys.stdout.flush()

    def end(self) -> None:
        """Begin a new line."""
        self.write("\n")


@dataclass
class Terminal:
    """Reads messages and commands, and shows answers.

    picture: reads a picture's file, for a model that takes some; pictures: those before the next message.
    talks: where the conversation is kept after each answer, if it is. tokenizer: for settings that
    name tokens. results: of some of the calls that wait.
    asked: a message that waits to be sent again. retries: number of other answers, which differ by their seeds.
    """

    conversation: Conversation
    json: bool
    picture: Callable[[Path], Picture] | None = None
    talks: Talks | None = None
    tokenizer: Tokenizer | None = None
    is_markdown: bool = False
    pictures: list[Picture] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    stats: GenerationStats | None = None
    ended: bool = False
    asked: str = ""
    retries: int = 0
    reasoning: ShownReasoning = field(default_factory=ShownReasoning)
    shown: Shown = field(default_factory=RawText)

    def loop(self, reader: Reader) -> None:
        """Read one message or command after the other. Errors are printed, and change nothing."""
        err.print("[dim]/help lists the commands[/]", highlight=False)
        with keys_wait() if isinstance(reader, Prompt) else nullcontext():
            while not self.ended:
                try:
                    line = reader.read(self.asked)
                    self.asked = ""
                    self._do(line.strip())
                except EOFError:
                    break
                except KeyboardInterrupt:
                    if not isinstance(reader, Prompt):
                        raise
                    err.print("[dim]/exit or Ctrl-D leaves[/]", highlight=False)
                except HybridgeError as error:
                    err.print("[bold red]Error:[/]", escape(str(error)), highlight=False, soft_wrap=True)
        if self.talks is not None and self.talks.name:
            err.print(f"[dim]kept: --continue, or --resume {escape(self.talks.name)}[/]", highlight=False, soft_wrap=True)

    def resume(self, name: str | None) -> None:
        """Continue a kept conversation, the newest one without a name. Raises UsageError and StateFileError."""
        assert self.talks is not None
        talk = self.talks.newest() if name is None else self.talks.named(name)
        self.conversation.restore(talk.note)
        self.asked = talk.asked
        err.print(f"[dim]{escape(self.talks.name)}: {self._exchanges()}[/]", highlight=False, soft_wrap=True)
        for each in self.conversation.messages[-2:]:
            if isinstance(each["content"], str) and each["role"] in ("user", "assistant"):
                mark = "> " if each["role"] == "user" else ""
                err.print(f"[dim]{mark}{escape(_line(each['content']))}[/]", highlight=False, soft_wrap=True)

    def _do(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if "\n" in line or not line.startswith("/"):
            if line:
                self._say(line)
            return
        commands: dict[str, Callable[[str], None]] = {
            "/undo": self._undo, "/retry": self._retry, "/continue": self._continue, "/save": self._save, "/load": self._load,
            "/reset": self._reset, "/image": self._image, "/result": self._result, "/system": self._system, "/set": self._set,
            "/tokens": self._tokens, "/talks": self._talks, "/stats": self._stats, "/help": self._help, "/exit": self._exit,
        }  # fmt: skip
        if name not in commands:
            raise UsageError(f"there is no command {name}; /help lists them. A message cannot begin with a slash.")
        commands[name](argument.strip())

    def _say(self, line: str) -> None:
        """Send a message. Pictures that it does not fit with wait for the next one."""
        self._keep(line)
        if self._answer(lambda show, stats: self.conversation.say(line, show, stats, self.pictures)):
            self.pictures, self.retries = [], 0

    def _answer(self, ask: Callable[[OnWords, GenerationStats], object], begun: str = "") -> bool:
        """Write an answer as it comes. Ctrl-C stops it; return whether it has begun, so that its text so far stays.

        begun: content of the answer that it goes on with.
        """
        from hybridge.runtime.binding.statistics import GenerationStats

        self.stats, self.results = GenerationStats(), []
        self.shown = self._begin_to_show(begun)
        is_stopped = False
        try:
            ask(self._show, self.stats)
        except KeyboardInterrupt:
            is_stopped = True
        finally:
            if self.stats.new_tokens and not self.json:
                self.reasoning.end()
                self.shown.end()
        if is_stopped and not self.stats.new_tokens:
            err.print("[dim](stopped before the answer; nothing has changed)[/]", highlight=False)
            return False
        if is_stopped:
            err.print("[dim](stopped)[/]", highlight=False)
        self._keep()
        self._finish()
        return True

    def _begin_to_show(self, begun: str) -> Shown:
        if not self.is_markdown:
            return RawText()
        from hybridge.runtime.cli.markdown import MarkdownStream

        return MarkdownStream(begun)

    def _show(self, content: str, reasoning: str) -> None:
        if self.json:
            return
        if reasoning:
            self.reasoning.show(reasoning)
        if content:
            self.reasoning.end()
            self.shown.write(content)

    def _finish(self) -> None:
        assert self.stats is not None
        answer = self.conversation.messages[-1]
        calls = answer.get("tool_calls", ())
        if self.json:
            print_json({**answer, "stats": self.stats.to_dict()})
        else:
            show_calls(calls)
        if calls:
            err.print(f"[dim]/result TEXT answers a call; {len(calls)} wait[/]")
        if self.conversation.dropped:
            err.print(f"[yellow]The context was full:[/] the oldest {self.conversation.dropped} messages were dropped.")
        if self.conversation.read_again:
            err.print(f"[dim]{self.conversation.read_again} tokens were read again: no checkpoint was left to go back to[/]")
        if self.conversation.session.room == 0:
            err.print("[yellow]The context is full:[/] with the next message the oldest ones are dropped.")
        elif self.conversation.ended_by_length:
            err.print(f"[dim](ended after {self.stats.new_tokens} tokens; /continue goes on)[/]", highlight=False)

    def _keep(self, asked: str = "") -> None:
        """Keep the conversation for --continue. asked: the message that is answered now."""
        if self.talks is None:
            return
        try:
            self.talks.keep(self.conversation.note, asked)
        except OSError as error:
            where, self.talks = self.talks.folder, None
            err.print(
                f"[yellow]The conversation is not kept from now on:[/] {escape(str(where))}: {error.strerror}.",
                highlight=False, soft_wrap=True,
            )  # fmt: skip

    def _undo(self, _: str) -> None:
        self.conversation.undo()
        err.print(f"[dim]{self._exchanges()} left[/]")
        self._keep()

    def _retry(self, _: str) -> None:
        sampling = self.conversation.settings.sampling
        self.retries += 1
        if sampling.temperature == 0:
            err.print(
                f"[dim]greedy answers stay the same: this one has a temperature of {OTHER_TEMPERATURE}[/]", highlight=False
            )
            sampling = replace(sampling, temperature=OTHER_TEMPERATURE, seed=sampling.seed or 0)
        if sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + self.retries)
        with self._settings(replace(self.conversation.settings, sampling=sampling)):
            self._answer(self.conversation.retry)

    @contextmanager
    def _settings(self, settings: GenerationSettings) -> Iterator[None]:
        """Answer with other settings for once."""
        usual, self.conversation.settings = self.conversation.settings, settings
        try:
            yield
        finally:
            self.conversation.settings = usual

    def _continue(self, _: str) -> None:
        last = self.conversation.messages[-1:]
        begun = last[0]["content"] if last and last[0]["role"] == "assistant" else ""
        self._answer(self.conversation.continue_answer, begun)

    def _result(self, argument: str) -> None:
        """Keep a result; the answer comes with the last one that the calls wait for."""
        wanted = len(self.conversation.open_calls)
        if not wanted:
            raise UsageError("the last answer calls no tool, so there is nothing to answer with /result.")
        self.results.append(argument)
        if len(self.results) < wanted:
            err.print(f"[dim]{wanted - len(self.results)} more results[/]")
            return
        results = self.results
        self._answer(lambda show, stats: self.conversation.give_results(results, show, stats))

    def _image(self, argument: str) -> None:
        if self.picture is None:
            raise PictureError("this model takes no pictures: its artifact has the text model alone.")
        picture = self.picture(_file(argument, "/image"))
        self.pictures.append(picture)
        parts = f" in {picture.rows} x {picture.columns} tiles" if picture.parts > 1 else ""
        err.print(f"[dim]a picture of {len(picture.ids)} tokens{parts} before the next message[/]", highlight=False)

    def _system(self, argument: str) -> None:
        if argument:
            self.conversation.set_system("" if argument in NOTHING else argument)
        told = [each["content"] for each in self.conversation.messages if each["role"] == "system"]
        err.print(f"[dim]{escape(str(told[0])) if told else 'the model is told nothing'}[/]", highlight=False, soft_wrap=True)

    def settings(self) -> Mapping[str, object]:
        """Return what ``/set`` changes."""
        now = self.conversation.settings
        return {"max_new_tokens": now.max_new_tokens, **vars(now.sampling)}

    def _set(self, argument: str) -> None:
        name, _, value = argument.replace("=", " ", 1).partition(" ")
        name, now = name.replace("-", "_"), self.conversation.settings
        if name and name not in self.settings():
            raise UsageError(f"there is no setting {name}; /set shows them.")
        given = _given(value.strip())
        if name == "max_new_tokens":
            from pydantic import PositiveInt

            self.conversation.settings = replace(now, max_new_tokens=_checked(PositiveInt, name, given))
        elif name:
            from hybridge.runtime.text.generate import with_dry_breakers

            sampling = _checked(type(now.sampling), name, {**vars(now.sampling), name: given})
            if self.tokenizer is not None:
                sampling = with_dry_breakers(sampling, self.tokenizer)
            self.conversation.settings = replace(now, sampling=sampling)
        for each, value_now in self.settings().items():
            if name in ("", each):
                err.print(f"[dim]{each} {'none' if value_now is None else value_now}[/]", highlight=False)

    def _tokens(self, _: str) -> None:
        count, most = len(json_.loads(self.conversation.note)["tokens"]), self.conversation.session.max_seq_len
        last = self.stats
        took = f"; the last answer read {last.prompt_tokens} and wrote {last.new_tokens}" if last else ""
        err.print(f"[dim]{count:,} of {most:,} tokens are used{took}[/]", highlight=False)

    def _talks(self, _: str) -> None:
        names = self.talks.names() if self.talks is not None else []
        for name in names or ["no conversation is kept"]:
            err.print(f"[dim]{escape(name)}[/]", highlight=False, soft_wrap=True)

    def _save(self, argument: str) -> None:
        self.conversation.save(_file(argument, "/save"))
        err.print(f"[dim]saved; continue with /load {escape(argument)}[/]")

    def _load(self, argument: str) -> None:
        self.conversation.load(_file(argument, "/load"))
        if self.talks is not None:
            self.talks.begin()
        err.print(f"[dim]{self._exchanges()}, {self.conversation.session.length} tokens[/]")

    def _exchanges(self) -> str:
        count = sum(each["role"] == "user" for each in self.conversation.messages)
        return f"{count} exchange{'' if count == 1 else 's'}"

    def _reset(self, _: str) -> None:
        self.conversation.reset()
        self.pictures = []
        if self.talks is not None:
            self.talks.begin()

    def _stats(self, _: str) -> None:
        from hybridge.runtime.binding.statistics import GenerationStats

        err.print(stats_table(self.stats or GenerationStats()))

    def _help(self, _: str) -> None:
        err.print(HELP, highlight=False, markup=False)

    def _exit(self, _: str) -> None:
        self.ended = True


def _file(argument: str, command: str) -> Path:
    if not argument:
        raise UsageError(f"{command} needs the name of a file, such as {command} talk.state.")
    return Path(argument).expanduser()


def _line(text: str) -> str:
    """Return the beginning of a message, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:200]}…"


def _given(value: str) -> object:
    """Return a value of ``/set``: JSON, a word, or nothing."""
    try:
        return None if value in NOTHING else json_.loads(value)
    except (ValueError, RecursionError):
        return value


def _checked(kind: type[Kind], name: str, given: object) -> Kind:
    """Return what is given as a value of its type, or as a dataclass of such values. Raises UsageError."""
    from pydantic import TypeAdapter, ValidationError  # takes long to start

    try:
        return TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise UsageError(f"{name} cannot be that: {problem}. An example is /set temperature 0.7.") from None
