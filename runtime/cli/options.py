"""Options that several commands share, each declared once, and what they stand for.

A command takes a group of options as one argument whose type is a dataclass below; ``with_options`` turns each field into an
option of the command line.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from hybridge.errors import GrammarError, UsageError
from hybridge.runtime.artifact.options import DEFAULT_BYTES

if TYPE_CHECKING:  # numpy takes long to start: it is imported when a command runs
    from hybridge.runtime.binding.generation import Constraint
    from hybridge.runtime.binding.sampling import Sampling
    from hybridge.runtime.text.generate import TextModel
    from hybridge.runtime.text.grammars import Grammar

ArtifactArgument = Annotated[Path, typer.Argument(help="An exported artifact: the folder that 'hybridge export' wrote.")]
ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="An artifact, a GGUF file, a checkpoint's folder, or a model's name on the hub. What is no artifact is exported "
        "once and kept in a cache.",
    ),
]
FindArtifact = Callable[[Path], Path]
"""Returns the artifact of the model that a user names. ``hybridge.models``, above this half, exports what is no artifact."""
OptionalAgainstOption = Annotated[
    str | None,
    typer.Option("--against", help="The checkpoint that it was exported from. If left out, replay the export's golden steps."),
]
AgainstOption = Annotated[str, typer.Option("--against", help="The checkpoint that it was exported from.")]
ReportOption = Annotated[Path | None, typer.Option("--report", help="Also write the report to this file, as JSON.")]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", help="Write the result to this file, as a page for a browser.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
NewTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens", min=1, help="Stop after this many tokens; an answer at its end or where the context is full."
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="Number of threads; one for each fast core if left out.")
]
ContextOption = Annotated[
    int | None,
    typer.Option("--ctx", min=1, help="Most tokens of a text, up to what the artifact holds; as many as it holds if left out."),
]
SystemOption = Annotated[
    list[str] | None,
    typer.Option("--system", help="Instructions for the model before the conversation; may be given several times."),
]
TEMPLATE_ARG = "--template-arg"
LISTS = ("tools", "documents")
"""Variables of chat templates that are lists of objects."""


@dataclass(frozen=True, kw_only=True)
class TemplateOptions:
    """Options of the chat template."""

    template_arg: Annotated[
        list[str] | None,
        typer.Option(
            TEMPLATE_ARG,
            metavar="NAME=VALUE",
            help="A variable of the chat template, such as enable_thinking=false or tools=[…]; VALUE is JSON, or a text. "
            "May be given several times.",
        ),
    ] = None
    thinking: Annotated[
        bool | None,
        typer.Option(
            "--thinking/--no-thinking",
            help="Switch thinking on or off, if the chat template can; the template's default if left out.",
        ),
    ] = None

    def variables(self) -> dict[str, Any]:
        """Return the variables of the chat template. Raises typer.BadParameter."""
        return template_variables(self.template_arg or ())


@dataclass(frozen=True, kw_only=True)
class DrafterOptions:
    """Options of ``open_text_model`` that choose a drafter."""

    draft: Annotated[
        Path | None,
        typer.Option("--draft", metavar="MODEL", help="Draft with this smaller model as well."),
    ] = None
    lookup: Annotated[
        bool, typer.Option("--prompt-lookup", help="Draft only by prompt lookup: continue earlier matches in the text.")
    ] = False
    own: Annotated[bool, typer.Option("--drafter", help="Draft only with the artifact's own drafter.")] = False
    plain: Annotated[bool, typer.Option("--no-speculation", help="Decode plainly, without a drafter.")] = False

    def found(self, find: FindArtifact) -> DrafterOptions:
        """Return the same options with the artifact of the draft model."""
        return self if self.draft is None else replace(self, draft=find(self.draft))


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Options of sampling that a request to a server may override; the model's own sampling holds for those left out."""

    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always take the likeliest token, whatever the model's own sampling is.")
    ] = False
    temperature: Annotated[float | None, typer.Option("--temperature", help="Temperature of the sampling; 0 is greedy.")] = None
    top_k: Annotated[int | None, typer.Option("--top-k", help="Sample from the k most probable tokens; 0 for all.")] = None
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Sample from the fewest tokens whose probabilities add up to this.")
    ] = None
    min_p: Annotated[
        float | None, typer.Option("--min-p", help="Drop tokens below this share of the best one's probability.")
    ] = None
    top_n_sigma: Annotated[
        float | None,
        typer.Option("--top-n-sigma", help="Drop tokens that are this many standard deviations below the best; 0 for none."),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option("--repetition-penalty", help="Above 1, tokens that the text already has become less probable."),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option("--presence-penalty", help="Take this from the logit of each token that the answer already has."),
    ] = None
    frequency_penalty: Annotated[
        float | None, typer.Option("--frequency-penalty", help="The same for each time that the answer has the token.")
    ] = None
    repeat_last_n: Annotated[
        int | None, typer.Option("--repeat-last-n", help="Latest tokens of the text that penalties see; -1 for all.")
    ] = None
    dry_multiplier: Annotated[
        float | None,
        typer.Option("--dry-multiplier", help="Make it less probable to repeat parts of the text; 0.8 is usual, 0 for none."),
    ] = None
    dry_base: Annotated[
        float | None, typer.Option("--dry-base", help="How much less for each further token that is repeated.")
    ] = None
    dry_allowed_length: Annotated[
        int | None, typer.Option("--dry-allowed-length", help="Tokens in a row that may be repeated.")
    ] = None

    def sampling(self) -> Changes:
        """Return the options that were given, checked. Raises UsageError for values that make no distribution."""
        from hybridge.runtime.binding.sampling import Sampling

        names = {each.name for each in fields(Sampling)}
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name in names}
        changes = {name: value for name, value in given.items() if value is not None}
        if bias := changes.pop("logit_bias", None):
            changes["logit_bias"] = dict(map(_bias, bias))
        Sampling(**changes)
        return Changes(self.greedy, changes)


