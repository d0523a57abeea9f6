"""Make texts to calibrate or measure on, and compute a session's logits after each of their tokens.

A text is a window of a file, a prompt that a model continues, or a text that it samples by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hybridge.errors import UsageError
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.files import read_regular

if TYPE_CHECKING:  # a drafter's tokens are chosen where PyTorch is not installed
    from torch import Tensor

LARGEST_TEXT = 1 << 30
"""Most bytes of a file of text."""


def read_text(path: Path, option: str, most: int = LARGEST_TEXT) -> str:
    """Return the text of a file of at most ``most`` bytes that ``option`` names. Raises UsageError if it is not UTF-8 text."""
    try:
        return read_regular(path, most).decode("utf-8")
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be read: {error.strerror}. Give a file of text in UTF-8.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {path} is not UTF-8 text (byte {error.start}); convert it first.") from None


def windows(tokenizer: Tokenizer, text: str, length: int, most: int, option: str, hint: str = "") -> list[list[int]]:
    """Cut a text into at most ``most`` windows of ``length`` tokens each, evenly spread over it.

    Each begins with the tokens that the tokenizer puts before every text, such as bos. Raises UsageError if the text is
    shorter than one window.
    """
    start = tokenizer.before_texts
    ids = tokenizer.encode(text, around=False).ids
    own = length - len(start)
    if len(ids) < max(1, own):
        raise UsageError(f"{option} has {len(ids)} tokens, and one window is {own}; give a longer text{hint}.")
    count = min(most, len(ids) // own)
    return [start + ids[(first := i * (len(ids) // count)) : first + own] for i in range(count)]


def continued(session: Session, tokenizer: Tokenizer, text: str, length: int, option: str, seed: int) -> Iterator[list[int]]:
    """Yield each line of ``text``, a prompt, continued by the session at temperature 1 up to ``length`` tokens in all.

    Raises UsageError if there is no prompt, or one leaves no room for an answer.
    """
    prompts = [line for line in text.splitlines() if line.strip()]
    if not prompts:
        raise UsageError(f"{option} has no prompt; it has one a line.")
    for i, prompt in enumerate(prompts):
        ids = tokenizer.encode(prompt).ids
        if not 0 < len(ids) < length:
            raise UsageError(f"{option}: prompt {i + 1} has {len(ids)} tokens, expected 1 to {length - 1}; see --window.")
        yield _sampled(session, ids, length, seed + i)


def sampled(session: Session, length: int, count: int, seed: int) -> Iterator[list[int]]:
    """Yield ``count`` texts that the session samples at temperature 1, each from a token of its own."""
    for i in range(count):
        yield _sampled(session, [(seed + 7919 * i) % session.vocab_size], length, seed + i)


def _sampled(session: Session, start: list[int], length: int, seed: int) -> list[int]:
    """Sample after ``start``, past ends of text, because all texts should have the same length."""
    session.reset()
    return start + list(session.generate(start, max_new_tokens=length - len(start), temperature=1.0, seed=seed, eos_ids=()))


def logits_of(session: Session, tokens: Sequence[int], prompt: Sequence[int] = ()) -> Tensor:
    """Return the logits [T, V] after each of T tokens, from an empty state. Raises what the session raises.

    prompt: is read first, and may have pictures in it; the logits after its last token come before the others, [1 + T, V].
    """
    import torch

    session.reset()
    rows = [session.prefill(prompt)[None]] if prompt else []
    for start in range(0, len(tokens), session.verify_len):
        block = tokens[start : start + session.verify_len]
        rows.append(session.verify(block))
        session.commit(len(block))
    return torch.from_numpy(np.concatenate(rows))
