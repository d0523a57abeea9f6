"""Tokenizers of freely drawn parts, as no training makes them, and texts of the characters that they know."""

from __future__ import annotations

import json
import random
from typing import Any

LETTERS = ("a", "b", "ab", "é", "漢", " ", "x", "▁", "Ġ", "👩", "\u0301", "A")
PIECES = (
    "a", "b", "ab", "aab", "x</w>", "b</w>", "##a", "##b", "##ab", "é", "漢", "▁", "▁a", " ", "Ġ", "Ġa", "aa", "aaaa", "ﬁ",
)  # fmt: skip
AFFIXES = (None, None, "</w>", "##", "é", "")
PATTERNS: tuple[dict[str, str], ...] = (
    {"String": "a"}, {"String": " "}, {"String": ""}, {"Regex": r"\s+"}, {"Regex": r"\p{L}+|\p{N}{1,3}|[^\s\p{L}]+"},
    {"Regex": r"(?=a)"}, {"Regex": r"[\p{Han}é]"}, {"Regex": "a*"},
)  # fmt: skip
CONTENTS = ("", "a", "▁", "aa", "é漢", " ")
BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
SPECIAL = ("<s>", "</s>", "<unk>", " a", "ab", "é", "a b", "👩", "aa")


def random_tokenizer(rng: random.Random) -> dict[str, Any]:
    """Return the content of a tokenizer.json with parts of every kind in any order."""
    model = _model(rng)
    vocabulary = model["vocab"]
    known = dict(vocabulary) if isinstance(vocabulary, dict) else {piece: place for place, (piece, _) in enumerate(vocabulary)}
    return {
        "version": "1.0",
        "added_tokens": _added_tokens(rng, known, len(vocabulary)),
        "normalizer": rng.choice((None, _nested(rng, "normalizers", _normalizer))),
        "pre_tokenizer": rng.choice((None, _nested(rng, "pretokenizers", _pre_tokenizer))),
        "post_processor": rng.choice((None, None, _post_processor(rng))),
        "decoder": rng.choice((None, _nested(rng, "decoders", _decoder))),
        "model": model,
    }


def random_text(rng: random.Random) -> str:
    """Return a text of a few of the pieces that the tokenizers know and do not know."""
    return "".join(rng.choices((*LETTERS, *SPECIAL, "1", "\n", "  ", "ﬁ", "İ", "가", "½"), k=rng.randint(0, 12)))


