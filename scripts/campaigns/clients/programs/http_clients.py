"""Ask a server by one of the packages that people use: ``http_clients.py NAME URL MODEL`` prints what the client got, as JSON.

Each client asks for the greedy answer to QUESTION, whole and as a stream, and for an answer of the form of ``Place``, by a
tool or a schema, as the package does it. This program imports nothing of hybridge.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypedDict
from urllib.parse import urlsplit

from pydantic import BaseModel

QUESTION, PLACE = "Name three colours.", "The weather in Ulm, please."
MOST = 24
KEY = "none"


class Place(BaseModel):
    """A place whose weather is asked for: one of a few, so that a small model does not write on without end."""

    place: Literal["Ulm", "Rome"]


class Got(TypedDict):
    """What a client got: two texts, and the fields of a Place."""

    text: str
    streamed: str
    place: dict[str, Any]


SCHEMA = Place.model_json_schema()
FUNCTION = {"type": "function", "function": {"name": "weather", "description": "Look up the weather.", "parameters": SCHEMA}}


def user(text: str) -> list[Any]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": text}]


def of_openai(url: str, model: str) -> Got:
    """Ask by OpenAI's package."""
    from openai import OpenAI

    chats = OpenAI(base_url=f"{url}/v1", api_key=KEY).chat.completions
    whole: Any = chats.create(model=model, messages=user(QUESTION), max_tokens=MOST, temperature=0)
    stream: Any = chats.create(model=model, messages=user(QUESTION), max_tokens=MOST, temperature=0, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    called: Any = chats.create(model=model, messages=user(PLACE), tools=[FUNCTION], tool_choice="required", temperature=0)
    arguments = called.choices[0].message.tool_calls[0].function.arguments
    return {"text": whole.choices[0].message.content, "streamed": streamed, "place": json.loads(arguments)}


def of_anthropic(url: str, model: str) -> Got:
    """Ask by Anthropic's package."""
    from anthropic import Anthropic

    messages: Any = Anthropic(base_url=url, api_key=KEY).messages
    whole = messages.create(model=model, messages=user(QUESTION), max_tokens=MOST, extra_body={"temperature": 0})
    with messages.stream(model=model, messages=user(QUESTION), max_tokens=MOST, extra_body={"temperature": 0}) as stream:
        streamed = "".join(stream.text_stream)
    tool = {"name": "weather", "description": "Look up the weather.", "input_schema": SCHEMA}
    called = messages.create(
        model=model, messages=user(PLACE), max_tokens=200, tools=[tool], tool_choice={"type": "tool", "name": "weather"}
    )
    return {"text": whole.content[0].text, "streamed": streamed, "place": called.content[0].input}


def of_litellm(url: str, model: str) -> Got:
    """Ask by litellm."""
    import litellm

    same: dict[str, Any] = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": KEY, "temperature": 0}
    whole: Any = litellm.completion(messages=user(QUESTION), max_tokens=MOST, **same)
    stream: Any = litellm.completion(messages=user(QUESTION), max_tokens=MOST, stream=True, **same)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    called: Any = litellm.completion(messages=user(PLACE), tools=[FUNCTION], tool_choice="required", **same)
    arguments = called.choices[0].message.tool_calls[0].function.arguments
    return {"text": whole.choices[0].message.content, "streamed": streamed, "place": json.loads(arguments)}


def of_langchain(url: str, model: str) -> Got:
    """Ask by langchain-openai."""
    from langchain_openai import ChatOpenAI

    chat: Any = ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model=model, temperature=0, max_tokens=MOST)  # type: ignore[arg-type]
    place: Any = ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model=model, temperature=0)  # type: ignore[arg-type]
    called = place.bind_tools([FUNCTION], tool_choice="required").invoke(PLACE)
    streamed = "".join(chunk.content for chunk in chat.stream(QUESTION))
    return {"text": chat.invoke(QUESTION).content, "streamed": streamed, "place": called.tool_calls[0]["args"]}


def of_instructor(url: str, model: str) -> Got:
    """Ask by instructor."""
    import instructor
    from openai import OpenAI

    chats: Any = instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key=KEY)).chat.completions
    same: dict[str, Any] = {"model": model, "temperature": 0}
    whole = chats.create(messages=user(QUESTION), max_tokens=MOST, response_model=None, **same)
    stream = chats.create(messages=user(QUESTION), max_tokens=MOST, response_model=None, stream=True, **same)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    place = chats.create(messages=user(PLACE), response_model=Place, max_retries=0, **same)
    return {"text": whole.choices[0].message.content, "streamed": streamed, "place": place.model_dump()}


def of_pydantic_ai(url: str, model: str) -> Got:
    """Ask by pydantic-ai."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    chat = OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))
    speaker = Agent(chat, model_settings={"temperature": 0, "max_tokens": MOST})
    streamed = "".join(speaker.run_stream_sync(QUESTION).stream_text(delta=True))
    place = Agent(chat, output_type=Place, model_settings={"temperature": 0}).run_sync(PLACE).output
    return {"text": speaker.run_sync(QUESTION).output, "streamed": streamed, "place": place.model_dump()}


def of_editor(url: str, model: str) -> Got:
    """Send the requests that Zed's source (crates/open_ai, November 2026) builds; its answers are streams."""

    def sent(messages: list[Any], **options: Any) -> Iterator[dict[str, Any]]:
        body = {
            "model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
            "prompt_cache_key": "a thread", **options,
        }  # fmt: skip
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(response.read().decode())
        for line in response:
            if line.startswith(b"data: {"):
                yield from (each["delta"] for each in json.loads(line[6:])["choices"])
        connection.close()

    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    text, streamed = (
        "".join(delta.get("content") or "" for delta in sent(messages, max_completion_tokens=MOST))
        for messages in (user(QUESTION), parts)
    )
    calling = {"tools": [FUNCTION], "parallel_tool_calls": False}
    deltas = sent(user(PLACE), **calling, tool_choice="required")
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    name, arguments = calls[0]["function"]["name"], "".join(call["function"]["arguments"] for call in calls)
    said = {"role": "assistant", "content": None, "tool_calls": [
        {"id": calls[0]["id"], "type": "function", "function": {"name": name, "arguments": arguments}},
    ]}  # fmt: skip
    result = {"role": "tool", "content": "sunny", "tool_call_id": calls[0]["id"]}
    answer = list(sent([*user(PLACE), said, result], **calling, tool_choice="none", max_completion_tokens=MOST))
    if not any(delta.get("content") for delta in answer):
        raise RuntimeError("there is no answer to the result of a call")
    return {"text": text, "streamed": streamed, "place": json.loads(arguments)}


CLIENTS: dict[str, Callable[[str, str], Got]] = {
    "openai": of_openai, "anthropic": of_anthropic, "litellm": of_litellm, "langchain": of_langchain,
    "instructor": of_instructor, "pydantic-ai": of_pydantic_ai, "editor": of_editor,
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(CLIENTS[sys.argv[1]](sys.argv[2], sys.argv[3])))
