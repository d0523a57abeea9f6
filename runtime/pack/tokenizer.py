"""Write a GGUF file's tokenizer as a tokenizer.json that gives llama.cpp's ids, with nothing but this file.

llama.cpp's rules differ from those of tokenizer.json: bos and eos are switches with a default for each kind, tokens of some
names are special whatever the file says, and a space goes before a text and after each special token if the file asks for it.
Source: llama.cpp ``src/llama-vocab.cpp``; the format of tokenizer.json is that of the package tokenizers 0.23.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.errors import CheckpointError
from hybridge.runtime.pack.gguf import END_TOKENS, TOKENS, read_header

STRINGS = (TOKENS, "tokenizer.ggml.merges")
"""The arrays of strings that a tokenizer is made of."""
Part = dict[str, Any]
"""A part of a tokenizer.json, with its type."""


SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""Fields of a generation_config.json and keys of a GGUF file."""


def write_tokenizer(path: Path, folder: Path) -> str:
    """Write the tokenizer, the chat template and the sampling of the file at ``path`` into ``folder``, as an artifact has them.

    Returns a warning, empty if nothing is amiss. Raises CheckpointError for a tokenizer that cannot be converted, and OSError.
    """
    metadata = read_header(path, strings=STRINGS).metadata
    made = read_gguf_tokenizer(metadata)
    (folder / "tokenizer.json").write_text(json.dumps(made.content, ensure_ascii=False), encoding="utf-8")
    config = json.dumps(made.config, ensure_ascii=False, indent=2)
    (folder / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")
    if isinstance(template := metadata.get("tokenizer.chat_template"), str):
        template = TEMPLATES.get(template, template)
        (folder / "chat_template.jinja").write_text(_with_bos(template, made.config), encoding="utf-8")
    sampling = {name: _number(metadata[key]) for name, key in SAMPLING.items() if key in metadata}
    if sampling:
        (folder / "generation_config.json").write_text(json.dumps({"do_sample": True} | sampling), encoding="utf-8")
    return made.note


def _number(value: float) -> float:
    """Return a float32 of a file with the digits that it was written by."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _with_bos(template: str, config: dict[str, Any]) -> str:
    """Let a chat template write bos if the file adds it to every text, because llama.cpp adds it to a chat, too."""
    bos = config.get("bos_token")
    written = bos is None or bos in template or "bos_token" in template
    return template if written or not config["add_bos_token"] else "{{ bos_token }}" + template


TEMPLATES = {
    "rwkv-world": "{% for each in messages %}{{ each.role | capitalize }}: {{ each.content | trim }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
}
"""Templates that older files give by their names in llama.cpp."""

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Types of tokens that are matched in a text before it is split into words."""

ALWAYS_CONTROL = END_TOKENS | frozenset(
    """<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>
    <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>
    <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>
    <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>""".split()  # noqa: SIM905  # likewise
)
"""Tokens that are special whatever type the file gives them."""

ALWAYS_USER_DEFINED = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))
SPACE = "\u2581"
MOST_HALVES = 1 << 30
"""Most characters of all halves of all tokens, each looked up once; Gemma's 262,144 tokens have 20 million."""
PLAIN_CLASS = "PreTrainedTokenizerFast"
"""transformers' class that changes nothing in a tokenizer.json."""
NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Names of the special tokens in a tokenizer_config.json and in a GGUF file."""

DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    "gpt2": {"bos_token": 11, "eos_token": 11},
    "llama": {"bos_token": 1, "eos_token": 2},
    "gemma4": {},
    "rwkv": {},
}
"""Defaults for a file that asks for a token around its texts and does not say which, by the kinds of tokenizers."""


@dataclass(frozen=True, kw_only=True)
class GgufTokenizer:
    """A converted tokenizer.

    content: its tokenizer.json; config: entries of its tokenizer_config.json; note: a warning for the user, or empty.
    """

    content: dict[str, Any]
    config: dict[str, Any]
    note: str = ""


def read_gguf_tokenizer(metadata: Mapping[str, Any]) -> GgufTokenizer:
    """Return the tokenizer that a file's metadata describe; its arrays of strings must have been read.

    Raises CheckpointError for a kind that hybridge does not read, a duplicate token, or a missing one.
    """
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model not in DEFAULT_IDS:
        raise CheckpointError(f"its tokenizer.ggml.model {model!r} is not read, only {', '.join(map(repr, DEFAULT_IDS))}")
    tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(_list(metadata, "tokens", str))]
    if len({*tokens}) != len(tokens):
        raise CheckpointError("tokenizer.ggml.tokens has a token twice")
    note = ""
    if model == "gpt2":
        kind = metadata.get("tokenizer.ggml.pre")
        parts = _byte_level(tokens, _list(metadata, "merges", str), _pre_tokenizer(kind))
        note = "" if kind else "it does not say how its texts are cut (tokenizer.ggml.pre): cut as llama.cpp does by default."
    elif model == "gemma4":
        parts = _merged_words(tokens, _list(metadata, "merges", str))
    elif model == "rwkv":
        parts = _longest(tokens)
    else:
        scores = _list(metadata, "scores", float, len(tokens))
        parts = _sentencepiece(tokens, scores, space=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)))
    adds, ids = _adds(metadata), special_ids(metadata, len(tokens))
    if missing := [name for name, wanted in adds.items() if wanted and name not in ids]:
        raise CheckpointError(f"tokenizer.ggml.add_{missing[0]} is true, but the file has no such token")
    named = {name: tokens[place] for name, place in ids.items()}
    around = _around({name: (named[name], ids[name]) for name, wanted in adds.items() if wanted})
    kinds = metadata.get("tokenizer.ggml.token_type")
    added = _added(tokens, kinds if isinstance(kinds, list) else [])
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": around, **parts}
    switches = {f"add_{name}": wanted for name, wanted in adds.items()}
    return GgufTokenizer(content=content, config={"tokenizer_class": PLAIN_CLASS, **switches, **named}, note=note)


def special_ids(metadata: Mapping[str, Any], count: int) -> dict[str, int]:
    """Return the ids of the named tokens, those that are there, in a vocabulary of ``count`` tokens."""
    model, adds = metadata.get("tokenizer.ggml.model"), _adds(metadata)
    found = {}
    for name, own in NAMES.items():
        default = DEFAULT_IDS.get(str(model), {}).get(name) if adds.get(name) else None
        places = (metadata.get(f"tokenizer.ggml.{own}_token_id"), default)
        if (place := next((each for each in places if isinstance(each, int) and 0 <= each < count), None)) is not None:
            found[name] = place
    return found


NAMED_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Entries for the tokens that end a text, a turn and a message."""


