"""llama.cpp's tokens, as its own code finds them but in Python: slowly, by loops, without the tokenizers library.

Written by its source (``src/llama-vocab.cpp``, ``src/unicode.cpp``) for the kinds that tests build. ``reference`` is llama.cpp
itself where its package is installed.
"""

from __future__ import annotations

import codecs
import importlib.util
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex
from transformers.convert_slow_tokenizer import bytes_to_unicode

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CUTS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (WORDS,),
    "smollm": (r"\p{N}", WORDS),
    "llama-bpe": (LLAMA3,),
    "qwen2": (LLAMA3.replace("{1,3}", ""),),
    "default": (r"[\p{P}$+<=>^~|]+", WORDS, r"\p{N}+", "[0-9][0-9][0-9]"),
}
"""What ``tokenizer.ggml.pre`` cuts words by, one after the other."""

Encode = Callable[[str], list[int]]
Ranks = Mapping[tuple[str, str], int]


def reference(path: Path, metadata: Mapping[str, Any]) -> Encode:
    """Return what encodes a text with bos, eos and special tokens: llama.cpp where it is installed, or the twin here."""
    if importlib.util.find_spec("llama_cpp") is None:
        return twin(metadata)
    from llama_cpp import Llama

    model = Llama(str(path), vocab_only=True, verbose=False)
    return lambda text: model.tokenize(text.encode(), add_bos=True, special=True)


def twin(metadata: Mapping[str, Any]) -> Encode:
    """Return what encodes a text by a file's metadata without ``tokenizer.ggml.`` before their names."""
    tokens = metadata["tokens"]
    ids = {token: i for i, token in enumerate(tokens)}
    kinds = zip(tokens, metadata["token_type"], strict=True)
    special = sorted((token for token, kind in kinds if kind in (2, 3, 4)), key=lambda each: -len(each.encode()))
    llama = metadata["model"] == "llama"
    bos = metadata.get("add_bos_token", llama or metadata.get("pre") == "llama-bpe") or metadata["model"] == "gemma4"
    before = [metadata["bos_token_id"]] if bos else []
    after = [metadata["eos_token_id"]] if metadata.get("add_eos_token") else []
    encode = _of_model(metadata, ids)

    def encoded(text: str) -> list[int]:
        parts: list[str | int] = [text] if text else []
        for token in special:
            parts = [part for each in parts for part in (_around(each, token, ids[token]) if isinstance(each, str) else [each])]
        found, behind_special = [], True
        for part in parts:
            if isinstance(part, int):
                found.append(part)
            else:
                space = " " if llama and metadata.get("add_space_prefix", True) and behind_special else ""
                found += encode(space + part)
            behind_special = isinstance(part, int)
        return before + found + after

    return encoded


def _of_model(metadata: Mapping[str, Any], ids: Mapping[str, int]) -> Encode:
    """Return what encodes a part of a text between special tokens."""
    merges = metadata.get("merges") or []
    ranks = {(merge[: (at := merge.find(" ", 1))], merge[at + 1 :]): i for i, merge in enumerate(merges)}
    match metadata["model"]:
        case "llama":
            return lambda text: _by_score(text.replace(" ", "\u2581"), ids, metadata["scores"])
        case "gemma4":
            return lambda text: _by_merged_lines(text.replace(" ", "\u2581"), ids, ranks)
        case "rwkv":
            unescaped = {codecs.escape_decode(token.encode())[0]: i for i, token in enumerate(metadata["tokens"])}
            return lambda text: _longest_first(text.encode(), unescaped)
        case _:
            return lambda text: _by_merges(text, ids, ranks, metadata["pre"])


def _around(text: str, token: str, number: int) -> list[str | int]:
    pieces: list[str | int] = []
    for i, piece in enumerate(text.split(token)):
        pieces += [number] if i else []
        pieces += [piece] if piece else []
    return pieces


def _longest_first(text: bytes, ids: Mapping[bytes, int]) -> list[int]:
    found: list[int] = []
    longest = max(map(len, ids))
    while text:
        token = next(text[:size] for size in range(longest, 0, -1) if text[:size] in ids)
        found, text = [*found, ids[token]], text[len(token) :]
    return found


def _by_score(text: str, ids: Mapping[str, int], scores: list[float]) -> list[int]:
    """Merge the neighbours that are the token with the best score, the first of equals, until none is left."""
    symbols = list(text)
    while True:
        pairs = [(-scores[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ids]
        if not pairs:
            break
        place = min(pairs)[1]
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
    found = []
    for symbol in symbols:
        found += [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


def _by_merged_lines(text: str, ids: Mapping[str, int], ranks: Ranks) -> list[int]:
    """Merge the characters of a line, or take the token of several line breaks; what has no token becomes bytes."""
    found = []
    for line in _words(text, (r"[^\n]+|\n+",)):
        symbols = [line] if line in ids and not line.strip("\n") else list(line)
        for symbol in _merged(symbols, ranks):
            found += [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


def _by_merges(text: str, ids: Mapping[str, int], ranks: Ranks, cut: str) -> list[int]:
    spelling = bytes_to_unicode()
    found = []
    for word in _words(text, CUTS[cut]):
        symbols = [spelling[byte] for byte in word.encode()]
        if cut == "llama-bpe" and "".join(symbols) in ids:
            symbols = ["".join(symbols)]
        found += [ids[symbol] for symbol in _merged(symbols, ranks) if symbol in ids]
    return found


def _merged(symbols: list[str], ranks: Ranks) -> list[str]:
    """Merge the neighbours whose merge comes first in the file, the first of equals, until none is left."""
    while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in ranks]:
        place = min(pairs)[1]
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
    return symbols


def _words(text: str, expressions: tuple[str, ...]) -> list[str]:
    words = [text]
    for expression in expressions:
        words = [piece for word in words for piece in _matches_and_gaps(word, expression)]
    return words


def _matches_and_gaps(text: str, expression: str) -> list[str]:
    found, end = [], 0
    for match in regex.finditer(expression, text, flags=regex.VERSION1):
        found += [text[end : match.start()], match.group()]
        end = match.end()
    return [piece for piece in (*found, text[end:]) if piece]
