"""Render an artifact's chat template as transformers does: in Jinja's sandbox, and in a process of its own."""

from __future__ import annotations

import atexit
import json
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from jinja2 import Environment, TemplateSyntaxError

from hybridge.cache.errors import UsageError
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.artifacts.options import PictureDescription
from hybridge.runtime.artifacts.tokenizer import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, special_tokens
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.text.answers import AnswerFormat, AnswerSplitter, answer_format, decoder_of, unsplit

Message = dict[str, Any]
Render = Callable[[list[Message]], str]
"""Returns the text of a conversation by its chat template, up to where the assistant is to speak."""
RESERVED = frozenset(
    {
        *("messages", "conversations", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "return_assistant_tokens_mask"),
    }
)
"""Variables that rendering a conversation sets itself."""
SWITCHES = ("enable_thinking", "thinking")
"""Variables that switch thinking: Qwen, GLM, SmolLM and Nemotron read the first; Granite, DeepSeek and Kimi the second."""
PROGRAM = Path(__file__).with_name("template_program.py")
SECONDS = 5
"""Longest time to render; a template of a real model takes a thousandth."""
MEMORY = 512 << 20
"""Most bytes of memory, besides 32 for each byte of the request."""
CHARACTERS = 16 << 20
"""Most characters of the text, besides 4 for each byte of the request."""
DEFAULT, TOOL_USE = "default", "tool_use"
TEMPLATE_FILE, SUFFIX = "chat_template", ".jinja"


def load_template(artifact: Artifact, variables: Mapping[str, Any] | None = None, thinking: bool | None = None) -> Render:
    """Return a function that renders conversations for the artifact's model.

    Args:
        artifact: has the chat template and the special tokens.
        variables: further variables of the template, by name.
        thinking: switches thinking on or off by the template's own switch; None leaves the default.

    Raises:
        UsageError: there is no chat template, or only named ones without a default, or no switch for thinking.
    """
    return ChatTemplates.of(artifact, artifact.manifest.pictures).with_variables(variables or {}, thinking)


class Files(Protocol):
    """A folder of files, such as an artifact, or what an export has written of one."""

    @property
    def folder(self) -> Path: ...
    @property
    def names(self) -> Collection[str]: ...
    def read(self, name: str) -> bytes: ...


@dataclass(frozen=True)
class ChatTemplates:
    """The chat templates of an artifact by name, read once, and its special tokens."""

    folder: Path
    texts: Mapping[str, str]
    special: Mapping[str, Any]

    @classmethod
    def of(cls, artifact: Files, pictures: PictureDescription | None = None) -> ChatTemplates:
        """Read the chat templates of an artifact. Raises UsageError for a file that is not JSON.

        pictures: that it takes. If empty lines are around them in a text, the templates write these, as the processor of such
        a model does in transformers.
        """
        special = special_tokens(_json(artifact, TOKENIZER_CONFIG), _json(artifact, SPECIAL_TOKENS_MAP))
        place = pictures.form.place if pictures is not None else ""

        def with_lines(texts: Mapping[str, str]) -> dict[str, str]:
            return {name: text.replace(place, f"\n\n{place}\n\n") if place else text for name, text in texts.items()}

        return cls(artifact.folder, with_lines(_templates(artifact)), with_lines(special))

    def with_variables(self, variables: Mapping[str, Any], thinking: bool | None = None, now: str | None = None) -> Render:
        """Return a function that renders conversations with ``variables``; see ``load_template``.

        now: the date and time that templates see, in ISO's format, instead of the system's; or a text with ``{format}`` for
        every date.
        """
        template = self.chosen(tools=variables.get("tools") is not None)
        every = {**self.special, **variables, **thinking_variables(template, thinking, variables)}
        return lambda messages: render(template, messages, every, now)

    def chosen(self, *, tools: bool) -> str:
        """Return the template for tools if ``tools`` and the model has one, or else the default. Raises UsageError."""
        if not self.texts:
            raise UsageError(
                f"{self.folder} has no chat template, so its model was not made to chat; use 'hybridge run' to continue a text."
            )
        name = TOOL_USE if tools and TOOL_USE in self.texts else DEFAULT
        if name not in self.texts:
            raise UsageError(
                f"{self.folder} has chat templates for {', '.join(sorted(self.texts))} and no default one: put the one that "
                "you mean into the checkpoint as chat_template.jinja, and export it again."
            )
        return self.texts[name]


def answer_format_of(artifact: Files, tokenizer: Tokenizer) -> AnswerFormat | None:
    """Return the format of the model's calls and reasoning; None if it is unknown."""
    own = _json(artifact, TOKENIZER_CONFIG).get("response_template")
    return answer_format(own, "\n".join(_templates(artifact).values()), tokenizer)


def reasoning_parser(artifact: Artifact, tokenizer: Tokenizer) -> AnswerSplitter:
    """Return a splitter that separates reasoning from content; unknown formats yield content only."""
    form = answer_format_of(artifact, tokenizer)
    if form is None:
        return unsplit(tokenizer)
    return AnswerSplitter(decoder_of(form, tokenizer), lambda prompt: form.answer(prompt, ()), form.looked_for)


def render(template: str, messages: list[Message], variables: Mapping[str, Any], now: str | None = None) -> str:
    """Return the text of ``messages`` up to the assistant's turn. Raises UsageError with the template's own message."""
    try:
        return PROCESS.render(template, messages, variables, now)
    except RenderError as error:
        if error.line is not None:
            raise UsageError(f"the model's chat template is no Jinja template: {error} (line {error.line}).") from None
        raise UsageError(f"the model's chat template refuses this conversation: {error}") from None