def end_ids(metadata: Mapping[str, Any], ends: Mapping[str, int]) -> list[int]:
    """Return the tokens that end a text: those that the file names, then those of ``END_TOKENS`` in its vocabulary.

    Many files name one only, such as Gemma 3's ``<eos>`` and not its ``<end_of_turn>``. As in llama.cpp, but for ``</s>``,
    which ends texts only if the file calls it a control token: in Gemma 3 it is a tag of HTML.
    """
    kinds = metadata.get("tokenizer.ggml.token_type")
    place, inside = ends.get("</s>", -1), {"<|end|>"} if {"<|call|>", "<|calls|>"} & ends.keys() else set()
    plain = {"</s>"} if not isinstance(kinds, list) or kinds[place : place + 1] != [CONTROL] else set()
    named = (metadata.get(f"tokenizer.ggml.{name}") for name in NAMED_ENDS)
    others = sorted(each for name, each in ends.items() if name not in inside | plain)
    return list(dict.fromkeys([*(each for each in named if each is not None), *others]))


def _adds(metadata: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether bos is put before a text, and eos after it."""
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre") or DEFAULT
    usual = model == "llama" or (model == "gpt2" and str(pre) in PRE_TOKENIZERS and PRE_TOKENIZERS[str(pre)].adds_bos)
    return {
        "bos_token": model == "gemma4" or bool(metadata.get("tokenizer.ggml.add_bos_token", usual)),
        "eos_token": bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    }


def _list(metadata: Mapping[str, Any], name: str, kind: type, length: int = 0) -> list[Any]:
    """Return an array of the file of one type, with at least ``length`` entries. Raises CheckpointError."""
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list) or len(found) < length or not all(isinstance(each, kind) for each in found):
        raise CheckpointError(f"tokenizer.ggml.{name} is missing or too short")
    return found


def _pre_tokenizer(kind: Any) -> PreTokenizer:
    """Raise CheckpointError for an unknown kind, because a guess would give other tokens unnoticed."""
    if kind and kind not in PRE_TOKENIZERS:
        raise CheckpointError(f"its tokenizer.ggml.pre {kind!r} is not known, so how it cuts texts is not either")
    return PRE_TOKENIZERS[kind or DEFAULT]


# Parts of a tokenizer.json


def _bpe(
    tokens: Sequence[str], merges: Sequence[tuple[str, str]], *, whole_words: bool = False, bytes_too: bool = False
) -> Part:
    """Return a model. whole_words: take a word that is a token whole; bytes_too: spell unknown characters in bytes."""
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": bytes_too, "ignore_merges": whole_words,
        "vocab": {text: i for i, text in enumerate(tokens)}, "merges": merges,
    }  # fmt: skip


def _in_order(kind: str, *parts: Part) -> Part:
    return {"type": "Sequence", kind: parts}


def _split(expression: str) -> Part:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _replace(old: str, new: str) -> Part:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _bytes(*, prefix: bool, regex: bool) -> Part:
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def _byte_level(tokens: Sequence[str], merges: Sequence[str], pre: PreTokenizer) -> Part:
    """Return the parts of a tokenizer of GPT-2's kind. A merge is two tokens with a space between."""
    return {
        "normalizer": None,
        "pre_tokenizer": _in_order("pretokenizers", *map(_split, pre.expressions), _bytes(prefix=False, regex=False)),
        "decoder": _bytes(prefix=True, regex=True),
        "model": _bpe(tokens, _pairs(tokens, merges), whole_words=pre.whole_words),
    }


def _pairs(tokens: Sequence[str], merges: Sequence[str]) -> list[tuple[str, str]]:
    """Return the two tokens of each merge, of which the first may begin with a space; none of tokens that are not there."""
    vocabulary = frozenset(tokens)
    pairs = [(each[:at], each[at + 1 :]) for each in merges if (at := each.find(" ", 1)) > 0]
    return [pair for pair in pairs if vocabulary.issuperset((*pair, "".join(pair)))]


def _merged_words(tokens: Sequence[str], merges: Sequence[str]) -> Part:
    """Return the parts of a tokenizer of Gemma 4's kind: merges as of GPT-2's kind, of characters, in whole lines."""
    return {
        "normalizer": _replace(" ", SPACE),
        "pre_tokenizer": _split(r"[^\n]+|\n+"),
        "decoder": _in_order("decoders", _replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}),
        "model": _bpe(tokens, _pairs(tokens, merges), bytes_too=True),
    }


