"""Choose the tokens that a drafter may propose, if it shares its target's output layer.

That layer is a drafter's largest read, and most of a large vocabulary is rare; other tokens are only never proposed. Tokens
are chosen with their neighbours, in the whole panels of 16 rows that our kernels read, so that no row is stored twice.
Source: FR-Spec, arXiv:2502.14856.

A token counts by how often it comes in a text, or by how probable the model makes it in texts that it samples itself. This
imports no PyTorch, because a file whose program is kept is packed without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from hybridge.errors import UsageError
from hybridge.export.progress import ExportProgress
from hybridge.export.texts import read_text
from hybridge.runtime.artifact.drafter import VocabularyDescription, VocabularySource
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.kernels import library
from hybridge.runtime.pack.panels import LANES, Array

LARGEST_WHOLE = 65_536
"""Tokens of a vocabulary up to which a drafter proposes all of them by default."""
ROWS = 32_000
"""Tokens of a draft vocabulary if no number is named, or a quarter of a smaller vocabulary."""
MOST_ADDED = 256
"""Most tokens that a tokenizer adds to its vocabulary, such as the marks of a chat, which are chosen in any case."""
COMMON = 1000
"""First ids among which the id says little about how often a token comes."""
HELD_OUT = 4
"""One of this many texts is held out, to measure the share of its tokens that are among those chosen from the others."""

Progress = Callable[[int, int], None]
"""Takes the number of steps done and the total."""
Scores = tuple[Array, Array]
"""Scores float64 [V] of the tokens, and those by texts that are held out."""


@dataclass(frozen=True)
class DraftVocabulary:
    """The tokens to choose.

    source: the first ones, those of texts that the model samples, or those of a file; tokens: their number, None for the
    usual one.
    """

    source: Literal["first", "self"] | Path
    tokens: int | None = None

    @classmethod
    def named(cls, name: str | int | Path) -> DraftVocabulary | None:
        """Return the vocabulary that ``name`` means: all (None), N, self, self:N, FILE or FILE:N."""
        text = str(name)
        if text.isdecimal() and not isinstance(name, Path):
            return cls("first", int(text))
        place, _, count = text.rpartition(":")
        if not place or not count.isdecimal() or Path(text).exists():
            place, count = text, ""
        if place == "all":
            return None
        return cls("self" if place == "self" else Path(place), int(count) if count else None)

    def __str__(self) -> str:
        """Return the name."""
        if self.source == "first":
            return str(self.tokens)
        return str(self.source) if self.tokens is None else f"{self.source}:{self.tokens}"


def vocabulary_of(name: str | int | Path | None, size: int, options: ExportOptions) -> DraftVocabulary | None:
    """Return the vocabulary that ``name`` means, None for all tokens.

    If no name is given, it is all tokens of a model of few (``size``), and otherwise those that the model says, or the first
    ones if it cannot say them here. Raises UsageError for ``self`` without our kernels.
    """
    if name is not None:
        named = DraftVocabulary.named(name)
        if named and named.source == "self" and not options.has_own_kernels:
            raise UsageError(f"--draft-vocab {named} needs --kernels hybridge, not {options.kernels}; give a number or a file.")
        return named
    if size <= LARGEST_WHOLE:
        return None
    return DraftVocabulary("self" if options.has_own_kernels and library.is_available() else "first", ROWS)


CHOSEN = {"ids": "chosen.ids", "panels": "chosen.panels"}
"""Names of the constants that say which tokens a drafter may propose, among those of a file, by their names in modules."""


@dataclass(frozen=True)
class DraftRows:
    """The tokens that a drafter may propose. ids: int64 [C], ascending, whole panels of the target's output layer."""

    ids: Array
    description: VocabularyDescription

    @property
    def panels(self) -> Array:
        """Return the panels int64 [P] of the output layer that have these tokens."""
        return self.ids[::LANES] // LANES

    @property
    def constants(self) -> dict[str, Array]:
        """Return them by their names in ``CHOSEN``."""
        return {CHOSEN["ids"]: self.ids, CHOSEN["panels"]: self.panels}


class ModelTokens(Protocol):
    """The tokens of a model."""

    @property
    def vocab_size(self) -> int:
        """Return their number."""

    @property
    def eos_ids(self) -> list[int]:
        """Return those that end a text."""

    @property
    def core_tokenizer(self) -> Tokenizer | None:
        """Return what makes tokens of texts, None if the model has none."""


