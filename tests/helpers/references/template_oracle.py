"""Chat templates as the core renders them, by tests/native/templates.cpp, and as transformers does; random conversations."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Self

from native_programs import native_program
from transformers.utils.chat_template_utils import _compile_jinja_template

NOW = datetime(2026, 3, 7, 9, 5, 2)  # noqa: DTZ001  # templates see a local time


@dataclass(frozen=True)
class NativeText:
    """What the core makes of a template: its text and the parts that came from people, or an error."""

    text: str | None
    error: str
    input: list[str]
    seconds: float
    questions: int = 0
    """Times that it asked whether it is interrupted."""


class NativeTemplates:
    """A process that renders templates. A context manager."""

    def __init__(self, program: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [program or native_program("templates")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        self._process.stdout.close()

    def render(self, template: str, variables: dict[str, Any], interrupt: int = 0) -> NativeText:
        """Return the core's text of a template, at the time NOW; question number ``interrupt`` interrupts it."""
        time = NOW.timetuple()
        now = [time.tm_year, time.tm_mon, time.tm_mday, time.tm_hour, time.tm_min, time.tm_sec, time.tm_wday, time.tm_yday]
        asked = {
            "template": template,
            "variables": json.dumps(variables, ensure_ascii=False),
            "now": now,
            "interrupt": interrupt,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        got = json.loads(self._process.stdout.readline())
        text, spans = got.get("text"), got.get("input", [])
        written = (text or "").encode()
        parts = [written[begin:end].decode() for begin, end in zip(spans[::2], spans[1::2], strict=True)]
        return NativeText(text, got.get("error", ""), parts, got["seconds"], got.get("questions", 0))


def reference(template: str, variables: dict[str, Any], now: datetime = NOW) -> str | Exception:
    """Return the text that transformers' sandbox makes of a template, or why it refuses."""
    try:
        text: str = _compile_jinja_template(template).render(**variables, strftime_now=now.strftime)
        text.encode()
    except Exception as error:  # a template may run into anything
        return error
    return text


# Random conversations

ALPHABET = "ab Zé漢\n\t <>&'\"\\{}%|_.,:[]()0\u00a0"
MARKS = ["<think>", "</think>", "<|im_end|>", "<tool_call>", "{{ x }}", "</s>", "\n\n"]


class Conversations:
    """Draws conversations as clients send them, with all that templates read."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def words(self) -> str:
        """Draw a text."""
        random = self._random
        text = "".join(random.choices(ALPHABET, k=random.choice([0, 1, 5, 20])))
        return text + random.choice(MARKS) + "x" if random.random() < 0.15 else text

    def value(self, depth: int = 0) -> Any:
        """Draw a value of JSON."""
        random = self._random
        kind = random.randrange(8 if depth < 2 else 6)
        if kind == 6:
            return [self.value(depth + 1) for _ in range(random.randrange(3))]
        if kind == 7:
            return {f"k{i}": self.value(depth + 1) for i in range(random.randrange(3))}
        return [self.words(), random.randrange(-9, 99), random.random() * 10, True, None, "plain"][kind]

    def variables(self) -> dict[str, Any]:
        """Draw the variables of a rendering."""
        random = self._random
        drawn: dict[str, Any] = {"messages": self._messages(), "add_generation_prompt": random.random() < 0.8}
        drawn |= {"tools": self._tools() if random.random() < 0.5 else None, "documents": None}
        drawn |= {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
        drawn |= {"turn_token": "<turn>", "end_of_turn_token": "<turned>", "think_token": "<think>"}
        for name, values in _SWITCHES.items():
            if random.random() < 0.25:
                drawn[name] = random.choice(values)
        return drawn

    def _messages(self) -> list[dict[str, Any]]:
        random, messages = self._random, list[dict[str, Any]]()
        if random.random() < 0.5:
            messages.append({"role": random.choice(["system", "system", "developer"]), "content": self.words()})
        for _ in range(random.randrange(1, 4)):
            messages.append({"role": "user", "content": self._content()})
            if random.random() < 0.35:
                messages += self._called()
            if random.random() < 0.7:
                messages.append(self._answer())
        if random.random() < 0.7 and messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": self._content()})
        return messages

    def _content(self) -> Any:
        random = self._random
        if random.random() < 0.75:
            return self.words()
        parts: list[dict[str, Any]] = [{"type": "text", "text": self.words()}]
        if random.random() < 0.6:
            parts.insert(random.randrange(2), {"type": random.choice(["image", "image", "video"])})
        return parts

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"role": "assistant", "content": self.words()}
        if self._random.random() < 0.3:
            reason = self.words()
            answer |= {"thinking": reason, "reasoning_content": reason}
        return answer

    def _called(self) -> list[dict[str, Any]]:
        random, calls, results = self._random, list[dict[str, Any]](), list[dict[str, Any]]()
        for _ in range(random.randrange(1, 3)):
            identity = "".join(random.choices("abcXYZ019", k=9))
            given: Any = {f"a{i}": self.value() for i in range(random.randrange(3))}
            if random.random() < 0.15:
                given = json.dumps(given)
            calls.append({"type": "function", "id": identity, "function": {"name": "weather", "arguments": given}})
            result: Any = self.words() if random.random() < 0.8 else json.dumps({"t": self.value()})
            results.append({"role": "tool", "tool_call_id": identity, "name": "weather", "content": result})
        answer = self._answer() | {"tool_calls": calls}
        if random.random() < 0.4:
            answer["content"] = random.choice(["", None])
        return [answer, *(results if random.random() < 0.9 else [])]

    def _tools(self) -> list[dict[str, Any]]:
        random = self._random
        properties: dict[str, Any] = {
            "place": {"type": "string", "description": self.words()},
            "unit": {"anyOf": [{"enum": ["c", "f"], "type": "string"}, {"type": "null"}], "default": None},
            "days": {"type": random.choice(["integer", ["integer", "null"]]), "minimum": 1, "enum": [1, 2.5]},
            "where": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
            "names": {"type": "array", "items": {"type": "string", "description": self.words()}},
        }
        kept = {name: each for name, each in properties.items() if random.random() < 0.6}
        parameters = {"type": "object", "properties": kept, "required": sorted(kept)[:1]}
        function: dict[str, Any] = {"name": "weather", "description": self.words(), "parameters": parameters}
        if random.random() < 0.2:
            function["return"] = {"type": "string", "description": self.words()}
        other = {"name": "now", "description": "Tell the time", "parameters": {"type": "object", "properties": {}}}
        return [{"type": "function", "function": each} for each in [function, other][: random.randrange(1, 3)]]


_SWITCHES: dict[str, list[Any]] = {
    "enable_thinking": [True, False], "thinking": [True, False], "reasoning_effort": ["low", "high"],
    "date_string": ["1 May 2026"], "keep_past_thinking": [True, False], "model_identity": ["You are tiny."],
    "documents": [[{"title": "a <b>", "text": "c\nd"}]], "custom_tools": [None], "builtin_tools": [["python"]],
    "preserve_thinking": [True], "clear_thinking": [True, False],
}  # fmt: skip