def _sentencepiece(tokens: Sequence[str], scores: Sequence[float], *, space: bool) -> Part:
    """Return the parts of a tokenizer of Llama's kind, which merges to the token with the best score first.

    space: put one before a text and after each special token, even if there is one already. Raises CheckpointError.
    """
    if sum(len(text) ** 2 for text in tokens) > MOST_HALVES:
        raise CheckpointError("the texts in tokenizer.ggml.tokens are too long to be tokens")
    vocabulary = {text: i for i, text in enumerate(tokens)}
    best_first = sorted(vocabulary.items(), key=lambda each: (-scores[each[1]], each[1]))
    halves = ((text[:at], text[at:]) for text, _ in best_first for at in range(1, len(text)))
    merges = [(left, right) for left, right in halves if left in vocabulary and right in vocabulary]
    before: list[Part] = [{"type": "Prepend", "prepend": SPACE}] if space else []
    after: list[Part] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if space else []
    return {
        "normalizer": _in_order("normalizers", *before, _replace(" ", SPACE)),
        "pre_tokenizer": None,
        "decoder": _in_order("decoders", _replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *after),
        "model": _bpe(tokens, merges, bytes_too=True),
    }


UNPRINTABLE = (*range(0x21), *range(0x7F, 0xA1), 0xAD)
BYTES = [chr(256 + UNPRINTABLE.index(byte)) if byte in UNPRINTABLE else chr(byte) for byte in range(256)]
"""GPT-2's characters for bytes: those that cannot be printed have others."""
ESCAPED = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
CONTROLS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def _longest(tokens: Sequence[str]) -> Part:
    r"""Return the parts of a tokenizer of RWKV's kind: the longest token, then the longest of what is left, in bytes.

    A token's bytes are written as Python writes them, such as ``\xff``. Raises CheckpointError if a byte has no token.
    """

    def plain(escaped: re.Match[bytes]) -> bytes:
        return bytes.fromhex(escaped[1].decode()) if escaped[1] else CONTROLS.get(escaped[2], escaped[2])

    vocabulary: dict[str, int] = {}
    for i, text in enumerate(tokens):
        vocabulary.setdefault("".join(BYTES[byte] for byte in ESCAPED.sub(plain, text.encode())), i)
    if missing := [byte for byte, character in enumerate(BYTES) if character not in vocabulary]:
        raise CheckpointError(f"tokenizer.ggml.tokens has no token for byte {missing[0]}")
    pieces = {"continuing_subword_prefix": "", "max_input_chars_per_word": 1 << 30}
    return {
        "normalizer": None,
        "pre_tokenizer": _bytes(prefix=False, regex=False),
        "decoder": _bytes(prefix=True, regex=True),
        "model": {"type": "WordPiece", "unk_token": BYTES[0], **pieces, "vocab": vocabulary},
    }