@dataclass(frozen=True)
class Changes:
    """Options of sampling that a user gave. greedy: they change a greedy one, not the model's own."""

    greedy: bool
    values: Mapping[str, Any]

    def of(self, model: TextModel) -> Sampling:
        """Return the model's own sampling with the changes."""
        from hybridge.runtime.binding.sampling import Sampling
        from hybridge.runtime.text.generate import with_dry_breakers

        return with_dry_breakers(replace(Sampling() if self.greedy else model.sampling, **self.values), model.tokenizer)


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise UsageError(f"--logit-bias takes a token and a number, such as 42=-5, not {text!r}.") from None


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(SamplingOptions):
    """Options of a generated text: how it is sampled, where it ends, and what it must match."""

    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias", metavar="ID=X", help="Add X, from -100 to 100, to the logit of a token; may be given several times."
        ),
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the sampling; random if left out.")] = None
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be given several times.")] = None
    stop_after_reasoning: Annotated[
        bool, typer.Option("--stop-after-reasoning", help="Let --stop end an answer, but not the reasoning before it.")
    ] = False
    json_schema: Annotated[
        Path | None,
        typer.Option("--json-schema", help="A file with a JSON schema: the text is JSON that fits it, and nothing else."),
    ] = None
    regex: Annotated[str | None, typer.Option("--regex", help="The text matches this regular expression as a whole.")] = None
    grammar: Annotated[
        Path | None,
        typer.Option(
            "--grammar", help="A file with a grammar in llguidance's form of Lark: the text follows it. Needs hybridge[lark]."
        ),
    ] = None

    def constrain(self, model: TextModel) -> Callable[[str], Constraint] | None:
        """Return a function that makes the constraint for the answer to a prompt; None for free text.

        The constraint begins after the reasoning that the prompt has begun. Raises UsageError and GrammarError.
        """
        follows = self._grammar(model)
        if follows is None:
            return None
        from hybridge.runtime.binding.jinja import JinjaTemplate
        from hybridge.runtime.text.answers import AnswerFormat

        form = AnswerFormat.find(JinjaTemplate(model.artifact.folder), model.tokenizer)

        def constrain(prompt: str) -> Constraint:
            end = form.reasoning_end(prompt) if prompt else ""
            return follows.follow(end)

        return constrain

    def _grammar(self, model: TextModel) -> Grammar | None:
        given = [each for each in (self.json_schema, self.regex, self.grammar) if each is not None]
        if len(given) > 1:
            raise UsageError("--json-schema, --regex and --grammar exclude each other; give one of them.")
        if not given:
            return None
        from hybridge.runtime.text.grammars import Grammars

        grammars = Grammars.of(model.artifact)
        if self.regex is not None:
            return grammars.regex(self.regex)
        if self.json_schema is not None:
            return grammars.json_schema(_read_schema(self.json_schema))
        assert self.grammar is not None
        return grammars.lark(_read_text(self.grammar))


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Options of the checkpoints that are kept."""

    cache_bytes: Annotated[
        int,
        typer.Option(
            "--cache-bytes", min=0, help="Bytes of memory for checkpoints of earlier texts, which need not be read again."
        ),
    ] = DEFAULT_BYTES
    cache_dir: Annotated[
        Path | None,
        typer.Option("--cache-dir", help="Keep checkpoints in this folder too, up to as many bytes, for the next start."),
    ] = None
    strict_reuse: Annotated[
        bool,
        typer.Option(
            "--strict-reuse",
            help="Of an artifact with --delegate, reuse a text only if its tokens were read by the accelerator and the CPU as "
            "they would be now.",
        ),
    ] = False


def system_prompt(told: Sequence[str] | None) -> str:
    """Return the one message of the system: many chat templates refuse or drop a second."""
    return "\n\n".join(told or ())


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its arguments that are dataclasses; typer reads its signature."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in signature.parameters.items() if is_dataclass(each.annotation)
    }
    parameters = []
    for name, each in signature.parameters.items():
        parameters += option_parameters(groups[name]) if name in groups else [each]

    @wraps(command)
    def expanded(**given: Any) -> None:
        made = {name: kind(**{each.name: given.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    return with_parameters(expanded, parameters)


def with_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """Return ``command``, which takes keywords, with the signature that typer is to read."""
    vars(command).pop("__wrapped__", None)  # its signature is the other one
    command.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def option_parameters(kind: type) -> list[inspect.Parameter]:
    """Return a parameter for each field of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(kind)
    ]


