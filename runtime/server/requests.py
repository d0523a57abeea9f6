"""Validate the bodies of requests: chats and completions of OpenAI's API.

Each field of the API is one of a request here, or in IGNORED or REFUSED. Others are ignored, unless the server is strict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hybridge.errors import CapacityError, HybridgeError, UsageError
from hybridge.runtime.binding.sampling import Sampling

MOST_PICTURES = 64
"""Most pictures of a request."""
LONGEST_STOP = 256
"""Most characters of a stop string."""

Text = Annotated[str, Field(max_length=8 << 20)]
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
MOST_CHOICES = 128
"""Most texts of a request: its prompts times ``n``."""
IGNORED = frozenset({
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("prompt_cache_options", "verbosity", "prediction", "moderation", "include", "max_tool_calls", "top_logprobs"),
    *("context_management", "access_programs", "background_options", "image"),
    *("cache_control", "container", "inference_geo", "user_profile_id"),
})  # fmt: skip
"""Fields of OpenAI's and Anthropic's requests that do nothing here; docs/serving.md has them."""
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",), "modalities": (["text"],), "functions": ([],), "function_call": ("none", "auto"), "background": (False,),
    "web_search_options": (), "audio": (), "conversation": (), "prompt": (),
}  # fmt: skip
"""Fields that are not supported and would change the answer, with the values that do not; null never does."""


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
    """Fields that all kinds of requests have; the server's default holds for null. ``Sampling`` checks those of sampling.

    stop_after_reasoning: stop strings end an answer, but not the reasoning before it.
    token_origins: report in each chunk of a stream who proposed its tokens, which OpenAI does not have.
    """

    model_config = ConfigDict(extra="allow")
    model: Annotated[str, Field(max_length=255)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int | None, BeforeValidator(lambda value: 0 if value == -1 else value)] = None
    min_p: float | None = None
    top_n_sigma: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    logit_bias: Annotated[dict[int, float], Field(max_length=1024)] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    response_format: RequestedFormat | None = None
    token_origins: bool | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stop_after_reasoning: bool | None = None

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
    def ignored(self) -> list[str]:
        """Return the fields that do nothing here, unless they are null."""
        return sorted(name for name, value in (self.model_extra or {}).items() if value is not None and name not in REFUSED)

    def sampling(self, default: Sampling, choice: int = 0) -> Sampling:
        """Return how a text is sampled. choice: its number among those to the same prompt, each of which has a seed of its own.

        Raises ApiError for values that make no distribution.
        """
        given = {name: value for name in SAMPLED if (value := getattr(self, name)) is not None}
        if self.seed is not None:
            given["seed"] = self.seed + choice
        try:
            return replace(default, **given)
        except UsageError as error:  # it begins with the field's name
            name = str(error).partition(" ")[0]
            raise invalid(str(error), name if name in given else None) from None

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings, in the reasoning too unless ``stop_after_reasoning``."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


Request = TypeVar("Request", bound=GenerationRequest)
SAMPLED = [each.name for each in fields(Sampling) if each.name in GenerationRequest.model_fields]
"""Fields of a request that ``Sampling`` has under the same names."""


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
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None

    @property
    def most_tokens(self) -> int | None:
        """Return the most new tokens, if the request says so."""
        return self.max_completion_tokens or self.max_tokens

    def variables(self, thinking_switch: str) -> dict[str, Any]:
        """Return variables of the chat template. thinking_switch: the one that switches thinking, or ""."""
        effort = self.reasoning_effort
        found: dict[str, Any] = {"tools": self.offered} if self.offered else {}
        if effort is not None and thinking_switch:
            found[thinking_switch] = effort not in ("none", "minimal")
        if effort is not None and effort != "none":
            found["reasoning_effort"] = {"minimal": "low", "xhigh": "high"}.get(effort, effort)
        return {**found, **(self.chat_template_kwargs or {})}

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
        return self.parallel_tool_calls is not False and not isinstance(self.tool_choice, ChosenTool)


Tokens = Annotated[list[int], Field(min_length=1)]


class CompletionRequest(GenerationRequest):
    """The body of ``/v1/completions``. prompt: a text or token ids, or a list of them. echo: the text begins with the prompt.

    best_of: only as many as ``n``: texts are not compared here.
    """

    prompt: Text | Tokens | Annotated[list[Text] | list[Tokens], Field(min_length=1, max_length=MOST_CHOICES)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: int | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.best_of not in (None, self.n or 1):
            raise ValueError("best_of is not supported beyond n: texts are not compared here; leave it out")
        if self.echo and self.logprobs is not None and self.stream:
            raise ValueError("echo with logprobs is not streamed; leave stream out")
        if len(self.prompts) * (self.n or 1) > MOST_CHOICES:
            raise ValueError(
                f"there are {len(self.prompts)} prompts with n = {self.n}, but at most {MOST_CHOICES} texts may come"
            )
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return the prompts."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class TokenizeRequest(GenerationRequest):
    """The body of ``/tokenize``: content, add_special, with_pieces, as llama.cpp has it; prompt, add_special_tokens of vLLM."""

    content: Text | None = None
    prompt: Text | None = None
    add_special: bool = False
    add_special_tokens: bool = True
    with_pieces: bool = False


class DetokenizeRequest(GenerationRequest):
    """The body of ``/detokenize``."""

    tokens: Annotated[list[int], Field(max_length=1 << 20)]


def parse(kind: type[Request], body: bytes, strict: bool = False) -> Request:
    """Parse the body of a request. strict: refuse unknown fields. Raises ApiError."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        first = max(error.errors(), key=lambda each: len(each["loc"]))  # of alternative types the one that fitted deepest
        where = ".".join(part for part in map(str, first["loc"]) if "[" not in part)[:200]  # without names of types
        said = first["msg"].removeprefix("Value error, ")
        raise invalid(f"{where}: {said}" if where else f"the body cannot be used: {said}", where or None) from None
    for name, value in (request.model_extra or {}).items():
        if value is None or name in IGNORED:
            continue
        if name in REFUSED and value not in REFUSED[name]:
            raise invalid(f"{name} is not supported with this value; leave it out.", name[:64], "unsupported_parameter")
        if name not in REFUSED and strict:
            raise invalid(f"there is no field {name[:64]}; leave it out.", name[:64], "unknown_parameter")
    return request