def _added(tokens: Sequence[str], kinds: Sequence[Any]) -> list[Part]:
    """Return the tokens that are matched whole: special and user-defined ones."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    found = [(i, text, _kind(text, kinds[i] if i < len(kinds) else 1)) for i, text in enumerate(tokens)]
    return [
        {"id": i, "content": text, **flags, "special": kind in (UNKNOWN, CONTROL)}
        for i, text, kind in found
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]


def _kind(text: str, said: Any) -> Any:
    if text in ALWAYS_USER_DEFINED:
        return USER_DEFINED
    return CONTROL if text in ALWAYS_CONTROL else said


def _around(added: Mapping[str, tuple[str, int]]) -> Part:
    """Return a post-processor that puts bos and eos around a text, as far as they are in ``added``."""

    def special(name: str, place: int) -> list[Part]:
        return [{"SpecialToken": {"id": added[name][0], "type_id": place}}] if name in added else []

    def text(name: str, place: int) -> list[Part]:
        return [*special("bos_token", place), {"Sequence": {"id": name, "type_id": place}}, *special("eos_token", place)]

    tokens = {token: {"id": token, "ids": [place], "tokens": [token]} for token, place in added.values()}
    return {
        "type": "TemplateProcessing",
        "single": text("A", 0),
        "pair": [*text("A", 0), *text("B", 1)],
        "special_tokens": tokens,
    }


# The kinds of ``tokenizer.ggml.pre``: expressions that llama.cpp splits a text with before its merges. Each splits the
# pieces of the one before; unmatched text stays a piece. Here each matches all of a text, by an alternative for the
# rest, because ExecuTorch's tokenizer drops unmatched text. They are written as llama.cpp reads them, which is not
# always as in the model's own tokenizer.json: upper and lower case are ASCII's in ``tekken`` and ``gpt-4o``, and
# contractions have ASCII letters only. Source: llama.cpp ``src/llama-vocab.cpp``, ``src/unicode.cpp``.

CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
LINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS, SIGNS = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+"

GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{SIGNS}|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}{{1,3}}|{SIGNS}[\r\n]*|{LINES_AND_SPACES}"
QWEN2 = rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}|{SIGNS}[\r\n]*|{LINES_AND_SPACES}"
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{LINES_AND_SPACES}"
)
MINICPM5 = rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}+|{SIGNS}[\r\n]*|{LINES_AND_SPACES}"
SEED_CODER = rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}|" r" ?[^\s\p{L}\p{N}\r\n]+|" + LINES_AND_SPACES
BAILING = rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}|{SIGNS}[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
UFAKZEKA = rf"{LETTERS}|\p{{N}}|{SIGNS}[\r\n]*|{LINES_AND_SPACES}"

UPPER, LOWER = r"[^\P{L}a-z]", r"[^\P{L}A-Z]"
BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = rf"{BEFORE_WORD}{UPPER}*{LOWER}+|{BEFORE_WORD}{UPPER}+{LOWER}*|\p{{N}}|{SIGNS}[\r\n/]*|{LINES_AND_SPACES}"
GPT4O = (
    rf"{BEFORE_WORD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{BEFORE_WORD}{UPPER}+{LOWER}*{CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{SIGNS}[\r\n/]*|{LINES_AND_SPACES}"
)

HAN = r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
KIMI = rf"[{HAN}]+|{BEFORE_WORD}[^\P{{L}}{HAN}]+{CONTRACTIONS}?|\p{{N}}{{1,3}}|{SIGNS}[\r\n]*|{LINES_AND_SPACES}"

KANA_AND_HAN = r"\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{LINES_AND_SPACES}"
)
NOT_PUNCTUATED = r" ?[^(\s|.,!?…。，、।۔،)]+"


def _runs(characters: str) -> str:
    """Return an expression for runs of some characters, and runs of all others."""
    return f"[{characters}]+|[^{characters}]+"


def _or_rest(expression: str) -> str:
    """Return an expression for ``expression``, and for all text before the next match of it."""
    return rf"{expression}|(?:(?!{expression})[\s\S])+"


@dataclass(frozen=True, kw_only=True)
class PreTokenizer:
    """A way to split texts. whole_words: take a word that is a token whole, whatever its merges; adds_bos: the default."""

    expressions: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


def _kinds(names: str, *expressions: str, whole_words: bool = False, adds_bos: bool = False) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), PreTokenizer(expressions=expressions, whole_words=whole_words, adds_bos=adds_bos))


DIGIT, UP_TO_THREE, THREE_DIGITS = r"\p{N}|\P{N}+", r"\p{N}{1,3}|\P{N}+", _or_rest("[0-9]{3}")
DEFAULT = "default"
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **_kinds(DEFAULT, _runs(r"\p{P}\$\+<=>\^~\|"), GPT2, _runs(r"\p{N}"), THREE_DIGITS),
    **_kinds(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        LLAMA3,
        whole_words=True,
        adds_bos=True,
    ),
    **_kinds("dbrx smaug-bpe glm4 chatglm-bpe", LLAMA3),
    **_kinds("gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling", GPT2),
    **_kinds("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", DIGIT, GPT2),
    **_kinds("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", QWEN2),
    **_kinds("qwen35", QWEN35),
    **_kinds("tekken", TEKKEN, whole_words=True, adds_bos=True),
    **_kinds("gpt-4o llama4 kanana2 talkie minimax-m2", GPT4O),
    **_kinds("kimi-k2", KIMI),
    **_kinds("deepseek-v3 hunyuan-dense joyai-llm hy_v4", UP_TO_THREE, _runs(KANA_AND_HAN), _or_rest(f"(?:{DEEPSEEK3})")),
    **_kinds("falcon", _runs(r"\p{P}\$\+<=>\^~\|`"), GPT2, THREE_DIGITS),
    **_kinds("poro-chat bloom gpt3-finnish", _or_rest(NOT_PUNCTUATED)),
    **_kinds("viking", _or_rest(NOT_PUNCTUATED), DIGIT),
    **_kinds("bailingmoe bailingmoe2 llada-moe", BAILING),
    **_kinds("seed-coder", SEED_CODER),
    **_kinds("minicpm5", UP_TO_THREE, MINICPM5, whole_words=True),
    **_kinds("ufakzeka", UFAKZEKA),
    **_kinds("laguna", r"[^\n]+|[\n]+", QWEN2),
}
