"""Validate the bodies of requests: chats, completions and responses of OpenAI's API.

A field that would change the text and is not supported is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from hybridge.errors import CapacityError, HybridgeError

MOST_PICTURES = 64
"""Most pictures of a request."""
LONGEST_STOP = 256
"""Most characters of a stop string."""

Text = Annotated[str, Field(max_length=8 << 20)]
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
IGNORED = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    "verbosity",
}
"""Fields that do not change the text here."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "suffix": ("",), "frequency_penalty": (0,), "presence_penalty": (0,),
    "logit_bias": ({},), "modalities": (["text"],), "functions": ([],),
    "function_call": ("none", "auto"), "web_search_options": (), "audio": (),
    "prediction": (), "truncation": ("disabled",), "include": ([],), "background": (False,), "reasoning": ({},),
}  # fmt: skip
"""Unsupported fields that would change the text, with the values that do not; null never does."""
SAME_IN_RESPONSES = (
    *("model", "stream", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop"),
    *("chat_template_kwargs", "parallel_tool_calls", "truncation"),
)
"""Fields of responses that a chat has under the same name."""

ELSEWHERE = {"response_format": "text.format", "max_tokens": "max_output_tokens", "token_origins": "not supported"}
"""Fields of a chat, with their names in responses."""


class ApiError(Exception):
    """An error as OpenAI's clients expect it. kind: such as ``invalid_request_error``. param: the field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the response."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error of an invalid request."""
    return ApiError(400, message, param=param, code=code)


def of_hybridge(error: HybridgeError) -> ApiError:
    """Return a client's view of an error of hybridge: status 400 for a caller's mistake, or else 500."""
    if isinstance(error, CapacityError):
        return invalid(str(error), "messages", "context_length_exceeded")
    if error.exit_code == 2:
        return invalid(str(error))
    return ApiError(500, str(error), "server_error")


class Lenient(BaseModel):
    """Base of what ignores unknown fields."""

    model_config = ConfigDict(extra="ignore")


class TextContent(Lenient):
    """A text in a message's content."""

    type: Literal["text"]
    text: Text

    def for_template(self) -> dict[str, Any]:
        """Return the part as chat templates expect it."""
        return {"type": "text", "text": self.text}


class ImageUrl(Lenient):
    """The data of a picture, as a ``data:`` URL."""

    url: Annotated[str, Field(max_length=90 << 20)]


class ImageContent(Lenient):
    """A picture in a message's content."""

    type: Literal["image_url"]
    image_url: ImageUrl

    def for_template(self) -> dict[str, Any]:
        """Return the part as chat templates expect it: a place for the picture."""
        return {"type": "image"}


ContentPart = Annotated[TextContent | ImageContent, Field(discriminator="type")]


def _check_object(text: str) -> str:
    """Return the text of a JSON object. Raises ValueError for any other text."""
    try:
        is_object = isinstance(json.loads(text or "{}"), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ValueError("it must be the text of a JSON object, such as {}")
    return text or "{}"


Arguments = Annotated[Text, AfterValidator(_check_object)]


class CalledFunction(Lenient):
    """The function of a call. arguments: the text of a JSON object."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: Arguments


class PastCall(Lenient):
    """A call of a tool in an earlier message of the assistant."""

    id: Annotated[str, Field(max_length=256)] | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Return the call as chat templates expect it, with its arguments as an object."""
        function = {"name": self.function.name, "arguments": json.loads(self.function.arguments)}
        return {**({"id": self.id} if self.id else {}), "type": "function", "function": function}


class ChatMessage(Lenient):
    """A message. Further fields go to the model's chat template unchanged."""

    model_config = ConfigDict(extra="allow")
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Text | Annotated[list[ContentPart], Field(max_length=1024)] | None = None
    tool_calls: Annotated[list[PastCall], Field(max_length=256)] | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates expect it: its texts joined, unless there are pictures among them."""
        content: Any = self.content
        if isinstance(self.content, list):
            texts = [part.text for part in self.content if isinstance(part, TextContent)]
            content = [part.for_template() for part in self.content] if self.pictures else "".join(texts)
        role = "system" if self.role == "developer" else self.role
        calls = {"tool_calls": [call.for_template() for call in self.tool_calls]} if self.tool_calls else {}
        return {**(self.model_extra or {}), "role": role, "content": content or "", **calls}

    @property
    def pictures(self) -> list[str]:
        """Return the URLs of its pictures, in order."""
        parts = self.content if isinstance(self.content, list) else []
        return [part.image_url.url for part in parts if isinstance(part, ImageContent)]


class StreamOptions(BaseModel):
    """Options of a stream. include_usage: count tokens in a last chunk."""

    include_usage: bool = False


class NamedSchema(Lenient):
    """A JSON schema with the fields of OpenAI's clients; it is always followed, strict or not."""

    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class RequestedFormat(Lenient):
    """The format of an answer. regex: a pattern for the whole answer, which OpenAI does not have."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: NamedSchema | None = None
    regex: Annotated[str, Field(max_length=1 << 16)] | None = None


class Function(BaseModel):
    """A function that is a tool. parameters: JSON schema. strict: False allows any arguments if no grammar can express it."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[bool | None, Field(exclude=True)] = None


class Tool(Lenient):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it."""
        return self.model_dump(exclude_none=True)


class ChosenFunction(Lenient):
    """The name of a tool."""

    name: str


class ChosenTool(Lenient):
    """The tool that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class GenerationRequest(BaseModel):
    """Fields that all kinds of requests have; the server's default holds for null.

    token_origins: report in each chunk of a stream who proposed its tokens, which OpenAI does not have.
    """

    model_config = ConfigDict(extra="allow")
    model: Annotated[str, Field(max_length=255)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    seed: int | None = None
    response_format: RequestedFormat | None = None
    token_origins: bool | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None

    @property
    def required(self) -> list[Function]:
        """Return the tools of which one must be called."""
        return []

    @property
    def optional(self) -> list[Function]:
        """Return the tools of which any may be called."""
        return []

    @property
    def is_parallel(self) -> bool:
        """Return whether there may be several calls."""
        return True

    @property
    def is_structured(self) -> bool:
        """Return whether the answer must have a format."""
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


Request = TypeVar("Request", bound=GenerationRequest)


class ChatRequest(GenerationRequest):
    """The body of ``/v1/chat/completions``.

    chat_template_kwargs: variables of the chat template. truncation: auto drops the oldest messages of a conversation that
    leaves no room for an answer, as in responses; OpenAI's chats do not have it.
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[Tool], Field(max_length=256)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def offered(self) -> list[dict[str, Any]]:
        """Return the tools that the prompt describes to the model."""
        return [] if self.tool_choice == "none" else [tool.for_template() for tool in self.tools or ()]

    @property
    def required(self) -> list[Function]:
        """Return the tools of which one must be called; none if the model may also answer in words."""
        functions = [tool.function for tool in self.tools or ()]
        if isinstance(self.tool_choice, ChosenTool):
            return [each for each in functions if each.name == self.tool_choice.function.name]
        return functions if self.tool_choice == "required" else []

    @property
    def optional(self) -> list[Function]:
        """Return the tools of which any may be called."""
        return [tool.function for tool in self.tools or ()] if self.tool_choice in (None, "auto") else []

    @property
    def is_parallel(self) -> bool:
        return self.parallel_tool_calls is not False


class CompletionRequest(GenerationRequest):
    """The body of ``/v1/completions``. prompt: a text, or token ids."""

    prompt: Text | Annotated[list[int], Field(min_length=1)] | Annotated[list[Text], Field(min_length=1, max_length=1)]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


def parse(kind: type[Request], body: bytes) -> Request:
    """Parse the body of a request. Raises ApiError."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        first = max(error.errors(), key=lambda each: len(each["loc"]))  # of alternative types the one that fitted deepest
        where = ".".join(part for part in map(str, first["loc"]) if "[" not in part)[:200]  # without names of types
        said = first["msg"].removeprefix("Value error, ")
        raise invalid(f"{where}: {said}" if where else f"the body is no JSON object: {said}", where or None) from None
    for name, value in (request.model_extra or {}).items():
        check_extra(name, value)
    return request


def check_extra(name: str, value: Any) -> None:
    """Raise ApiError for a field that is not supported, unless its value changes nothing."""
    if name in IGNORED or value is None or (name in NEUTRAL and value in NEUTRAL[name]):
        return
    if name in NEUTRAL:
        raise invalid(f"{name} is not supported with this value; leave it out.", name[:64], "unsupported_parameter")
    raise invalid(f"there is no field {name[:64]}; leave it out.", name[:64], "unknown_parameter")


# ``/v1/responses``: the same as a chat, in other words


class TextPart(Lenient):
    """A text in a content."""

    type: Literal["input_text", "output_text", "text", "reasoning_text"]
    text: Text


class ImagePart(Lenient):
    """A picture in a content, as a ``data:`` URL."""

    type: Literal["input_image"]
    image_url: Annotated[str, Field(max_length=90 << 20)]


Content = Text | Annotated[list[TextPart], Field(max_length=1024)]


class MessageItem(Lenient):
    """A message."""

    type: Literal["message"] = "message"
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Text | Annotated[list[Annotated[TextPart | ImagePart, Field(discriminator="type")]], Field(max_length=1024)]


class CallItem(Lenient):
    """A call that the model made. arguments: the text of a JSON object."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(max_length=256)]
    name: str
    arguments: Arguments


class OutputItem(Lenient):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=256)]
    output: Content


class ReasoningItem(Lenient):
    """Reasoning of the model before the items after it."""

    type: Literal["reasoning"]
    content: Annotated[list[TextPart], Field(max_length=1024)] | None = None


def _type_of(item: Any) -> str:
    """Return the type of an item, which a message may leave out."""
    return str(item.get("type", "message")) if isinstance(item, dict) else str(getattr(item, "type", ""))


ITEM_TYPE = Discriminator(
    _type_of, custom_error_type="item_type",
    custom_error_message="an item's type is message, function_call, function_call_output or reasoning",
)  # fmt: skip
Item = (
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
)


class FunctionTool(Lenient):
    """A tool that the model may call. parameters: a JSON schema."""

    type: Literal["function"]
    name: str
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def for_chat(self) -> dict[str, Any]:
        """Return it in the form of a chat request."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class NamedTool(Lenient):
    """The tool that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(Lenient):
    """The format of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None

    def for_chat(self) -> dict[str, Any]:
        """Return it in the form of a chat request."""
        named = {"json_schema": {"name": "answer", "schema": self.json_schema}} if self.json_schema is not None else {}
        return {"type": self.type, **named}


class TextOptions(Lenient):
    """Options of the answer's text."""

    format: TextFormat | None = None


class ResponsesRequest(GenerationRequest):
    """The body of ``/v1/responses``. Nothing is stored: clients send the whole conversation, of which new text is read."""

    input: Text | Annotated[list[Annotated[Item, ITEM_TYPE]], Field(min_length=1, max_length=4096)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=256)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None

    def for_chat(self) -> ChatRequest:
        """Return the equivalent chat. Raises ApiError."""
        if self.previous_response_id is not None:
            raise invalid("responses are not stored here: send the conversation's items again.", "previous_response_id")
        for name in ("response_format", "max_tokens", "token_origins"):
            if getattr(self, name) is not None:
                raise invalid(f"{name} is a field of chats; here it is {ELSEWHERE[name]}.", name, "unknown_parameter")
        chosen = self.tool_choice
        body = {
            **{name: getattr(self, name) for name in SAME_IN_RESPONSES},
            "messages": list(self._messages()),
            "max_tokens": self.max_output_tokens,
            "tools": [tool.for_chat() for tool in self.tools or ()] or None,
            "tool_choice": {"type": "function", "function": {"name": chosen.name}} if isinstance(chosen, NamedTool) else chosen,
            "response_format": self.text.format.for_chat() if self.text is not None and self.text.format is not None else None,
        }
        return parse(ChatRequest, json.dumps(body).encode())

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Yield messages: reasoning, text and calls of the model in a row are one message."""
        if self.instructions is not None:
            yield {"role": "system", "content": self.instructions}
        spoken: dict[str, Any] = {}
        for item in self.input if not isinstance(self.input, str) else [MessageItem(role="user", content=self.input)]:
            is_models = isinstance(item, CallItem | ReasoningItem) or (
                isinstance(item, MessageItem) and item.role == "assistant"
            )
            if not is_models or ("tool_calls" in spoken and not isinstance(item, CallItem)):
                yield from [spoken] if spoken else []
                spoken = {}
            match item:
                case MessageItem(role="assistant"):
                    spoken = {**_spoken(spoken), "content": spoken.get("content", "") + _text(item.content)}
                case MessageItem():
                    yield {"role": item.role, "content": _content(item.content)}
                case ReasoningItem():
                    spoken = {**_spoken(spoken), "reasoning_content": _text(item.content or [])}
                case CallItem():
                    call = {"id": item.call_id, "type": "function", "function": item.model_dump(include={"name", "arguments"})}
                    spoken = {**_spoken(spoken), "tool_calls": [*spoken.get("tool_calls", []), call]}
                case OutputItem():
                    yield {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
        yield from [spoken] if spoken else []


def _spoken(message: dict[str, Any]) -> dict[str, Any]:
    return message or {"role": "assistant", "content": ""}


def _text(content: str | Sequence[TextPart | ImagePart]) -> str:
    """Return the text of a content. Raises ApiError for a picture, which only a message to the model may have."""
    if isinstance(content, str):
        return content
    if any(isinstance(part, ImagePart) for part in content):
        raise invalid("a picture is in a part of the conversation that cannot have one; put it into a user's message.", "input")
    return "".join(part.text for part in content if isinstance(part, TextPart))


def _content(content: str | Sequence[TextPart | ImagePart]) -> str | list[dict[str, Any]]:
    """Return a content in the form of a chat's."""
    if isinstance(content, str) or not any(isinstance(part, ImagePart) for part in content):
        return _text(content)
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image_url", "image_url": {"url": part.image_url}}
        for part in content
    ]
