"""``hybridge chat``"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from hybridge.cache.errors import HybridgeError, UsageError
from hybridge.export.cli.chat_template import load_template
from hybridge.export.cli.common import ArtifactArgument, JsonOption, app, err, print_json
from hybridge.export.cli.generating import (
    CacheBytesOption,
    DraftOption,
    LookupOption,
    MinPOption,
    NewTokensOption,
    OwnDrafterOption,
    PenaltyOption,
    PlainOption,
    SeedOption,
    StopOption,
    TemperatureOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
    open_model,
    stats_table,
)
from hybridge.export.cli.template_args import TemplateArgOption, template_variables
from hybridge.runtime.chat.conversation import Conversation, Message, Settings
from hybridge.runtime.generation.sampling import Sampling
from hybridge.runtime.generation.stats import GenerationStats
from hybridge.runtime.sessions.prefix_cache import DEFAULT_BYTES, PrefixCache

HELP = """/undo         take the last message and its answer back
/retry        another answer to the last message
/save FILE    keep the conversation and the model's state
/load FILE    go on with a saved one
/reset        start anew
/stats        what the last answer took
/help         this
/exit         leave (also Ctrl-D); Ctrl-C stops an answer"""


@app.command()
def chat(
    artifact: ArtifactArgument,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", help="What the model is told before the conversation; may be given several times."),
    ] = None,
    template_arg: TemplateArgOption = None,
    load: Annotated[Path | None, typer.Option("--load", help="Go on with a saved conversation.")] = None,
    max_new_tokens: NewTokensOption = 512,
    draft: DraftOption = None,
    lookup: LookupOption = False,
    own: OwnDrafterOption = False,
    plain: PlainOption = False,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    repetition_penalty: PenaltyOption = 1.0,
    seed: SeedOption = None,
    stop: StopOption = None,
    cache_bytes: CacheBytesOption = DEFAULT_BYTES,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Talk with a model: one line is one message; /help lists the commands. Answers go to stdout."""
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
    )
    variables = template_variables(template_arg or ())
    model = open_model(artifact, draft=draft, lookup=lookup, own=own, plain=plain, threads=threads)
    settings = Settings(drafter=model.drafter, sampling=sampling, stop=tuple(stop or ()), max_new_tokens=max_new_tokens)
    opening = [{"role": "system", "content": text} for text in system or ()]
    template = load_template(model.artifact, variables)
    checkpoints = PrefixCache(cache_bytes)
    conversation = Conversation(model.session, model.tokenizer, template, settings, opening, checkpoints)
    if load is not None:
        conversation.load(load)
    gc.freeze()
    Terminal(conversation, opening, json).loop()


@dataclass
class Terminal:
    """Reads messages and commands until there are no more."""

    conversation: Conversation
    opening: list[Message]
    json: bool
    stats: GenerationStats = field(default_factory=GenerationStats)
    ended: bool = False

    def loop(self) -> None:
        """Read one line after the other; what cannot be done is printed and changes nothing."""
        err.print("[dim]/help lists the commands[/]")
        while not self.ended:
            err.print("[bold]> [/]", end="")
            try:
                line = input()
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
            for piece in pieces:
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
