"""Tools for models whose chat template has no form for them: functions as JSON in the system turn, calls in tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hybridge.cache.errors import HybridgeError
from hybridge.export.server.prompts import Render

Message = dict[str, Any]

TOLD = """You can call these functions, each described by a line of JSON:
{functions}

To call one, write its name and its arguments in this form, and nothing behind it:
<tool_call>
{{"name": "NAME", "arguments": {{"PARAMETER": "VALUE"}}}}
</tool_call>
The result comes in <tool_response> tags. Call a function only where it helps; otherwise answer in words."""
PROBE = {"type": "function", "function": {"name": "hybridge_probe", "description": "None", "parameters": {"type": "object"}}}


def ignores_tools(render: Render) -> bool:
    """Return whether a chat template says nothing of the tools that it is given."""
    try:
        return "hybridge_probe" not in render([{"role": "user", "content": "Hello"}], {"tools": [PROBE]})
    except HybridgeError:  # it may want another conversation, and tell a client so
        return False


def with_tools_in_text(render: Render) -> Render:
    """Return what renders conversations with tools by a template that knows of none."""

    def rendered(messages: list[Message], variables: Mapping[str, Any]) -> str:
        plain = _without_calls(messages)
        others = {name: each for name, each in variables.items() if name != "tools"}
        tools = variables.get("tools")
        if not tools:
            return render(plain, others)
        functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        told = TOLD.format(functions=functions)
        try:
            text = render(_told_by_the_system(plain, told), others)
            if functions in text:
                return text
        except HybridgeError:  # there is no system turn in some templates; others leave it out
            pass
        return render(_told_by_the_user(plain, told), others)

    return rendered


def _told_by_the_system(messages: Sequence[Message], told: str) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        return [{**first, "content": f"{first['content']}\n\n{told}".lstrip()}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def _told_by_the_user(messages: Sequence[Message], told: str) -> list[Message]:
    at = next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)
    return [
        {**message, "content": f"{told}\n\n{message['content']}"} if i == at else message for i, message in enumerate(messages)
    ]


def _without_calls(messages: Sequence[Message]) -> list[Message]:
    """Return messages with calls as an assistant's text, and results as a user's: those in a row are one message."""
    plain: list[Message] = []
    results = False
    for message in messages:
        if message["role"] == "tool":
            said = f"<tool_response>\n{message['content']}\n</tool_response>"
            if results:
                plain[-1] = {**plain[-1], "content": f"{plain[-1]['content']}\n{said}"}
            else:
                plain.append({"role": "user", "content": said})
            results = True
            continue
        if results and message["role"] == "user":
            plain[-1] = {**message, "content": f"{plain[-1]['content']}\n{message['content']}"}
        else:
            plain.append(_in_text(message))
        results = False
    return plain


def _in_text(message: Message) -> Message:
    """Return a message with its calls as text."""
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message.get("tool_calls") or ()
    ]
    content = "\n".join([*([message["content"]] if message["content"] else []), *calls])
    return {**{name: each for name, each in message.items() if name != "tool_calls"}, "content": content}
