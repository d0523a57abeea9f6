"""Hold a conversation over one session: its state stays between turns, and going back resumes a checkpoint."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hybridge.cache.errors import CapacityError, PictureError, SnapshotError, StateFileError, UsageError
from hybridge.runtime.core.checkpoint import PrefixCache, PromptPrefill, keep_checkpoint, resume_prefix
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.text.answers import unsplit
from hybridge.runtime.text.chat_template import Message, Render
from hybridge.runtime.text.generate import GenerationSettings, generate_text
from hybridge.runtime.text.pictures import PreparedPicture, message_content, with_pictures
from hybridge.runtime.text.spelled_tokens import Rendered, Spans, SpelledTokens

MOST_SAVED = 60 << 20
"""Bytes of a saved conversation, which the core keeps as a note of at most 64 MB."""


@dataclass
class Turn:
    """A message and its answer.

    start, answer: lengths of the tokens before the message, and before its answer. rendered: the conversation up to the
    answer, as the template wrote it. said: the answer as generated, reasoning included; None if it is the message's content.
    spelled: see ``Rendered``. pictures: of the message.
    """

    start: int
    answer: int
    rendered: str
    said: str | None = None
    spelled: Spans = ()
    pictures: Sequence[PreparedPicture] = ()

    def __post_init__(self) -> None:
        self.spelled = tuple((begin, end) for begin, end in self.spelled)  # a saved conversation has lists


class Conversation:
    """Messages, the tokens that they are, and the session whose state follows them.

    Tokens that were read or generated are never encoded again: a new message adds the tokens of the text that the template
    adds. A checkpoint before each message and before its answer makes going back instant, within the budget of
    ``checkpoints``; a state that was dropped is read again. The same states are in the session's snapshot slots, two for a
    turn in a ring, to be saved. Pictures stay open as long as their messages are there, so each is encoded once, and none for
    a state that comes back.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        render: Render,
        settings: GenerationSettings,
        opening: Sequence[Message] = (),
        checkpoints: PrefixCache | None = None,
        prepare: Callable[[bytes], PreparedPicture] | None = None,
    ) -> None:
        """Begin a conversation behind the messages ``opening``, such as the system's.

        prepare: opens a picture of a saved conversation again by its file's bytes; left out, those with pictures are refused.
        """
        self.session, self.tokenizer, self.render, self.settings = session, tokenizer, render, settings
        self._prepare = prepare
        self._special = SpelledTokens(tokenizer)
        self.opening = list(opening)
        self.messages: list[Message] = list(opening)
        self.checkpoints = PrefixCache(session.model) if checkpoints is None else checkpoints
        self.turns: list[Turn] = []
        self.tokens: list[int] = []
        self.read_again = 0
        """Tokens that the last step had to read a second time."""
        self.think: Callable[[str], object] = lambda piece: None
        """Called with each piece of an answer's reasoning, which the answer leaves out."""

    def say(self, text: str, stats: GenerationStats, pictures: Sequence[PreparedPicture] = ()) -> Iterator[str]:
        """Yield the answer to ``text``, before which there may be pictures, in pieces.

        Raises CapacityError, with nothing changed, if it does not fit, and PictureError if the template has no place for the
        pictures.
        """
        messages = [*self.messages, {"role": "user", "content": message_content(text, len(pictures))}]
        rendered = self._special.rendered(self.render, messages)
        known, added = self._added(rendered)
        earlier = [] if known else [each for turn in self.turns for each in turn.pictures]
        encoded = self.tokenizer.encode(added.text, around=False, plain=added.spelled).ids
        tokens = [*known, *with_pictures(encoded, [*earlier, *pictures])]
        if len(tokens) >= self.session.max_seq_len:
            raise CapacityError(
                f"the message makes {len(tokens)} tokens of conversation, which leaves no room for an answer in "
                f"{self.session.max_seq_len}; shorten it, start anew, or export with a larger --max-seq-len."
            )
        self._keep(2 * len(self.turns))
        self.turns.append(Turn(len(known), len(tokens), rendered.text, spelled=rendered.spelled, pictures=tuple(pictures)))
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
        resume_prefix(self.session, self.tokens, self.checkpoints)

    def reset(self) -> None:
        """Begin anew, behind the opening messages."""
        self.session.reset()
        self.messages, self.turns, self.tokens, self.read_again = list(self.opening), [], [], 0

    def save(self, path: Path) -> None:
        """Write the state and the conversation, with the files of its pictures, to one file; raises like ``Session.save``.

        Raises PictureError for more pictures than a file takes.
        """
        turns = [self._saved(turn) for turn in self.turns]
        note = json.dumps({"messages": self.messages, "turns": turns, "tokens": self.tokens})
        if len(note) > MOST_SAVED and any(turn.pictures for turn in self.turns):
            raise PictureError(
                f"the pictures of this conversation take {len(note) >> 20} MB, and a saved one has at most {MOST_SAVED >> 20}; "
                "undo messages, or give smaller files."
            )
        self.session.save(path, note)

    def load(self, path: Path) -> None:
        """Continue a saved conversation.

        Raises StateFileError if the file has none, PictureError for pictures that cannot be opened, and like
        ``Session.load_state``.
        """
        self.session.load_state(path)
        try:
            noted = json.loads(self.session.note)
            turns = [replace(Turn(**turn), pictures=self._opened(turn.get("pictures", []))) for turn in noted["turns"]]
            self.messages, self.tokens, self.turns = noted["messages"], noted["tokens"], turns
        except PictureError:
            self._forget()
            raise
        except (ValueError, KeyError, TypeError, AttributeError):
            self._forget()
            raise StateFileError(
                f"{path} holds a session's state but no conversation; give a file that a chat saved."
            ) from None
        self._keep_slots()

    def _forget(self) -> None:
        self.session.reset()
        self.messages, self.tokens, self.turns = [], [], []

    def _saved(self, turn: Turn) -> dict[str, Any]:
        saved = asdict(replace(turn, pictures=()))
        del saved["pictures"]
        files = [base64.b64encode(each.data).decode() for each in turn.pictures]
        return {**saved, "pictures": files} if files else saved

    def _opened(self, files: Sequence[str]) -> tuple[PreparedPicture, ...]:
        """Open the pictures of a saved message. Raises PictureError, and ValueError for what is no base64."""
        if files and self._prepare is None:
            raise PictureError("the conversation has pictures, and the model takes none.")
        return tuple(self._prepare(base64.b64decode(each)) for each in files) if self._prepare is not None else ()

    def _answer(self, stats: GenerationStats) -> Iterator[str]:
        """Generate from the last token on; what was yielded stays in the conversation, even if the caller closes this early."""
        with stats.timed("prefill"):
            reading = self._reach(self.tokens[:-1])
        stats.prompt_tokens += (
            len(self.tokens) - 1 - reading.cached_tokens
        )  # the last token is read and counted by the generation
        self._keep(2 * len(self.turns) - 1)
        settings, turn = self.settings, self.turns[-1]
        splitter = settings.splitter or unsplit(self.tokenizer)
        answer = splitter.answer(turn.rendered)
        pieces = generate_text(
            self.session, self.tokens[-1:], splitter.decoder, answer=answer, max_new_tokens=settings.max_new_tokens,
            drafter=settings.drafter, sampling=settings.sampling, stop=settings.stop, stats=stats,
            constraint=settings.constrain(turn.rendered) if settings.constrain is not None else None,
        )  # fmt: skip
        with closing(pieces):  # type: ignore[type-var]  # a generator
            for piece in pieces:
                # The template writes the end of a turn itself.
                self.tokens += [token for token in piece.tokens if token not in self.session.manifest.eos_ids]
                if turn.said is None:  # the first piece: an error before it leaves the message without an answer
                    turn.said = ""
                    self.messages.append({})
                turn.said += piece.text
                self.messages[-1] = answer.message()
                if piece.reasoning:
                    self.think(piece.reasoning)
                yield piece.content

    def _added(self, rendered: Rendered) -> tuple[list[int], Rendered]:
        """Return the tokens that stay, and the text behind them: all of it if the template rewrote the past."""
        if not self.turns:
            return [], rendered
        spoken, turn = self.messages[-1], self.turns[-1]
        content = spoken["content"] if spoken["role"] == "assistant" else ""  # an answer has no pictures
        known = turn.rendered + (content if turn.said is None else turn.said)
        stays = rendered.text.startswith(known) and rendered.begins_with(Rendered(turn.rendered, turn.spelled))
        return (self.tokens, rendered.behind(len(known))) if stays else ([], rendered)

    def _last(self) -> Turn:
        if not self.turns:
            raise UsageError("there is no message to undo; send one first.")
        return self.turns[-1]

    def _forget_answer(self) -> None:
        if self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        self.turns[-1].said = None

    def _reach(self, tokens: list[int]) -> PromptPrefill:
        """Bring the session to ``tokens``, from its own text or a checkpoint as far as these begin alike."""
        began = self.session.length
        reading = PromptPrefill(self.session, tokens, self.checkpoints, drafter=self.settings.drafter)
        for _ in reading.steps():
            pass
        self.read_again = max(0, min(began, len(tokens)) - reading.cached_tokens)
        return reading

    def _keep(self, number: int) -> None:
        """Keep the state as a checkpoint, and in the snapshot slot of this number modulo the slots."""
        keep_checkpoint(self.session, self.checkpoints)
        ring = self.session.snapshot_slots // 2 * 2
        if ring:
            self.session.snapshot(number % ring)

    def _keep_slots(self) -> None:
        """Make checkpoints of the snapshots in a loaded state."""
        loaded = self.session.checkpoint()
        for slot in self.session.slots:
            try:
                self.session.restore(slot)
            except SnapshotError:
                continue  # overwritten since
            keep_checkpoint(self.session, self.checkpoints)
        self.session.resume(loaded)
