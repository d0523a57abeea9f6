"""``hybridge chat``: talk with a model, one line a message, with commands that begin with a slash."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from hybridge.errors import HybridgeError, PictureError, UsageError
from hybridge.runtime.cli.console import ShownReasoning, err, print_json, show_calls, stats_table
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
from hybridge.runtime.files import private_folder

if TYPE_CHECKING:  # numpy takes long to start: it is imported when the command runs
    from hybridge.runtime.binding.chat import OnWords
    from hybridge.runtime.binding.pictures import Picture
    from hybridge.runtime.binding.statistics import GenerationStats
    from hybridge.runtime.text.conversation import Conversation

EXAMPLES = (
    "hybridge chat LiquidAI/LFM2-350M",
    "hybridge chat OUT",
    "hybridge chat OUT --system 'Answer in one sentence.' --temperature 0.7",
    "hybridge chat OUT --no-thinking --draft OUT2",
    "hybridge chat OUT --load talk.state",
)
PROMPT = "> "
MOST_LINES = 1000
HELP = """/undo         take the last message and its answer back
/retry        another answer to the last message
/result TEXT  what a tool that the answer calls has found; one for each call
/image FILE   a picture before the next message
/save FILE    keep the conversation and the model's state
/load FILE    continue a saved one
/reset        start anew
/stats        what the last answer took
/help         this
/exit         leave (also Ctrl-D); Ctrl-C stops an answer"""


@with_options
def chat(
    model: ModelArgument,
    *,
    find: FindArtifact,
    system: SystemOption = None,
    template: TemplateOptions,
    load: Annotated[Path | None, typer.Option("--load", help="Continue a saved conversation.")] = None,
    max_new_tokens: NewTokensOption = None,
    drafter: DrafterOptions,
    generation: GenerationOptions,
    cache: CacheOptions,
    context: ContextOption = None,
    threads: ThreadsOption = None,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Remember what is typed at a terminal for the next chat.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Talk with a model: one line is one message; /help lists the commands. Answers go to stdout."""
    from hybridge.runtime.text.chat_template import load_template
    from hybridge.runtime.text.conversation import Conversation
    from hybridge.runtime.text.generate import GenerationSettings, kept_checkpoints, open_text_model

    sampling, variables = generation.sampling(), template.variables()
    opened = open_text_model(find(model), threads=threads, context=context, **vars(drafter.found(find)))
    settings = GenerationSettings(
        drafter=opened.drafter, sampling=sampling.of(opened), stop=tuple(generation.stop or ()), max_new_tokens=max_new_tokens,
        constrain=generation.constrain(opened),
    )  # fmt: skip
    chat_template = load_template(opened.artifact, variables, template.thinking, opened.tokenizer)
    with kept_checkpoints(opened.session, cache.cache_bytes, cache.cache_dir) as checkpoints:
        processor = opened.pictures if opened.artifact.manifest.pictures is not None else None
        instructions = system_prompt(system)
        conversation = Conversation(opened.session, opened.tokenizer, chat_template, settings, instructions, checkpoints)
        if load is not None:
            conversation.load(load)
        gc.freeze()
        with lines([line.split()[0] for line in HELP.splitlines()], remember=history) as read:
            Terminal(conversation, json, processor.read if processor else None).loop(read)