def template_variables(given: Sequence[str]) -> dict[str, Any]:
    """Return the variables of ``NAME=VALUE`` texts. Raises typer.BadParameter for a malformed text or a name that is taken."""
    if not given:
        return {}
    from hybridge.runtime.text.chat_template import RESERVED

    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise _bad_variable(f"{text!r}: expected a name, an equals sign and a value, such as enable_thinking=false.")
        if name in RESERVED:
            raise _bad_variable(f"{name} is set by the conversation itself: leave it out.")
        if name in found:
            raise _bad_variable(f"{name} is given twice: give it one value.")
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            found[name] = value
    for name in LISTS:
        value = found.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise _bad_variable(f'{name} must be a JSON list of objects, such as {name}=[{{"name": …}}], but is {value!r}.')
    return found


def _bad_variable(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint=f"'{TEMPLATE_ARG}'")


def _read_schema(path: Path) -> dict[str, object]:
    try:
        schema = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{path} is no JSON: {error}.") from None
    if not isinstance(schema, dict):
        raise GrammarError(f'{path} is no JSON schema, which is an object such as {{"type": "object"}}.')
    return schema


def _read_text(path: Path) -> str:
    from hybridge.runtime.files import read_regular
    from hybridge.runtime.text.lark import LARGEST_GRAMMAR

    try:
        return read_regular(path, LARGEST_GRAMMAR).decode("utf-8")
    except OSError as error:
        raise GrammarError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise GrammarError(f"{path} is no text in UTF-8.") from None
