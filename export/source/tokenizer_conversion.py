"""Make a tokenizer.json of what older checkpoints have: sentencepiece's or tiktoken's model, or vocab.json and merges.txt.

transformers converts; each conversion is then held against the original, since it takes the tokenizer's class from config.json
and some classes make a nearly empty tokenizer, or other tokens, of a file that they do not know.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerFast

from hybridge.export.source.files import read_object
from hybridge.runtime.artifacts.tokenizer import TOKENIZER_CONFIG

SOURCES = ("tokenizer.model", "tiktoken.model", "tekken.json", "vocab.json")
SAMPLE = "\nThe quick brown fox,\n  12 of them: 'jumps' over x_y = f(3.5);\n"
"""Begins with a line break: sentencepiece may put a space before a text, which must not merge with its first word."""

Check = Callable[[Tokenizer], bool]


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A tokenizer, and its special tokens by the names that its class gives them."""

    tokenizer: Tokenizer
    special: dict[str, str]


def source_of(folder: Path) -> str | None:
    """The file that a tokenizer can be converted from; None where the folder has none."""
    return next((name for name in SOURCES if (folder / name).is_file()), None)


def convert(folder: Path, source: str) -> Converted:
    """The tokenizer that ``source`` describes. Raises ValueError, saying why, where none comes of it that encodes the same."""
    if source == "vocab.json" and not (folder / "merges.txt").is_file():
        raise ValueError("vocab.json is there, but the merges.txt that belongs to it is missing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that read the old files
        made, told = _converted(folder, source)
    for same in _checks(folder / source):
        for one in made:
            if _passes(same, one.tokenizer):
                return one
    if source == "vocab.json" and not read_object(folder / TOKENIZER_CONFIG).get("tokenizer_class"):
        told = "no tokenizer_config.json names its tokenizer_class, such as GPT2Tokenizer"
    raise ValueError(told)


def _converted(folder: Path, source: str) -> tuple[list[Converted], str]:
    """What transformers makes of it, and what it says where it makes nothing."""
    made, told = [], "transformers makes other tokens of it"
    for load in _ways(folder, source):
        try:
            loaded = load()
            made.append(Converted(tokenizer=loaded.backend_tokenizer, special=dict(loaded.special_tokens_map)))
        except Exception as error:  # whatever a damaged file or a missing library makes transformers run into
            told = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return made, told


def _ways(folder: Path, source: str) -> Iterator[Callable[[], Any]]:
    """The class that the config names, the one that the tokenizer's own config names, and the usual ones of the source."""
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if source == "vocab.json":
        options |= {"vocab": str(folder / source), "merges": str(folder / "merges.txt")}
    yield lambda: AutoTokenizer.from_pretrained(folder, **options)
    if kind := _kind(read_object(folder / TOKENIZER_CONFIG).get("tokenizer_class")):
        yield lambda: AutoTokenizer.from_pretrained(folder, tokenizer_type=kind, **options)
    if source == "tokenizer.model":
        yield lambda: LlamaTokenizer.from_pretrained(folder, **options)
    if source != "vocab.json":
        yield lambda: PreTrainedTokenizerFast.from_pretrained(folder, **options)


def _kind(name: Any) -> str | None:
    """A model type whose tokenizer class has this name."""
    from hybridge.export.pinned.transformers import tokenizer_classes

    plain = str(name).removesuffix("Fast")
    return next((kind for kind, each in tokenizer_classes.items() if each and each.removesuffix("Fast") == plain), None)


# Is it the same tokenizer?


def _checks(path: Path) -> list[Check]:
    """From the strictest on."""
    if path.name == "vocab.json":
        return [_has_vocabulary(read_object(path))]
    pieces = _sentencepiece(path) if path.name == "tokenizer.model" else None
    if pieces is None:
        return [_keeps_text]
    wanted = pieces.encode(SAMPLE)
    return [_encodes_as(wanted), _encodes_as(wanted[1:])]  # the latter without a space before the text


def _sentencepiece(path: Path) -> Any:
    """sentencepiece's own model of the file; None where it is none, such as tiktoken's under the same name.

    Raises ValueError where nothing is installed to read it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise ValueError(f"{path.name} needs the package sentencepiece: install it, and export again") from None
        try:
            return SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError):
            return None


def _passes(same: Check, tokenizer: Tokenizer) -> bool:
    try:
        return same(tokenizer)
    except Exception:  # the library has no error of its own for a vocabulary that lacks what a text needs
        return False


def _encodes_as(wanted: list[int]) -> Check:
    """Whether the sample becomes these ids."""
    return lambda tokenizer: tokenizer.encode(SAMPLE, add_special_tokens=False).ids == wanted


def _has_vocabulary(wanted: dict[str, int]) -> Check:
    """Whether every token keeps its id and the sample its text."""
    return lambda tokenizer: wanted.items() <= tokenizer.get_vocab().items() and _keeps_text(tokenizer)


def _keeps_text(tokenizer: Tokenizer) -> bool:
    return str(tokenizer.decode(tokenizer.encode(SAMPLE, add_special_tokens=False).ids)).strip() == SAMPLE.strip()