@dataclass
class Terminal:
    """Reads messages and commands, and shows answers.

    picture: reads a picture's file, for a model that takes some; pictures: those before the next message.
    results: of some of the calls that wait.
    """

    conversation: Conversation
    json: bool
    picture: Callable[[Path], Picture] | None = None
    pictures: list[Picture] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    stats: GenerationStats | None = None
    ended: bool = False
    reasoning: ShownReasoning = field(default_factory=ShownReasoning)

    def loop(self, lines: Lines) -> None:
        """Read one line after the other. Errors are printed, and change nothing."""
        err.print("[dim]/help lists the commands[/]")
        while not self.ended:
            try:
                line = lines.read()
            except EOFError:
                return
            try:
                self._do(line.strip())
            except HybridgeError as error:
                err.print("[bold red]Error:[/]", escape(str(error)), highlight=False, soft_wrap=True)

    def _do(self, line: str) -> None:
        if not line.startswith("/"):
            if line:
                self._say(line)
            return
        name, _, argument = line.partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "/undo": self._undo, "/retry": self._retry, "/save": self._save, "/load": self._load, "/reset": self._reset,
            "/image": self._image, "/result": self._result, "/stats": self._stats, "/help": self._help, "/exit": self._exit,
        }  # fmt: skip
        if name not in commands:
            raise UsageError(f"there is no command {name}; /help lists them. A message cannot begin with a slash.")
        commands[name](argument.strip())

    def _say(self, line: str) -> None:
        """Send a message. Pictures that it does not fit with wait for the next one."""
        if self._answer(lambda show, stats: self.conversation.say(line, show, stats, self.pictures)):
            self.pictures = []

    def _answer(self, ask: Callable[[OnWords, GenerationStats], object]) -> bool:
        """Write an answer as it comes. Ctrl-C stops it; return whether it has begun, so that its text so far stays."""
        from hybridge.runtime.binding.statistics import GenerationStats

        self.stats, self.results = GenerationStats(), []
        try:
            ask(self._show, self.stats)
        except KeyboardInterrupt:
            if not self.stats.new_tokens:
                err.print("[dim](stopped before the answer; nothing has changed)[/]")
                return False
            err.print(" [dim](stopped)[/]", end="")
        self._finish()
        return True

    def _show(self, content: str, reasoning: str) -> None:
        if reasoning and not self.json:
            self.reasoning.show(reasoning)
        if content:
            self._write(content)

    def _finish(self) -> None:
        assert self.stats is not None
        answer = self.conversation.messages[-1]
        calls = answer.get("tool_calls", ())
        if self.json:
            print_json({**answer, "stats": self.stats.to_dict()})
        else:
            self._write("\n")
            show_calls(calls)
        if calls:
            err.print(f"[dim]/result TEXT answers a call; {len(calls)} wait[/]")
        if self.conversation.dropped:
            err.print(f"[yellow]The context was full:[/] the oldest {self.conversation.dropped} messages were dropped.")
        if self.conversation.read_again:
            err.print(f"[dim]{self.conversation.read_again} tokens were read again: no checkpoint was left to go back to[/]")
        if self.conversation.session.room == 0:
            err.print("[yellow]The context is full:[/] with the next message the oldest ones are dropped.")

    def _write(self, piece: str) -> None:
        if not self.json:
            self.reasoning.end()
            sys.stdout.write(piece)
            sys.stdout.flush()

    def _undo(self, _: str) -> None:
        self.conversation.undo()
        err.print(f"[dim]{self._exchanges()} exchanges left[/]")

    def _retry(self, _: str) -> None:
        if self.conversation.settings.sampling.temperature == 0:
            err.print("[dim]with --temperature 0 the answer stays the same; 0.7 would make others[/]")
        self._answer(self.conversation.retry)

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

    def _save(self, argument: str) -> None:
        self.conversation.save(_file(argument, "/save"))
        err.print(f"[dim]saved; continue with /load {escape(argument)}[/]")

    def _load(self, argument: str) -> None:
        self.conversation.load(_file(argument, "/load"))
        err.print(f"[dim]{self._exchanges()} exchanges, {self.conversation.session.length} tokens[/]")

    def _exchanges(self) -> int:
        return sum(each["role"] == "user" for each in self.conversation.messages)

    def _reset(self, _: str) -> None:
        self.conversation.reset()
        self.pictures = []

    def _stats(self, _: str) -> None:
        from hybridge.runtime.binding.statistics import GenerationStats

        err.print(stats_table(self.stats or GenerationStats(), None))

    def _help(self, _: str) -> None:
        err.print(HELP, highlight=False)

    def _exit(self, _: str) -> None:
        self.ended = True


def _file(argument: str, command: str) -> Path:
    if not argument:
        raise UsageError(f"{command} needs the name of a file, such as {command} talk.state.")
    return Path(argument).expanduser()


# Lines that a person types: edited and remembered at a terminal, or else read as they are


class Lines:
    """Reads lines. editor: Python's readline, which ``input`` uses once it is imported; None without a terminal."""

    def __init__(self, editor: ModuleType | None = None) -> None:
        self.editor = editor
        self.read_lines = 0

    def read(self) -> str:
        """Return the next line. Raises EOFError at the end."""
        if self.editor is None:
            err.print(f"[bold]{PROMPT}[/]", end="")
            return input()
        line = input(PROMPT)  # readline must know the prompt to place the cursor
        self.read_lines += bool(line)
        return line


@contextmanager
def lines(words: Sequence[str], *, remember: bool) -> Iterator[Lines]:
    """Yield a reader of stdin. At a terminal, Tab completes ``words``, and lines of earlier chats come back if ``remember``."""
    editor = _editor() if sys.stdin.isatty() and sys.stdout.isatty() else None
    read = Lines(editor)
    if editor is None:
        yield read
        return
    _complete(editor, words)
    if remember:
        _load(editor)
    try:
        yield read
    finally:
        if remember:
            _save(editor, read.read_lines)


def history_file() -> Path:
    """Return the file of remembered lines, in the user's folder for the state of programs."""
    root = os.environ.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "hybridge" / "chat-history"


def _editor() -> ModuleType | None:
    """Return readline; None for builds of Python without it."""
    try:
        import readline
    except ImportError:
        return None
    return readline


def _complete(editor: ModuleType, words: Sequence[str]) -> None:
    def completed(beginning: str, number: int) -> str | None:
        found = [word for word in words if beginning.startswith("/") and word.startswith(beginning)]
        return found[number] if number < len(found) else None

    editor.set_completer_delims(" \t\n")  # the slash is part of a command
    editor.set_completer(completed)
    # macOS has editline instead, with settings of its own.
    editor.parse_and_bind("bind ^I rl_complete" if "libedit" in (editor.__doc__ or "") else "tab: complete")


def _load(editor: ModuleType) -> None:
    editor.set_auto_history(True)
    try:
        editor.read_history_file(history_file())
    except OSError:
        return  # the first chat, or another user's file


def _save(editor: ModuleType, new: int) -> None:
    """Append the new lines, because another chat may have written its own; only the owner can read the file."""
    file = history_file()
    try:
        private_folder(file.parent, file.parent)
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        editor.set_history_length(MOST_LINES)
        editor.append_history_file(new, file)
    except OSError as error:
        err.print(f"[dim]What was typed is not remembered: {escape(str(file))}: {error.strerror}.[/]", soft_wrap=True)
