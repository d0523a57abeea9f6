"""The kinds of ``tokenizer.ggml.pre``: the expressions that llama.cpp cuts a text with before its merges, one after the other.

Each expression cuts the pieces of the one before; what it does not match stays a piece. Here each matches all of a text, by an
alternative for the rest, because ExecuTorch's tokenizer drops what is not matched. They are written as llama.cpp reads them,
which is not always as the model's own tokenizer.json has them: upper and lower case are ASCII's in ``tekken`` and ``gpt-4o``,
and contractions have ASCII's letters only. Source: llama.cpp ``src/llama-vocab.cpp``, ``src/unicode.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    """Return what matches runs of some characters, and runs of all others."""
    return f"[{characters}]+|[^{characters}]+"


def _or_rest(expression: str) -> str:
    """Return what matches ``expression``, and all that stands before the next match of it."""
    return rf"{expression}|(?:(?!{expression})[\s\S])+"


@dataclass(frozen=True, kw_only=True)
class PreTokenizer:
    """expressions: in their order; whole_words: a word that is a token is one, whatever its merges; adds_bos: unless told."""

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
