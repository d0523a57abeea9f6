"""The chat template of an artifact, rendered as transformers does it: in a sandbox, and in a process of its own."""

from __future__ import annotations

import atexit
import json
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from jinja2 import Environment, TemplateSyntaxError
from tokenizers import Tokenizer

from hybridge.cache.errors import UsageError
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.artifacts.tokenizer import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, special_tokens
from hybridge.runtime.text.answer_formats import Format, answer_format, decoder_of
from hybridge.runtime.text.text_stream import Apart, Message, Render, undivided

# ``--thinking`` and ``--no-thinking``: the variable by which a chat template switches thinking on and off.


SWITCHES = ("enable_thinking", "thinking")
"""What templates call it: Qwen, GLM, SmolLM and Nemotron the first, Granite, DeepSeek and Kimi the second."""


def thinking_variables(template: str, thinking: bool | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variable that switches thinking in ``template``; none where nothing was asked for.

    Raises UsageError for a template without such a switch, and for a switch that is ``given`` already.
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
    """Yield the variables that a template reads: names that are no attribute of something else."""
    before = ""
    try:
        for _, kind, value in Environment(autoescape=True).lex(template):
            if kind == "name" and before != ".":
                yield value
            before = before if kind == "whitespace" else value
    except TemplateSyntaxError:
        return  # rendering says what is wrong


# A process beside this one that renders chat templates, and is ended where one takes too long.


PROGRAM = Path(__file__).with_name("template_program.py")
SECONDS = 5
"""That rendering may take; a template of a real model takes a thousandth."""
MEMORY = 512 << 20
"""Bytes of memory that it may take, and 32 for each byte of the request."""
CHARACTERS = 16 << 20
"""Characters that it may make, and 4 for each byte of the request."""


class RenderError(Exception):
    """The template could not be rendered; the message says why. line: where its syntax is wrong, if it is that."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class TemplateProcess:
    """Renders one template at a time. The process begins with the first, and again after one that had to be ended."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def render(self, template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return the text of ``messages`` up to where the assistant speaks. Raises RenderError."""
        body = json.dumps({"template": template, "messages": messages, "variables": variables}, default=_placeholder).encode()
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
        except BaseException:  # a KeyboardInterrupt too: what is half asked is not to be answered to the next
            self._end()
            raise
        finally:
            self._lock.release()
        if "text" in answer:
            return str(answer["text"])
        raise RenderError(str(answer.get("syntax", answer.get("error"))), answer.get("line"))

    def close(self) -> None:
        """End the process; what is being rendered fails."""
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
            except OSError:  # what was not written any more
                continue


def _placeholder(value: Any) -> str:
    """Return what templates see of what is no JSON."""
    return f"<{type(value).__name__}>"


PROCESS = TemplateProcess()
"""Renders templates for everything in this process: commands, and all requests of a server."""
DEFAULT, TOOL_USE = "default", "tool_use"
TEMPLATE_FILE, SUFFIX = "chat_template", ".jinja"


def load_template(artifact: Artifact, variables: Mapping[str, Any] | None = None, thinking: bool | None = None) -> Render:
    """Return what renders conversations for the artifact's model, with its special tokens and then ``variables`` by name.

    thinking: switched on or off, where the template has a switch for it. Raises UsageError where the checkpoint had no chat
    template, only named ones of which none is meant, or no such switch.
    """
    return ChatTemplates.of(artifact).with_variables(variables or {}, thinking)


@dataclass(frozen=True)
class ChatTemplates:
    """The chat templates of an artifact by name, read once, and its special tokens."""

    folder: Path
    texts: Mapping[str, str]
    special: Mapping[str, Any]

    @classmethod
    def of(cls, artifact: Artifact) -> ChatTemplates:
        """Read them. Raises UsageError for a file that is no JSON."""
        special = special_tokens(_json(artifact, TOKENIZER_CONFIG), _json(artifact, SPECIAL_TOKENS_MAP))
        return cls(artifact.folder, _templates(artifact), special)

    def with_variables(self, variables: Mapping[str, Any], thinking: bool | None = None) -> Render:
        """Return what ``load_template`` does."""
        template = self.chosen(tools=variables.get("tools") is not None)
        every = {**self.special, **variables, **thinking_variables(template, thinking, variables)}
        return lambda messages: render(template, messages, every)

    def chosen(self, *, tools: bool) -> str:
        """Return the template for tools where there are some and the model has one, else the default. Raises UsageError."""
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


def thinking_of(artifact: Artifact, thinking: bool | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variable that switches thinking in the artifact's chat template. Raises what ``load_template`` does."""
    return thinking_variables(ChatTemplates.of(artifact).chosen(tools=False), thinking, given) if thinking is not None else {}


def answer_format_of(artifact: Artifact, tokenizer: Tokenizer) -> Format | None:
    """Return how the answers of an artifact's model are read, where they are more than text."""
    own = _json(artifact, TOKENIZER_CONFIG).get("response_template")
    return answer_format(own, "\n".join(_templates(artifact).values()), tokenizer)


def taken_apart(artifact: Artifact, tokenizer: Tokenizer) -> Apart:
    """Return how reasoning is told from content in the answers of an artifact's model; all is content of an unknown form."""
    form = answer_format_of(artifact, tokenizer)
    if form is None:
        return undivided(tokenizer)
    return Apart(decoder_of(form, tokenizer), lambda prompt: form.answer(prompt, ()))


def render(template: str, messages: list[Message], variables: Mapping[str, Any]) -> str:
    """Return the text of ``messages`` up to where the assistant speaks. Raises UsageError with the template's own message."""
    try:
        return PROCESS.render(template, messages, variables)
    except RenderError as error:
        if error.line is not None:
            raise UsageError(f"the model's chat template is no Jinja template: {error} (line {error.line}).") from None
        raise UsageError(f"the model's chat template refuses this conversation: {error}") from None


def _templates(artifact: Artifact) -> dict[str, str]:
    """Templates by name, from wherever the checkpoint had them."""
    own = _files(artifact) or _named(_json(artifact, TOKENIZER_CONFIG))
    return own or _named(_json(artifact, "chat_template.json"))


def _files(artifact: Artifact) -> dict[str, str]:
    """Templates by name: chat_template.jinja is the default, chat_template.rag.jinja that for rag.

    An export writes the latter of additional_chat_templates/rag.jinja.
    """
    names = [name for name in artifact.manifest.files if name.startswith(f"{TEMPLATE_FILE}.") and name.endswith(SUFFIX)]
    middles = {name: name.removeprefix(TEMPLATE_FILE).removesuffix(SUFFIX).removeprefix(".") for name in names}
    return {middle or DEFAULT: _text(artifact, name) or "" for name, middle in middles.items()}


def _named(config: dict[str, Any]) -> dict[str, str]:
    """Templates by name of a JSON file's ``chat_template``: one by itself, or a list of them with names."""
    found = config.get("chat_template")
    listed = found if isinstance(found, list) else [{"name": DEFAULT, "template": found}]
    templates = {each.get("name"): each.get("template") for each in listed if isinstance(each, dict)}
    return {str(name): template for name, template in templates.items() if isinstance(template, str)}


def _text(artifact: Artifact, name: str) -> str | None:
    return artifact.read(name).decode("utf-8") if name in artifact.manifest.files else None


def _json(artifact: Artifact, name: str) -> dict[str, Any]:
    text = _text(artifact, name)
    try:
        content = json.loads(text) if text else {}
    except ValueError as error:
        raise UsageError(f"{artifact.folder / name} is not JSON ({error}); export the model again.") from None
    return content if isinstance(content, dict) else {}
