"""``hybridge chat``: lines from a terminal as messages and commands."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.markup import escape

from hybridge.cache.errors import HybridgeError, UsageError
from hybridge.export.cli.common import err, print_json
from hybridge.export.cli.generating import stats_table
from hybridge.export.cli.lines import Lines, lines
from hybridge.export.cli.reasoning import ShownReasoning
from hybridge.runtime.chat.conversation import Conversation
from hybridge.runtime.chat.parts import Message
from hybridge.runtime.core.statistics import GenerationStats

HELP = """/undo         take the last message and its answer back
/retry        another answer to the last message
/save FILE    keep the conversation and the model's state
/load FILE    go on with a saved one
/reset        start anew
/stats        what the last answer took
/help         this
/exit         leave (also Ctrl-D); Ctrl-C stops an answer"""


def talk(conversation: Conversation, opening: list[Message], *, json: bool, remember: bool) -> None:
    """Read messages from stdin and answer them until there are no more; ``opening`` stands before every conversation.

    remember: what is typed at a terminal comes back in the next chat.
    """
    gc.freeze()
    with lines([line.split()[0] for line in HELP.splitlines()], remember=remember) as read:
        Terminal(conversation, opening, json).loop(read)


@dataclass
class Terminal:
    """Reads messages and commands until there are no more."""

    conversation: Conversation
    opening: list[Message]
    json: bool
    stats: GenerationStats = field(default_factory=GenerationStats)
    ended: bool = False
    reasoning: ShownReasoning = field(default_factory=ShownReasoning)

    def __post_init__(self) -> None:
        if not self.json:
            self.conversation.think = self.reasoning.show

    def loop(self, lines: Lines) -> None:
        """Read one line after the other; what cannot be done is printed and changes nothing."""
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
                self._answer(self.conversation.say, line)
            return
        name, _, argument = line.partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "/undo": self._undo, "/retry": self._retry, "/save": self._save, "/load": self._load, "/reset": self._reset,
            "/stats": self._stats, "/help": self._help, "/exit": self._exit,
        }  # fmt: skip
        if name not in commands:
            raise UsageError(f"there is no command {name}; /help lists them. A message cannot begin with a slash.")
        commands[name](argument.strip())

    def _answer(self, ask: Callable[..., Iterator[str]], *words: str) -> None:
        """Write an answer as it comes; Ctrl-C stops it, and its text so far stays."""
        self.stats = GenerationStats()
        pieces = ask(*words, self.stats)
        try:
            for piece in filter(None, pieces):
                self._write(piece)
        except KeyboardInterrupt:
            pieces.close()  # type: ignore[attr-defined]  # commits what was written, no more
            err.print(" [dim](stopped)[/]", end="")
        self._finish()

    def _finish(self) -> None:
        if self.json:
            print_json({**self.conversation.messages[-1], "stats": self.stats.to_dict()})
        else:
            self._write("\n")
        if self.conversation.read_again:
            err.print(f"[dim]{self.conversation.read_again} tokens were read again: no checkpoint was left to go back to[/]")
        if self.conversation.session.room == 0:
            err.print("[yellow]The context is full:[/] /undo, /reset, or export with a larger --max-seq-len.")

    def _write(self, piece: str) -> None:
        if not self.json:
            self.reasoning.end()
            sys.stdout.write(piece)
            sys.stdout.flush()

    def _undo(self, _: str) -> None:
        self.conversation.undo()
        err.print(f"[dim]{len(self.conversation.turns)} exchanges left[/]")

    def _retry(self, _: str) -> None:
        if self.conversation.settings.sampling.temperature == 0:
            err.print("[dim]with --temperature 0 the answer stays the same; 0.7 would make others[/]")
        self._answer(self.conversation.retry)

    def _save(self, argument: str) -> None:
        self.conversation.save(_file(argument, "/save"))
        err.print(f"[dim]saved; go on with /load {escape(argument)}[/]")

    def _load(self, argument: str) -> None:
        self.conversation.load(_file(argument, "/load"))
        err.print(f"[dim]{len(self.conversation.turns)} exchanges, {self.conversation.session.length} tokens[/]")

    def _reset(self, _: str) -> None:
        old = self.conversation
        old.session.reset()
        self.conversation = Conversation(old.session, old.tokenizer, old.render, old.settings, self.opening, old.checkpoints)

    def _stats(self, _: str) -> None:
        err.print(stats_table(self.stats, None))

    def _help(self, _: str) -> None:
        err.print(HELP, highlight=False)

    def _exit(self, _: str) -> None:
        self.ended = True


def _file(argument: str, command: str) -> Path:
    if not argument:
        raise UsageError(f"{command} needs the name of a file, such as {command} talk.state.")
    return Path(argument).expanduser()