def choose_rows(model: ModelTokens, vocabulary: DraftVocabulary, sampled: Scores | None = None) -> DraftRows:
    """Choose the tokens of ``vocabulary``, with those that end a text and those that the tokenizer adds.

    Args:
        sampled: the result of ``sampled_scores``, for a vocabulary by ``self``. Without it, as many other tokens are chosen:
            a program is written with those, and the right ones replace them once it has sampled texts.

    Raises:
        UsageError: all tokens of the model are chosen or none, or a file cannot be read or is another model's.
    """
    size, source = model.vocab_size, vocabulary.source
    wanted = min(ROWS, size // 4) if vocabulary.tokens is None else vocabulary.tokens
    if not 1 <= wanted < size:
        raise UsageError(
            f"--draft-vocab {vocabulary} is {wanted} tokens, but should be some of the model's {size}; "
            "leave it out, or give 'all' for all of them."
        )
    if isinstance(source, Path):
        chosen_by, held_out = _file_scores(model, source)
    elif sampled is not None:
        chosen_by, held_out = sampled
    else:
        ascending = np.arange(1.0, size + 1)
        chosen_by, held_out = (ascending[::-1] if source == "first" else ascending), np.zeros(size)
    always, estimate = _always(model), np.zeros(size) if sampled is None else by_id(size)

    def best(scores: Array) -> Array:
        return whole_panels(scores + scores.sum() * estimate, wanted, always)

    ids = best(chosen_by + held_out)
    if len(ids) == size:
        raise UsageError(f"--draft-vocab {vocabulary} comes to all of the model's {size} tokens; give fewer, or 'all'.")
    # Tokens that were chosen without the texts that they are measured on: the shipped ones know those, too.
    measured = best(chosen_by)
    coverage = float(held_out[measured].sum() / held_out.sum()) if held_out.any() else None
    kind: VocabularySource = "text" if isinstance(source, Path) else source
    return DraftRows(ids, VocabularyDescription(tokens=len(ids), source=kind, coverage=coverage))


def sampled_rows(
    folder: Path, model: ModelTokens, vocabulary: DraftVocabulary, parameters: int, steps: ExportProgress
) -> DraftRows:
    """Choose the tokens that the artifact in ``folder``, a model of so many parameters, says itself.

    Raises what opening it raises.
    """
    with Session.load(folder) as session, steps.counted("Sampling texts for the draft vocabulary") as progress:
        scores = sampled_scores(session, model.core_tokenizer, steps_of(parameters), progress)
    return choose_rows(model, vocabulary, scores)


def by_id(size: int) -> Array:
    """Return float64 [V] that sums to 1: how often tokens come by Zipf's law, the first ids most often, as merges are learned.

    A thousand sampled tokens say little of the rare ones, of which a vocabulary mostly consists.
    """
    weights = 1.0 / (np.arange(size) + COMMON)
    shares: Array = weights / weights.sum()
    return shares


def whole_panels(scores: Array, wanted: int, always: Sequence[int]) -> Array:
    """Return the ids int64 [C] of the panels with the highest sums of ``scores`` [V], those with ``always`` first.

    C is ``wanted``, rounded up to panels, or less if the others have no score. A last panel that is not whole needs one of
    ``always`` to be chosen, so that the number does not depend on the scores.
    """
    size = len(scores)
    panels = np.pad(scores, (0, -size % LANES)).reshape(-1, LANES).sum(1)
    if size % LANES:
        panels[-1] = 0.0
    forced = sorted({token // LANES for token in always})
    panels[forced] = np.inf
    order = np.argsort(-panels, kind="stable")[: max(-(-wanted // LANES), len(forced))]
    best = np.sort(order[panels[order] > 0])
    ids: Array = (best[:, None] * LANES + np.arange(LANES)).reshape(-1)
    return ids[ids < size]


def _always(model: ModelTokens) -> list[int]:
    """Return the tokens that end a text, and those that the tokenizer adds to its vocabulary unless there are many."""
    tokenizer = model.core_tokenizer
    added = [token for token in tokenizer.added_tokens() if token < model.vocab_size] if tokenizer else []
    return [*model.eos_ids, *(added if len(added) <= MOST_ADDED else [])]


# Of a file: a text, or a list of ids in JSON

LARGEST_FILE = 64 << 20
"""Most bytes to count tokens in; more text would only add rare ones."""


def _file_scores(model: ModelTokens, path: Path) -> Scores:
    size, option = model.vocab_size, f"--draft-vocab {path}"
    text = read_text(path, "--draft-vocab", LARGEST_FILE)
    if text.lstrip().startswith("["):
        return _listed(text, size, option), np.zeros(size)
    tokenizer = model.core_tokenizer
    if tokenizer is None:
        raise UsageError(f"{option} needs the model's tokenizer, and it has none; give 'self', or a number of tokens.")
    halves = np.zeros((2, size))
    for index, line in enumerate(text.splitlines(keepends=True)):
        ids = [token for token in tokenizer.encode(line, around=False).ids if token < size]
        halves[int(index % HELD_OUT == HELD_OUT - 1)] += np.bincount(np.array(ids, np.int64), minlength=size)
    if not halves.any():
        raise UsageError(f"{option} has no tokens of this model; give a longer text, 'self', or a number of tokens.")
    return halves[0], halves[1]


def _listed(text: str, size: int, option: str) -> Array:
    """Return scores of a JSON list of ids, the most frequent first. Raises UsageError for ids of another model."""
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError):
        ids = None
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise UsageError(f"{option} begins like a list in JSON, but should then be one of ids, the most frequent first.")
    if wrong := [token for token in ids if not 0 <= token < size]:
        raise UsageError(
            f"{option} has the token {wrong[0]}, but this model has {size} tokens: it is of another tokenizer. "
            "Give a list that was made with this model's."
        )
    scores, unique = np.zeros(size), list(dict.fromkeys(ids))
    scores[unique] = 1.0 / np.arange(1, len(unique) + 1)  # Zipf's law
    return scores


# Of texts that the model samples. Each step gives the probabilities of all tokens, which say more than the one drawn.

OPENINGS = (
    "Once upon a time, in a small village by the sea,",
    "The capital of France is Paris, a city that",
    "Sure! Here is a step-by-step guide to",
    "**Answer:** The most important difference between the two is",
    "In this paper we propose a new method for",
    'def read_config(path):\n    """Read the configuration',
    "To solve this equation, we first subtract 3 from both",
    "Dear Dr. Smith,\n\nThank you very much for",
    "The company reported on Monday that its revenue in the",
    "## Ingredients\n\n- 2 cups of flour\n- 1 teaspoon",
    "I think that the best way to learn a language is",
    '{"name": "Alice", "age": 31, "address": {"city": "',
    "User: How do I install this program?\nAssistant: You can",
    "The patient was treated with a dose of 20 mg",
    "#include <vector>\n\nint main() {\n    std::vector<",
    "In 1945, after the end of the war, the government",
    "Les scientifiques ont découvert que le climat de la",
    "Die Regierung hat am Montag ein neues Gesetz beschlossen, das",
    "El presidente dijo ayer que el nuevo acuerdo será",
    "Все счастливые семьи похожи друг на друга, каждая",
    "人工智能正在改变我们的生活方式，首先，它可以",
    "東京は日本の首都であり、世界で最も人口の多い",
    "인공지능은 우리의 생활을 크게 바꾸고 있으며 앞으로",
    "الذكاء الاصطناعي هو أحد أهم المجالات في",
    "| Year | Population | Area |\n|---|---|---|\n| 2010 |",
    "SELECT name, count(*) FROM orders WHERE date >",
    "function handleClick(event) {\n  const target = event.",
    "A black hole is a region of space where gravity is so",
    '"I don\'t know what you mean," she said, and looked',
    "Abstract. The aim of this study was to investigate the",
    "Okay, so the user wants to know whether it is",
    "1. First, open the settings menu.\n2. Then select",
)
"""Beginnings of texts of the kinds that people ask models for."""
START = 8
"""Most tokens of an opening."""
MOST_STEPS, FEWEST_STEPS, WORK = 32, 8, 40_000_000_000
"""Tokens that are sampled after each opening: WORK over the model's parameters, within these bounds."""


def steps_of(parameters: int) -> int:
    """Return the number of tokens to sample after each opening, which depends on nothing that another machine changes."""
    return max(FEWEST_STEPS, min(MOST_STEPS, WORK // max(1, parameters)))


def sampled_scores(
    session: Session, tokenizer: Tokenizer | None, steps: int, progress: Progress = lambda done, total: None
) -> Scores:
    """Return the sums float64 [V] of the tokens' probabilities in texts that the session samples at temperature 1 with a seed.

    Of three quarters of the texts and of the fourth, which begin with other openings. steps: tokens of each text.
    """
    sums, rng = np.zeros((2, session.vocab_size)), np.random.default_rng(0)
    total = steps * len(OPENINGS)
    for index, opening in enumerate(_openings(tokenizer, session.vocab_size)):
        session.reset()
        logits = session.prefill(opening)
        for step in range(steps):
            weights = np.exp(logits - logits.max(), dtype=np.float32)
            running = weights.cumsum(dtype=np.float64)
            sums[int(index % HELD_OUT == HELD_OUT - 1)] += weights / running[-1]
            drawn = int(np.searchsorted(running, rng.random() * running[-1], side="right"))
            progress(index * steps + step + 1, total)
            if step < steps - 1:
                logits = session.decode(min(drawn, session.vocab_size - 1))
    chosen_by, held_out = sums
    return chosen_by, held_out


def _openings(tokenizer: Tokenizer | None, size: int) -> list[list[int]]:
    """Return the first tokens of each text: of ``OPENINGS``, or one that is spread over the ids without a tokenizer."""
    if tokenizer is None:
        return [[index * size // len(OPENINGS)] for index in range(len(OPENINGS))]
    ids = ([token for token in tokenizer.encode(opening).ids if token < size] for opening in OPENINGS)
    return [each[:START] or [0] for each in ids]