def _model(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(("BPE", "BPE", "BPE", "Unigram", "Unigram", "WordPiece", "WordLevel"))
    pieces = rng.sample(PIECES, rng.randint(1, len(PIECES)))
    unknown = rng.choice((None, "<unk>"))
    if unknown:
        pieces.append(unknown)
    has_bytes = rng.random() < 0.5
    if has_bytes:
        pieces += [f"<0x{byte:02X}>" for byte in range(256) if rng.random() < rng.choice((1.0, 1.0, 0.9))]
    rng.shuffle(pieces)
    if kind == "Unigram":
        again = rng.choices(pieces, k=rng.choice((0, 0, 2)))
        scored = [[piece, -rng.choice((1.0, 2.5, 0.0, 3.0))] for piece in [*pieces, *again]]
        place = next((place for place, (piece, _) in enumerate(scored) if piece == "<unk>"), None)
        return {"type": kind, "vocab": scored, "unk_id": place, "byte_fallback": has_bytes}
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    if kind == "WordLevel":
        return {"type": kind, "vocab": vocabulary, "unk_token": unknown or "a"}
    if kind == "WordPiece":
        prefix, most = rng.choice(("##", "", "é")), rng.choice((0, 3, 100, 1 << 30))
        options = {"continuing_subword_prefix": prefix, "max_input_chars_per_word": most, "unk_token": unknown or "a"}
        return {"type": kind, "vocab": vocabulary, **options}
    prefix, suffix = rng.choice(AFFIXES), rng.choice(AFFIXES)
    return {
        "type": kind,
        "vocab": vocabulary,
        "merges": _merges(rng, vocabulary, prefix or ""),
        "unk_token": unknown,
        "continuing_subword_prefix": prefix,
        "end_of_word_suffix": suffix,
        "byte_fallback": has_bytes,
        "fuse_unk": rng.random() < 0.5,
        "ignore_merges": rng.random() < 0.3,
        "dropout": None,
    }


def _merges(rng: random.Random, vocabulary: dict[str, int], prefix: str) -> list[list[str]]:
    pairs = [
        [left, right]
        for left in vocabulary
        for right in vocabulary
        if right.startswith(prefix) and left + right[len(prefix) :] in vocabulary
    ]
    return rng.sample(pairs, rng.randint(0, len(pairs)))


def _added_tokens(rng: random.Random, known: dict[str, int], size: int) -> list[dict[str, Any]]:
    """Return added tokens with the ids that the library gives them."""
    made, ids, following = list[dict[str, Any]](), dict(known), size
    for content in rng.sample(SPECIAL, rng.randint(0, 5)):
        number = ids.setdefault(content, following)
        following = max(following, number + 1)
        flags = {name: rng.random() < 0.3 for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        made.append({"id": number, "content": content, **flags})
    return made


def _nested(rng: random.Random, key: str, make: Any) -> dict[str, Any]:
    """Return a part, or a Sequence of parts and of further Sequences."""
    if rng.random() < 0.5:
        return dict(make(rng))
    return {"type": "Sequence", key: [_nested(rng, key, make) for _ in range(rng.randint(0, 3))]}


def _normalizer(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(
        ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel", "Nmt", "Strip", "Prepend", "Replace")
    )
    options: dict[str, dict[str, Any]] = {
        "Strip": {"strip_left": rng.random() < 0.5, "strip_right": rng.random() < 0.5},
        "Prepend": {"prepend": rng.choice(CONTENTS[1:])},
        "Replace": {"pattern": rng.choice(PATTERNS), "content": rng.choice(CONTENTS)},
    }
    return {"type": kind, **options.get(kind, {})}


def _pre_tokenizer(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(
        ("ByteLevel", "Metaspace", "Split", "Split", "Digits", "Punctuation", "WhitespaceSplit", "Whitespace", "FixedLength")
    )
    flags = [rng.random() < 0.5 for _ in range(3)]
    scheme = rng.choice(("first", "never", "always"))
    options: dict[str, dict[str, Any]] = {
        "ByteLevel": {"add_prefix_space": flags[0], "trim_offsets": flags[1], "use_regex": flags[2]},
        "Metaspace": {"replacement": rng.choice("▁é"), "prepend_scheme": scheme, "split": flags[0]},
        "Split": {"pattern": rng.choice(PATTERNS), "behavior": rng.choice(BEHAVIORS), "invert": flags[0]},
        "Digits": {"individual_digits": flags[0]},
        "Punctuation": {"behavior": rng.choice(BEHAVIORS)},
        "FixedLength": {"length": rng.randint(1, 4)},
    }
    return {"type": kind, **options.get(kind, {})}


def _decoder(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(("ByteLevel", "ByteFallback", "Fuse", "Replace", "Strip", "Metaspace", "WordPiece", "BPEDecoder"))
    options: dict[str, dict[str, Any]] = {
        "Replace": {"pattern": rng.choice(PATTERNS), "content": rng.choice(CONTENTS)},
        "Strip": {"content": rng.choice("a ▁"), "start": rng.randint(0, 2), "stop": rng.randint(0, 2)},
        "Metaspace": {"replacement": "▁", "prepend_scheme": "always", "split": True},
        "WordPiece": {"prefix": "##", "cleanup": rng.random() < 0.5},
        "BPEDecoder": {"suffix": rng.choice(("</w>", "a"))},
        "ByteLevel": {"add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    }
    return {"type": kind, **options.get(kind, {})}


def _post_processor(rng: random.Random) -> dict[str, Any]:
    trim, blank = rng.random() < 0.5, rng.random() < 0.5
    return rng.choice(
        (
            {"type": "ByteLevel", "add_prefix_space": blank, "trim_offsets": trim, "use_regex": True},
            {"type": "RobertaProcessing", "sep": ["b", 1], "cls": ["a", 0], "trim_offsets": trim, "add_prefix_space": blank},
            {"type": "BertProcessing", "sep": ["b", 1], "cls": ["a", 0]},
        )
    )


def as_bytes(content: dict[str, Any]) -> bytes:
    """Return a tokenizer.json."""
    return json.dumps(content, ensure_ascii=False).encode()
