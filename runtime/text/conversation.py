"""A conversation over one session: the state stays between turns, and going back is a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from hybridge.cache.errors import CapacityError, SnapshotError, StateFileError, UsageError
from hybridge.runtime.core.checkpoint import PrefixCache, Reading, go_back, keep
from hybridge.runtime.core.drafters import Drafter
from hybridge.runtime.core.generation import Constraint
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats
from hybridge.runtime.text.text_stream import Apart, Message, Parts, Render, TextStream, undivided


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a conversation's answers.

    constrain: makes, of the text that the template made of a conversation, what decides which tokens the answer may have.
    apart: how reasoning is told from content; left out, all is content.
    """

    drafter: Drafter | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    max_new_tokens: int = 512
    constrain: Callable[[str], Constraint] | None = None
    apart: Apart | None = None


@dataclass
class Turn:
    """A message and its answer: where they begin in the tokens, and the text that the template made of all up to the answer.

    said: the answer as it came, reasoning included; none where it is the message's content.
    """

    start: int
    answer: int
    rendered: str
    said: str | None = None


class Conversation:
    """Messages, the tokens that they are, and the session whose state follows them.

    The tokens are the truth: what was read and generated stays as it is, and a new message is only encoded by what the template
    adds to the text so far. A checkpoint before each message and before its answer makes going back instant, as far as the
    bytes of ``checkpoints`` go; what is not there any more is read again. The same states are in two of the session's snapshot
    slots, in a ring, so that they are saved with it.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        render: Render,
        settings: Settings,
        opening: Sequence[Message] = (),
        checkpoints: PrefixCache | None = None,
    ) -> None:
        """opening: messages that stand before the conversation, such as those of the system."""
        self.session, self.tokenizer, self.render, self.settings = session, tokenizer, render, settings
        self.messages: list[Message] = list(opening)
        self.checkpoints = PrefixCache(session.model) if checkpoints is None else checkpoints
        self.turns: list[Turn] = []
        self.tokens: list[int] = []
        self.read_again = 0
        """Tokens that the last step had to read a second time."""
        self.think: Callable[[str], object] = lambda piece: None
        """Called with each piece of an answer's reasoning, which is not among the pieces of the answer."""

    def say(self, text: str, stats: GenerationStats) -> Iterator[str]:
        """Yield the answer to ``text`` in pieces. Raises CapacityError, with nothing changed, where it does not fit."""
        messages = [*self.messages, {"role": "user", "content": text}]
        rendered = self.render(messages)
        known, added = self._added(rendered)
        tokens = [*known, *self.tokenizer.encode(added, add_special_tokens=False).ids]
        if len(tokens) >= self.session.max_seq_len:
            raise CapacityError(
                f"the message makes {len(tokens)} tokens of conversation, which leaves no room for an answer in "
                f"{self.session.max_seq_len}; shorten it, start anew, or export with a larger --max-seq-len."
            )
        self._keep(2 * len(self.turns))
        self.turns.append(Turn(len(known), len(tokens), rendered))
        self.messages, self.tokens = messages, tokens
        return self._answer(stats)

    def retry(self, stats: GenerationStats) -> Iterator[str]:
        """Yield another answer to the last message. Raises UsageError without one."""
        turn = self._last()
        self._forget_answer()
        self.tokens = self.tokens[: turn.answer]
        return self._answer(stats)

    def undo(self) -> None:
        """Undo the last message and its answer. Raises UsageError without one."""
        turn = self._last()
        self._forget_answer()
        self.messages.pop()
        self.turns.pop()
        self.tokens = self.tokens[: turn.start]
        go_back(self.session, self.tokens, self.checkpoints)

    def save(self, path: Path) -> None:
        """Write the state and the conversation to one file. Raises what ``Session.save`` does."""
        turns = [asdict(turn) for turn in self.turns]
        self.session.save(path, json.dumps({"messages": self.messages, "turns": turns, "tokens": self.tokens}))

    def load(self, path: Path) -> None:
        """Go on with a saved conversation. Raises StateFileError where the file has none, and what ``load_state`` does."""
        self.session.load_state(path)
        try:
            noted = json.loads(self.session.note)
            turns = [Turn(**turn) for turn in noted["turns"]]
            self.messages, self.tokens, self.turns = noted["messages"], noted["tokens"], turns
        except (ValueError, KeyError, TypeError):
            self.session.reset()
            self.messages, self.tokens, self.turns = [], [], []
            raise StateFileError(
                f"{path} holds a session's state but no conversation; give a file that a chat saved."
            ) from None
        self._keep_slots()

    def _answer(self, stats: GenerationStats) -> Iterator[str]:
        """Generate from the conversation's last token; its tokens so far stay in it, however the answer ends."""
        with stats.timed("prefill"):
            reading = self._reach(self.tokens[:-1])
        stats.prompt_tokens += len(self.tokens) - 1 - reading.known  # the last one is generate's to read and to count
        self._keep(2 * len(self.turns) - 1)
        apart, constrain, turn = self.settings.apart or undivided(self.tokenizer), self.settings.constrain, self.turns[-1]
        text, parts = TextStream(apart.decoder, self.settings.stop), apart.parts(turn.rendered)
        tokens = self.session.generate(
            self.tokens[-1:], max_new_tokens=self.settings.max_new_tokens, drafter=self.settings.drafter,
            sampling=self.settings.sampling, until=text.push, stats=stats,
            constraint=constrain(turn.rendered) if constrain is not None else None,
        )  # fmt: skip
        turn.said = ""
        self.messages.append(parts.message())
        with closing(tokens):  # type: ignore[type-var]  # a generator
            for token in tokens:
                if token not in self.session.manifest.eos_ids:  # the template writes the end of a turn itself
                    self.tokens.append(token)
                yield self._take(parts, text.read())
            yield self._take(parts, text.finish(), last=True)

    def _take(self, parts: Parts, piece: str, *, last: bool = False) -> str:
        """Take in a piece of the answer; returns what of it is content, which may be nothing."""
        turn = self.turns[-1]
        turn.said = (turn.said or "") + piece
        came = [*parts.feed(piece), *(parts.finish() if last else ())]
        self.messages[-1] = parts.message()
        if thought := "".join(part.reasoning for part in came):
            self.think(thought)
        return "".join(part.content for part in came)

    def _added(self, rendered: str) -> tuple[list[int], str]:
        """The tokens that stay, and the text behind them: all of it where the template rewrote what was there."""
        if not self.turns:
            return [], rendered
        spoken, turn = self.messages[-1], self.turns[-1]
        content = spoken["content"] if spoken["role"] == "assistant" else ""
        known = turn.rendered + (content if turn.said is None else turn.said)
        return (self.tokens, rendered[len(known) :]) if rendered.startswith(known) else ([], rendered)

    def _last(self) -> Turn:
        if not self.turns:
            raise UsageError("there is no message to undo; send one first.")
        return self.turns[-1]

    def _forget_answer(self) -> None:
        if self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        self.turns[-1].said = None

    # The state

    def _reach(self, tokens: list[int]) -> Reading:
        """Bring the session to ``tokens``: going on from where it is, or from the latest checkpoint on the way, or anew."""
        began = self.session.length
        reading = Reading(self.session, tokens, self.checkpoints, drafter=self.settings.drafter)
        for _ in reading.steps():
            pass
        self.read_again = max(0, min(began, len(tokens)) - reading.known)
        return reading

    def _keep(self, place: int) -> None:
        """Keep the state, also in the ring's place of that number, in pairs: before a message, before its answer."""
        keep(self.session, self.checkpoints)
        ring = self.session.snapshot_slots // 2 * 2
        if ring:
            self.session.snapshot(place % ring)

    def _keep_slots(self) -> None:
        """Make checkpoints of what the slots of a loaded state keep."""
        loaded = self.session.checkpoint()
        for slot in self.session.slots:
            try:
                self.session.restore(slot)
            except SnapshotError:
                continue  # overwritten since
            keep(self.session, self.checkpoints)
        self.session.resume(loaded)
