"""What an answer looks like: the objects of chats and completions of OpenAI's API, whole and in chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any
from uuid import uuid4

from tokenizers import Tokenizer

from hybridge.export.server.answers import Answer, Delta
from hybridge.export.server.errors import ApiError
from hybridge.export.server.job import Chance, Finished


@dataclass
class Form:
    """Makes the objects of one answer. chat: of a conversation, or a completion of a text. with_usage: a stream says counts."""

    chat: bool
    model: str
    tokenizer: Tokenizer
    with_usage: bool = False
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time()))

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid4().hex}"
        self._offset = self._calls = 0

    def whole(self, answer: Answer, chances: Sequence[Chance] | None, end: Finished, prompt: int) -> dict[str, Any]:
        """Return the answer in one object."""
        said = {"message": self._message(answer)} if self.chat else {"text": answer.content}
        choice = {"index": 0, **said, "logprobs": self._logprobs(chances), "finish_reason": _reason(answer, end)}
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(kind, [choice]) | {"usage": usage(end, prompt)}

    def first(self) -> Iterator[str]:
        """Yield the event that says who speaks."""
        if self.chat:
            yield event(self._chunk({"delta": {"role": "assistant", "content": ""}}, None, None))

    def piece(self, delta: Delta, chances: Sequence[Chance] | None) -> Iterator[str]:
        """Yield an event with text or a call."""
        yield event(self._chunk({"delta": self._delta(delta)} if self.chat else {"text": delta.content}, chances, None))

    def last(self, answer: Answer, end: Finished, prompt: int) -> Iterator[str]:
        """Yield the events that say why the text ends, and what was counted."""
        yield event(self._chunk({"delta": {}} if self.chat else {"text": ""}, None, _reason(answer, end)))
        if self.with_usage:
            yield event(self._object(self._kind, []) | {"usage": usage(end, prompt)})
        yield DONE

    def error(self, error: ApiError) -> Iterator[str]:
        """Yield the event of what went wrong."""
        yield event(error.to_dict())

    def _message(self, answer: Answer) -> dict[str, Any]:
        content = answer.content if answer.content or not answer.calls else None
        return {**answer.message(), "content": content, "refusal": None}

    def _delta(self, delta: Delta) -> dict[str, Any]:
        if delta.call is not None:
            self._calls += 1
            return {"tool_calls": [{"index": self._calls - 1, **delta.call.to_dict()}]}
        said = {"reasoning_content": delta.reasoning} if delta.reasoning else {"content": delta.content}
        return {**said, "origin": delta.origin} if delta.origin else said

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _chunk(self, said: Mapping[str, Any], chances: Sequence[Chance] | None, reason: str | None) -> dict[str, Any]:
        return self._object(self._kind, [{"index": 0, **said, "logprobs": self._logprobs(chances), "finish_reason": reason}])

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _logprobs(self, chances: Sequence[Chance] | None) -> dict[str, Any] | None:
        if chances is None:
            return None
        if self.chat:
            content = [
                {**self._token(each.token, each.logprob), "top_logprobs": [self._token(*pair) for pair in each.best]}
                for each in chances
            ]
            return {"content": content, "refusal": None}
        texts = [self._text(each.token) for each in chances]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [each.logprob for each in chances],
            "top_logprobs": [{self._text(token): value for token, value in each.best} for each in chances],
            "text_offset": offsets,
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _text(self, token: int) -> str:
        return self.tokenizer.decode([token], skip_special_tokens=False)


def _reason(answer: Answer, end: Finished) -> str:
    return "tool_calls" if answer.calls and end.reason == "stop" else end.reason


def usage(end: Finished, prompt: int) -> dict[str, Any]:
    """Return what was counted. cached_tokens: of the prompt, that were not read again."""
    stats = end.stats
    return {
        "prompt_tokens": prompt,
        "completion_tokens": stats.new_tokens,
        "total_tokens": prompt + stats.new_tokens,
        "prompt_tokens_details": {"cached_tokens": end.known},
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.accepted,
            "rejected_prediction_tokens": stats.proposed - stats.accepted,
        },
    }


def event(content: Mapping[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


DONE = "data: [DONE]\n\n"
