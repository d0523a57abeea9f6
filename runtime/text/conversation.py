"""A chat of the core with settings of its answers: constraints, drafters, statistics."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.errors import UsageError
from hybridge.runtime.binding.chat import OnWords, OpenChat, chat_options, chat_over, message_content, result_words, utf8
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.generation import Callbacks, Constraint, GenerationArguments, add_counts
from hybridge.runtime.binding.interface import AnswerStruct, Ending
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.statistics import GenerationStats
from hybridge.runtime.binding.tokenizer import Tokenizer, check_stop_strings
from hybridge.runtime.text.chat_template import ChatTemplate, Message
from hybridge.runtime.text.generate import GenerationSettings


class Conversation(OpenChat):
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
        template: ChatTemplate,
        settings: GenerationSettings,
        system: str = "",
        checkpoints: PrefixCache | None = None,
    ) -> None:
        """Begin a conversation. system: what the model is told before the first message.

        Raises:
            ArtifactError: there is no chat template, or it has an error in its syntax.
            UsageError: the template refuses the message of the system, or knows no tools and is given some.
        """
        self.session, self.template, self.settings = session, template, settings
        self.checkpoints = PrefixCache(session.model) if checkpoints is None else checkpoints
        self.read_again = 0
        """Tokens that the last answer had to read a second time."""
        self.dropped = 0
        """Messages, the oldest ones, that were dropped before the last answer: they left no room for it."""
        self.ended_by_length = False
        """Whether the last answer ended because it had as many tokens as it may."""
        variables = {name: value for name, value in template.variables.items() if name != "tools"}
        options = chat_options(
            system, variables=variables, tools=template.variables.get("tools"), cache=self.checkpoints, now=template.now
        )
        super().__init__(chat_over(session, tokenizer, template.jinja, options), session)

    def say(
        self, text: str, show: OnWords | None = None, stats: GenerationStats | None = None, pictures: Sequence[Picture] = ()
    ) -> str:
        """Answer ``text``, before which there may be pictures; return the answer without its reasoning.

        If the context leaves no room for the answer, the oldest messages are dropped, down to half of it; ``dropped`` is their
        number. A call of a tool goes with its result, and the messages of the system stay.

        Args:
            text: the message.
            show: called with what each token adds to content and reasoning; ends the answer by returning False. What it raises
                is raised here; the text so far stays.
            stats: counts what the answer takes.
            pictures: of the message.

        Raises:
            CapacityError: the message does not fit by itself; nothing has changed, as after all that is raised before the
                first token.
            PictureError: the template has no place for the pictures.
        """
        self.show(pictures)
        data = utf8(text)
        asked = {"role": "user", "content": message_content(data.decode(errors="replace"), len(pictures))}
        return self._ask("chat_send", (data, len(data)), [asked], show, stats)

    def give_results(self, results: Sequence[str], show: OnWords | None = None, stats: GenerationStats | None = None) -> str:
        """Answer the results of the tools that the last answer called, in the order of its calls; see ``say``.

        Raises UsageError if it called none, or for another number of results.
        """
        asked: list[Message] = [
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": result}
            for call, result in zip(self.open_calls, results, strict=False)
        ]
        texts = list(map(utf8, results))
        return self._ask("chat_give_results", result_words(texts), asked, show, stats)

    @property
    def open_calls(self) -> list[Message]:
        """Return the calls of tools that wait for results: those of the last answer."""
        return [call for message in self.messages[-1:] for call in message.get("tool_calls", ())]

    def retry(self, show: OnWords | None = None, stats: GenerationStats | None = None) -> str:
        """Answer the last message again, as ``say`` does. Raises UsageError without one."""
        return self._ask("chat_retry", (), [], show, stats)

    def continue_answer(self, show: OnWords | None = None, stats: GenerationStats | None = None) -> str:
        """Go on with the last answer, such as one that ended by its length, as if it had not; return what is new.

        Raises UsageError if there is none, if it calls tools or ended at a stop string, and for answers under a constraint.
        """
        if self.settings.constrain is not None:
            raise UsageError("an answer that follows a schema cannot be continued: allow more tokens and ask again.")
        return self._ask("chat_continue", (), [], show, stats)

    def _ask(
        self, call: str, words: tuple[object, ...], asked: list[Message], show: OnWords | None, stats: GenerationStats | None
    ) -> str:
        session, settings, answer, said = self.session, self.settings, AnswerStruct(), list[str]()
        check_stop_strings(settings.stop)
        session.check_generation(settings.drafter)
        stats = GenerationStats() if stats is None else stats
        arguments = GenerationArguments(
            max_new_tokens=settings.max_new_tokens, drafter=settings.drafter,
            sampling=settings.sampling, stats=stats, constraint=self._constraint(asked),
            stop_after_reasoning=settings.stop_after_reasoning,
        )  # fmt: skip
        calls = Callbacks(session.handle, session.vocab_size, arguments, self._fail)
        began = session.length

        def told(content: str, reasoning: str) -> object:
            said.append(content)
            return show(content, reasoning) if show is not None else None

        try:
            self._answer(call, words, told, calls.options(), settings.stop, answer)
        finally:
            add_counts(stats, answer.generated)
            stats.new_tokens += answer.generated.tokens
            stats.prompt_tokens += answer.prompt_tokens
            self.dropped = answer.dropped_messages
            self.ended_by_length = answer.ending == Ending.BY_LENGTH
            self.read_again = (
                0
                if self.dropped
                else max(0, min(began, answer.prompt_tokens + answer.cached_tokens - 1) - answer.cached_tokens)
            )
        return "".join(said)

    def _constraint(self, asked: list[Message]) -> Constraint | None:
        """Return the constraint of the answer to ``asked``, or of another one to the last message."""
        if self.settings.constrain is None:
            return None
        messages = [*self.messages, *asked]
        if messages and messages[-1]["role"] == "assistant":
            messages.pop()
        return self.settings.constrain(self.template.render(messages).text) if messages else None
