"""Generate text over a session: pieces of text as they become complete, up to a stop string, reasoning split off.

``open_text_model`` opens what that takes: an artifact's session, tokenizer and drafter. Commands, conversations, the server and
the integrations all generate by ``generate_text``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hybridge.errors import TokenError, UsageError
from hybridge.runtime.artifact.folder import Artifact, open_artifact
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.checkpoint_folder import CheckpointFolder
from hybridge.runtime.binding.drafters import AutoDrafter, Drafter, DraftModel, OwnDrafter, PromptLookup
from hybridge.runtime.binding.generation import Constraint, read_sampling
from hybridge.runtime.binding.library import set_threads
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.sampling import Sampling
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.statistics import GenerationStats, Origin
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.answers import Answer, TokenDecoder, split_text
from hybridge.runtime.text.pictures import PictureProcessor

if TYPE_CHECKING:  # NumPy takes long to start
    import numpy as np
    from numpy.typing import NDArray

LEAST_LOGPROB = -9999.0
"""OpenAI's value for a token of probability 0."""

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class TokenLogprobs:
    """The logarithm of a token's probability, and those of the most likely tokens in its place; None for a text's first one."""

    token: int
    logprob: float | None
    best: list[tuple[int, float]]


@dataclass(frozen=True)
class TextPiece:
    """The text that a token completed, which may be none. The last piece has no token but the rest of the text, and a reason.

    text: as decoded; content and reasoning: its parts, if an answer splits it. origin: who proposed the token. finish_reason:
    "stop" for an end of sequence, a stop string or ``until``, or else "length".
    """

    text: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    origin: Origin = "own"
    content: str = ""
    reasoning: str = ""
    finish_reason: FinishReason | None = None


def generate_text(
    session: Session, tokens: Sequence[int], decoder: TokenDecoder | None = None, *, answer: Answer | None = None,
    max_new_tokens: int | None, drafter: Drafter | None = None, sampling: Sampling | None = None, stop: Sequence[str] = (),
    eos_ids: Collection[int] | None = None, until: Callable[[int], bool] | None = None, constraint: Constraint | None = None,
    logprobs: int | None = None, stats: GenerationStats | None = None, stop_after_reasoning: bool = False,
) -> Iterator[TextPiece]:  # fmt: skip
    """Yield a piece for each new token that continues ``tokens``, and a last piece that says why the text ends.

    To close the generator ends the generation: the session's text then ends just before the last token that was yielded.

    Args:
        session: continues its text, see ``Session.generate``.
        tokens: the prompt, as far as the session has not read it.
        decoder: turns tokens into text; left out, pieces have tokens and no text.
        answer: takes the text in and splits it; left out, all of it is content.
        max_new_tokens: None for no limit but the context.
        stop: texts before the first of which the text ends. stop_after_reasoning: in the content of ``answer`` alone.
        eos_ids: end a text, the model's own if left out.
        until: called with each new token other than those; ends the text by returning True.
        logprobs: number of most likely tokens to report with each token; None for no probabilities.
        stats: counts what the generation takes; ``stats.origin`` is the last token's.

    Raises:
        UsageError: an option cannot be, such as an empty stop string.
        CapacityError: the prompt does not fit. Further errors are those of ``Session.generate``.
    """
    stats = GenerationStats() if stats is None else stats
    answer = Answer() if answer is None else answer
    if stop_after_reasoning and answer.has_parts:
        answer.stop_at(stop)
        stop = ()
    stream = decoder.stream(stop) if decoder is not None else None
    ends = session.manifest.eos_ids if eos_ids is None else eos_ids
    seen: list[TokenLogprobs] = []
    is_stopped, last, text, parts = False, -1, "", ("", "")

    def ends_with(token: int) -> bool:
        nonlocal is_stopped, text, parts
        text = stream.push(token) if stream is not None else ""
        parts = split_text(answer, text)
        is_stopped = (stream is not None and stream.stopped) or answer.has_stopped or (until is not None and until(token))
        return is_stopped

    most = session.max_seq_len if max_new_tokens is None else max_new_tokens
    generated = session.generate(
        tokens, max_new_tokens=most, drafter=drafter, sampling=sampling, eos_ids=ends, until=ends_with,
        watch=None if logprobs is None else lambda logits, token: seen.append(_logprobs(logits, token, logprobs)),
        constraint=constraint, stats=stats,
    )  # fmt: skip
    with closing(generated):  # type: ignore[type-var]  # a generator
        for last in generated:
            said, text = text, ""
            (content, reasoning), parts = parts, ("", "")
            # The tokens of a verified block are watched at once, and yielded one by one.
            yield TextPiece(said, [last], [seen.pop(0)] if seen else [], stats.origin, content, reasoning)
    text = stream.finish() if stream is not None else ""
    content, reasoning = split_text(answer, text, ended=True)
    reason: FinishReason = "stop" if is_stopped or last in ends else "length"
    yield TextPiece(text, content=content, reasoning=reasoning, finish_reason=reason)


def prompt_logprobs(session: Session, tokens: Sequence[int], most: int) -> Iterator[TokenLogprobs]:
    """Yield the log probability of each token of a text, which the session then has read but for its last token.

    most: number of most likely tokens to report with each. Raises TokenError and CapacityError.
    """
    for token in tokens:
        if not 0 <= token < session.vocab_size:
            raise TokenError(f"token {token} is outside the vocabulary, whose ids are below {session.vocab_size}.")
    session.reset()
    yield TokenLogprobs(tokens[0], None, [])
    read, rows = 1, [session.prefill(tokens[:1])] if len(tokens) > 1 else []
    while rows:
        for logits, token in zip(rows, tokens[read + 1 - len(rows) :], strict=False):
            yield _logprobs(logits, token, most)
        block, rows = tokens[read : min(read + session.verify_len, len(tokens) - 1)], []
        if block:
            rows = list(session.verify(block).copy())
            read = session.commit(len(block))


