"""What an answer looks like: the objects of OpenAI's API, whole and in chunks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any
from uuid import uuid4

from tokenizers import Tokenizer

from hybridge.export.server.job import Chance, Finished


@dataclass
class Form:
    """Makes the objects of one answer. chat: of a conversation, or a completion of a text."""

    chat: bool
    model: str
    tokenizer: Tokenizer
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time()))

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid4().hex}"
        self._offset = 0

    def whole(self, text: str, chances: Sequence[Chance] | None, end: Finished, prompt: int) -> dict[str, Any]:
        """Return the answer in one object."""
        said = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": self._logprobs(chances), "finish_reason": end.reason}
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(kind, [choice]) | {"usage": usage(end, prompt)}

    def first(self) -> dict[str, Any] | None:
        """Return the chunk that says who speaks."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None, None) if self.chat else None

    def piece(self, text: str, chances: Sequence[Chance] | None) -> dict[str, Any]:
        """Return a chunk with text."""
        return self._chunk({"delta": {"content": text}} if self.chat else {"text": text}, chances, None)

    def last(self, end: Finished) -> dict[str, Any]:
        """Return the chunk that says why the text ends."""
        return self._chunk({"delta": {}} if self.chat else {"text": ""}, None, end.reason)

    def usage(self, end: Finished, prompt: int) -> dict[str, Any]:
        """Return the chunk that says what was counted."""
        return self._object(self._kind, []) | {"usage": usage(end, prompt)}

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
