"""The fields of a request that are read, each checked; what would change the text and is not supported is refused by name."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hybridge.cache.errors import CapacityError, HybridgeError

LONGEST_STOP = 256
"""Characters of a stop string."""

Text = Annotated[str, Field(max_length=8 << 20)]
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
IGNORED = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("parallel_tool_calls", "verbosity"),
}
"""Fields that do not change a text here."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "suffix": ("",), "frequency_penalty": (0,), "presence_penalty": (0,),
    "logit_bias": ({},), "modalities": (["text"],), "functions": ([],),
    "function_call": ("none", "auto"), "web_search_options": (), "audio": (),
    "prediction": (), "truncation": ("disabled",), "include": ([],), "background": (False,), "reasoning": ({},),
}  # fmt: skip
"""Fields that would change a text, and are not supported, with the values that leave it as it is; so does null."""


class Part(BaseModel):
    """A part of a message's content; text is the only kind."""

    model_config = ConfigDict(extra="ignore")
    type: Literal["text"]
    text: Text


class CalledFunction(BaseModel):
    """What was called. arguments: JSON, as it was given out."""

    model_config = ConfigDict(extra="ignore")
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: Text


class PastCall(BaseModel):
    """A call of a tool in an earlier message of the assistant."""

    model_config = ConfigDict(extra="ignore")
    id: Annotated[str, Field(max_length=256)] | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Return the call as chat templates expect it: with its arguments as an object, where they are one."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = self.function.arguments
        function = {"name": self.function.name, "arguments": arguments}
        return {**({"id": self.id} if self.id else {}), "type": "function", "function": function}


class ChatMessage(BaseModel):
    """A message. Other fields than these go to the model's chat template as they are."""

    model_config = ConfigDict(extra="allow")
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Text | Annotated[list[Part], Field(max_length=1024)] | None = None
    tool_calls: Annotated[list[PastCall], Field(max_length=256)] | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates expect it: its parts as one text."""
        content = "".join(part.text for part in self.content) if isinstance(self.content, list) else self.content
        role = "system" if self.role == "developer" else self.role
        calls = {"tool_calls": [call.for_template() for call in self.tool_calls]} if self.tool_calls else {}
        return {**(self.model_extra or {}), "role": role, "content": content or "", **calls}


class StreamOptions(BaseModel):
    """include_usage: a last chunk says what was counted."""

    model_config = ConfigDict(extra="ignore")
    include_usage: bool = False


class NamedSchema(BaseModel):
    """A JSON schema and what OpenAI's clients say of it; it is always followed, strict or not."""

    model_config = ConfigDict(extra="ignore")
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(BaseModel):
    """What an answer looks like. regex: the pattern that the whole of it matches, which OpenAI has not."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: NamedSchema | None = None
    regex: Annotated[str, Field(max_length=1 << 16)] | None = None


class Function(BaseModel):
    """What a tool is. parameters: a JSON schema of its arguments; strict: false takes any where no grammar can say it."""

    model_config = ConfigDict(extra="ignore")
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[bool | None, Field(exclude=True)] = None


class Tool(BaseModel):
    """A tool that the model may call."""

    model_config = ConfigDict(extra="ignore")
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it."""
        return self.model_dump(exclude_none=True)


class ChosenFunction(BaseModel):
    """The name of a tool."""

    model_config = ConfigDict(extra="ignore")
    name: str


class ChosenTool(BaseModel):
    """The tool that must be called."""

    model_config = ConfigDict(extra="ignore")
    type: Literal["function"]
    function: ChosenFunction


class GenerationRequest(BaseModel):
    """Fields that both kinds of requests have. Where one is null or left out, the server's default holds.

    token_origins: say in each chunk of a stream where its tokens come from, which OpenAI has not.
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
    response_format: ResponseFormat | None = None
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
    def is_structured(self) -> bool:
        """Return whether the answer must have a form."""
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def includes_usage(self) -> bool:
        """Return whether a stream ends with what was counted."""
        return self.stream_options is not None and self.stream_options.include_usage


Request = TypeVar("Request", bound=GenerationRequest)


class ChatRequest(GenerationRequest):
    """The body of ``/v1/chat/completions``. chat_template_kwargs: variables of the chat template."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[Tool], Field(max_length=256)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None

    @property
    def offered(self) -> list[dict[str, Any]]:
        """Return the tools that the model is told of."""
        return [] if self.tool_choice == "none" else [tool.for_template() for tool in self.tools or ()]

    @property
    def required(self) -> list[Function]:
        """Return the tools of which one must be called; none where the model may also say something."""
        functions = [tool.function for tool in self.tools or ()]
        if isinstance(self.tool_choice, ChosenTool):
            return [each for each in functions if each.name == self.tool_choice.function.name]
        return functions if self.tool_choice == "required" else []

    @property
    def optional(self) -> list[Function]:
        """Return the tools of which any may be called."""
        return [tool.function for tool in self.tools or ()] if self.tool_choice in (None, "auto") else []


class CompletionRequest(GenerationRequest):
    """The body of ``/v1/completions``. prompt: a text, or token ids."""

    prompt: Text | Annotated[list[int], Field(min_length=1)] | Annotated[list[Text], Field(min_length=1, max_length=1)]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


def parse(kind: type[Request], body: bytes) -> Request:
    """Return the request that ``body`` is. Raises ApiError."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        first = max(error.errors(), key=lambda each: len(each["loc"]))  # of a choice of types the one that came furthest
        where = ".".join(str(part) for part in first["loc"])[:200]
        raise invalid(
            f"{where}: {first['msg']}" if where else f"the body is no JSON object: {first['msg']}", where or None
        ) from None
    for name, value in (request.model_extra or {}).items():
        check_extra(name, value)
    return request


def check_extra(name: str, value: Any) -> None:
    """Raises ApiError for a field that is not supported, unless its value changes nothing."""
    if name in IGNORED or value is None or (name in NEUTRAL and value in NEUTRAL[name]):
        return
    if name in NEUTRAL:
        raise invalid(f"{name} is not supported with this value; leave it out.", name[:64], "unsupported_parameter")
    raise invalid(f"there is no field {name[:64]}; leave it out.", name[:64], "unknown_parameter")


# Errors as OpenAI's clients expect them: a status, and JSON that says what was wrong.


class ApiError(Exception):
    """A request that cannot be answered. kind: such as ``invalid_request_error``; param: the field that is wrong."""

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
    """Return the error of a request that asks for what cannot be."""
    return ApiError(400, message, param=param, code=code)


def of_hybridge(error: HybridgeError) -> ApiError:
    """Return what a client is told of an error of ours: a caller's mistake, or ours."""
    if isinstance(error, CapacityError):
        return invalid(str(error), "messages", "context_length_exceeded")
    if error.exit_code == 2:
        return invalid(str(error))
    return ApiError(500, str(error), "server_error")