def _logprobs(logits: NDArray[np.float32], token: int, most: int) -> TokenLogprobs:
    import numpy as np

    exact = logits.astype(np.float64)  # the sum over a large vocabulary takes float32 to its last digits
    largest = exact.max()
    logprobs = exact - (largest + np.log(np.exp(exact - largest).sum()))
    best = np.argsort(-logprobs, kind="stable")[: min(most, len(logprobs))]
    pairs = [(int(each), float(logprobs[each])) for each in best]
    return TokenLogprobs(token, max(float(logprobs[token]), LEAST_LOGPROB), pairs)


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Settings of the answers of a command or a conversation.

    constrain: makes a constraint for the answer to a rendered prompt.
    """

    drafter: Drafter | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    stop_after_reasoning: bool = False
    max_new_tokens: int | None = None
    constrain: Callable[[str], Constraint] | None = None


# Open an artifact to generate text with


@dataclass(frozen=True)
class TextModel:
    """An opened artifact, ready to generate text."""

    artifact: Artifact
    session: Session
    tokenizer: Tokenizer
    drafter: Drafter | None

    @cached_property
    def sampling(self) -> Sampling:
        """Return how the model is meant to be sampled."""
        return model_sampling(self.artifact)

    @cached_property
    def pictures(self) -> PictureProcessor:
        """Return what prepares pictures for the model. Raises PictureError for one that takes none."""
        return PictureProcessor(self.session.model, self.tokenizer)


def model_sampling(artifact: Artifact) -> Sampling:
    """Return how a model is meant to be sampled, by its generation_config.json; greedy if that does not say."""
    name = "generation_config.json"
    return read_sampling(artifact.read(name)) if name in artifact.names else Sampling()


def with_dry_breakers(sampling: Sampling, tokenizer: Tokenizer) -> Sampling:
    """Return a sampling in which DRY finds no repetition across the usual tokens, unless it names others."""
    if not sampling.dry_multiplier or sampling.dry_breakers:
        return sampling
    return replace(sampling, dry_breakers=tokenizer.dry_breakers)


def open_text_model(
    folder: Path, *, draft: Path | None = None, lookup: bool = False, own: bool = False, plain: bool = False,
    threads: int | None = None, context: int | None = None, strict_reuse: bool = False,
) -> TextModel:  # fmt: skip
    """Open an artifact with its tokenizer and a drafter; see ``open_text_models``."""
    return open_text_models(
        folder, 1, draft=draft, lookup=lookup, own=own, plain=plain, threads=threads, context=context, strict_reuse=strict_reuse
    )[0]


def open_text_models(
    folder: Path, sessions: int, *, draft: Path | None = None, lookup: bool = False, own: bool = False, plain: bool = False,
    threads: int | None = None, context: int | None = None, strict_reuse: bool = False,
) -> list[TextModel]:  # fmt: skip
    """Open an artifact once for several sessions.

    Args:
        folder: the artifact.
        sessions: number of sessions.
        draft: the artifact of a draft model to draft with beside those that are used without any choice: prompt lookup, and
            the artifact's own drafter.
        lookup: draft by prompt lookup alone.
        own: draft with the artifact's own drafter alone.
        plain: use no drafter.
        threads: threads to compute on; one for each fast core if left out.
        context: most tokens of a text, fewer than the artifact holds; as many as it holds if left out.
        strict_reuse: continue from a kept text only if its tokens were read by the accelerator or the CPU as they are now.

    Raises:
        UsageError: several drafters are chosen, there is no tokenizer, or the artifact does not hold the context.
        DraftError: the drafter does not fit.
        ArtifactError: the folder is no artifact, or a damaged one.
    """
    if sum((draft is not None, lookup, own, plain)) > 1:
        raise UsageError("--draft, --prompt-lookup, --drafter and --no-speculation exclude each other; give one of them.")
    opened = open_artifact(folder, wait=False)
    if opened.tokenizer is None:
        raise UsageError(f"{folder} has no tokenizer.json, so text cannot be turned into tokens; use Session from Python.")
    tokenizer = Tokenizer.of(opened)
    if threads is not None:
        set_threads(threads)
    shared = Model.open(opened, context, strict_reuse=strict_reuse)
    drafter = _drafter(opened, shared, draft, lookup, own, plain)
    # onnxruntime keeps one state for each program; the native core keeps many.
    programs = [shared, *(shared if opened.manifest.onnx is None else Model.open(opened, context) for _ in range(sessions - 1))]
    return [TextModel(opened, Session(program), tokenizer, drafter) for program in programs]


def _drafter(opened: Artifact, program: Model, draft: Path | None, lookup: bool, own: bool, plain: bool) -> Drafter | None:
    if draft is not None:
        return AutoDrafter(program, DraftModel.load(draft, opened, program))
    if own:
        return OwnDrafter(program)
    if lookup:
        return PromptLookup()
    # A drafter is useless to an artifact that verifies one token at a time; only a caller who chooses one gets an error.
    return None if plain or program.verify_len < 2 else AutoDrafter(program)


@contextmanager
def kept_checkpoints(session: Session, budget: int, folder: Path | None) -> Iterator[PrefixCache]:
    """Yield a cache of ``budget`` bytes, filled from ``folder`` if there is one and written back to it at the end.

    Raises:
        OutputError: there can be no such folder.
    """
    if folder is None or not budget:
        yield PrefixCache(session.model, budget)
        return
    disk = CheckpointFolder(folder, session, budget)
    try:
        cache = PrefixCache(session.model, budget)
        disk.keep(cache)
        yield cache
    finally:
        disk.close()