def thinking_variables(template: str, thinking: bool | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variable that switches thinking in ``template``; no variable if ``thinking`` is None.

    Raises:
        UsageError: the template has no switch, or ``given`` sets it already.
    """
    if thinking is None:
        return {}
    option = "--thinking" if thinking else "--no-thinking"
    names = set(_names(template))
    switch = next((name for name in SWITCHES if name in names), None)
    if switch is None:
        raise UsageError(
            f"the model's chat template has no switch for thinking ({' or '.join(SWITCHES)}); leave {option} out, or set "
            "what the template has instead by --template-arg, such as reasoning_effort=low."
        )
    if switch in given:
        raise UsageError(f"{option} and --template-arg {switch} say the same thing; give one of them.")
    return {switch: thinking}


def _names(template: str) -> Iterator[str]:
    """Yield the variables that a template reads: names that are not attributes."""
    before = ""
    try:
        for _, kind, value in Environment(autoescape=True).lex(template):
            if kind == "name" and before != ".":
                yield value
            before = before if kind == "whitespace" else value
    except TemplateSyntaxError:
        return  # rendering reports the error


# The process that renders


class RenderError(Exception):
    """The template could not be rendered, for the message's reason. line: of an error in its syntax."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class TemplateProcess:
    """Renders one template at a time, in a process that starts at first use and again after one that had to be killed."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def render(
        self, template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], now: str | None = None
    ) -> str:
        """Return the text of ``messages`` up to the assistant's turn, ``now`` or at the system's time. Raises RenderError."""
        asked = {"template": template, "messages": messages, "variables": variables, "now": now}
        body = json.dumps(asked, default=_placeholder).encode()
        limits = {
            "memory": MEMORY + 32 * len(body),
            "characters": CHARACTERS + 4 * len(body),
            "seconds": int(self._seconds) + 1,
        }
        line = b"%b, %b\n" % (body[:-1], json.dumps(limits).encode()[1:])
        if not self._lock.acquire(timeout=self._seconds):
            raise RenderError(f"other conversations have kept it busy for {self._seconds:g} seconds")
        try:
            answer = self._ask(line)
        except BaseException:  # KeyboardInterrupt too: the next request must not get this one's answer
            self._end()
            raise
        finally:
            self._lock.release()
        if "text" in answer:
            return str(answer["text"])
        raise RenderError(str(answer.get("syntax", answer.get("error"))), answer.get("line"))

    def close(self) -> None:
        """Kill the process; a rendering that runs fails."""
        self._end()

    def _ask(self, line: bytes) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError:
            raise RenderError("its process has ended") from None
        poll, end, pieces = select.poll(), monotonic() + self._seconds, list[bytes]()
        poll.register(process.stdout, select.POLLIN)
        while not pieces or not pieces[-1].endswith(b"\n"):
            if not poll.poll(max(0.0, end - monotonic()) * 1000):
                raise RenderError(f"it takes longer than {self._seconds:g} seconds")
            pieces.append(process.stdout.read1(1 << 20))  # type: ignore[attr-defined]
            if not pieces[-1]:
                raise RenderError("its process has ended: it takes too much memory, or nests too deep")
        answer: dict[str, Any] = json.loads(b"".join(pieces))
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            paths = json.dumps([path for path in sys.path if path])
            self._process = subprocess.Popen(  # noqa: S603  # this interpreter, and a file of ours
                [sys.executable, "-I", str(PROGRAM), paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True,  # a terminal's Ctrl-C is for this process alone
            )  # fmt: skip
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            try:
                assert pipe is not None
                pipe.close()
            except OSError:  # bytes were left to flush
                continue


def _placeholder(value: Any) -> str:
    """Return the text by which a template sees a value that is not JSON."""
    return f"<{type(value).__name__}>"


PROCESS = TemplateProcess()
"""Renders templates for everything in this process: commands, and all requests of a server."""


# The templates of an artifact


def _templates(artifact: Files) -> dict[str, str]:
    """Return templates by name, from any place where checkpoints have them."""
    own = _files(artifact) or _named(_json(artifact, TOKENIZER_CONFIG))
    return own or _named(_json(artifact, "chat_template.json"))


def _files(artifact: Files) -> dict[str, str]:
    """Return templates by name: chat_template.jinja is the default, chat_template.rag.jinja the one for rag.

    An export copies additional_chat_templates/rag.jinja to the latter.
    """
    names = [name for name in artifact.names if name.startswith(f"{TEMPLATE_FILE}.") and name.endswith(SUFFIX)]
    middles = {name: name.removeprefix(TEMPLATE_FILE).removesuffix(SUFFIX).removeprefix(".") for name in names}
    return {middle or DEFAULT: _text(artifact, name) or "" for name, middle in middles.items()}


def _named(config: dict[str, Any]) -> dict[str, str]:
    """Return templates by name of a JSON file's ``chat_template``: a text, or a list of texts with names."""
    found = config.get("chat_template")
    listed = found if isinstance(found, list) else [{"name": DEFAULT, "template": found}]
    templates = {each.get("name"): each.get("template") for each in listed if isinstance(each, dict)}
    return {str(name): template for name, template in templates.items() if isinstance(template, str)}


def _text(artifact: Files, name: str) -> str | None:
    return artifact.read(name).decode("utf-8") if name in artifact.names else None


def _json(artifact: Files, name: str) -> dict[str, Any]:
    text = _text(artifact, name)
    try:
        content = json.loads(text) if text else {}
    except ValueError as error:
        raise UsageError(f"{artifact.folder / name} is not JSON ({error}); export the model again.") from None
    return content if isinstance(content, dict) else {}
