"""Read a GGUF file as the transformers checkpoint that it was made from: its config.json, weights by name, and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.source.files import first_line
from hybridge.export.source.gguf import attention_tables, latent_tables, mamba_tables, rwkv_tables, transformer_tables
from hybridge.export.source.gguf.architecture import Architecture, layers, made
from hybridge.export.source.gguf.file import GgufFile
from hybridge.export.source.quantization import LazyTensor
from hybridge.runtime.pack.gguf import read_header

ARCHITECTURES: Mapping[str, Architecture] = {
    **attention_tables.TABLE,
    **transformer_tables.TABLE,
    **latent_tables.TABLE,
    **mamba_tables.TABLE,
    **rwkv_tables.TABLE,
}
NOT_WEIGHTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def gguf_config(file: GgufFile) -> dict[str, Any]:
    """Return the config.json that the file stands for. Raises CheckpointError, UnsupportedModelError."""
    tokens, table = file.metadata.get("tokenizer.ggml.tokens"), file.tensors.get("token_embd.weight")
    if isinstance(tokens, int) and table is not None and tokens != table.shape[0]:
        raise CheckpointError(
            f"{file.path} cannot be read as GGUF (its tokenizer has {tokens:,} tokens, but token_embd.weight "
            f"{table.shape[0]:,} rows, one for each); download it again."
        )
    try:
        return _architecture(file).config(file)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise CheckpointError(
            f"{file.path} cannot be read as GGUF (its sizes make no sense: {first_line(error)}); download it again."
        ) from error


def gguf_weights(file: GgufFile) -> dict[str, LazyTensor]:
    """Return the weights by their names in a transformers checkpoint. Raises UnsupportedModelError for an unknown tensor."""
    architecture, config = _architecture(file), gguf_config(file)
    count = layers(file)
    places = [("", "", architecture.model)]
    places += [(f"blk.{i}.", f"{architecture.prefix}.{i}.", architecture.layer) for i in range(count)]
    found: dict[str, LazyTensor] = {}
    used = set(NOT_WEIGHTS)
    for block, prefix, weights in places:
        for name, tensor, sources in made(weights, file.tensors, config, block=block):
            found.setdefault(prefix + name, tensor)
            used |= set(sources)
    drafting = tuple(f"blk.{i}." for i in range(count, int(file["block_count"])))
    if unknown := [name for name in file.tensors if name not in used and not name.startswith(drafting or ("\0",))]:
        raise UnsupportedModelError(
            f"{file.path} has tensors that hybridge knows no place for, such as {unknown[0]} ({len(unknown)} in all). "
            "Take the checkpoint that the file was made from."
        )
    return found


def gguf_drafter(file: GgufFile) -> dict[str, LazyTensor]:
    """Return the weights of the layers of multi-token prediction by their names in a transformers checkpoint.

    Unknown tensors of these layers are among them, by the file's own names. Empty if hybridge knows no such layers.
    """
    architecture = _architecture(file)
    drafter = architecture.drafter
    if drafter is None:
        return {}
    config, first = gguf_config(file), layers(file)
    found: dict[str, LazyTensor] = {}
    for i in range(first, int(file["block_count"])):
        block = f"blk.{i}."
        place, prefix = (each.format(own=i - first, index=i) for each in (drafter.place, drafter.layer))
        used = set[str]()
        for start, weights in ((place, drafter.around), (prefix, architecture.layer)):
            for name, tensor, sources in made(weights, file.tensors, config, block=block):
                found.setdefault(start + name, tensor)
                used |= set(sources)
        others = {name for name in file.tensors if name.startswith(block)} - used
        found |= {prefix + name.removeprefix(block): file.tensors[name] for name in others}
    return found


def write_tokenizer_files(file: GgufFile, folder: Path) -> str:
    """Write the file's tokenizer and chat template into ``folder`` and return a warning, empty if nothing is amiss.

    The warning says what is missing; this raises nothing, because an artifact may do without a tokenizer.
    """
    if "tokenizer.ggml.tokens" not in file.metadata:
        return f"{file.path} has no tokenizer: give one with --tokenizer FOLDER."
    try:
        metadata = read_header(file.path, strings=("tokenizer.ggml.tokens", "tokenizer.ggml.merges")).metadata
        made = read_gguf_tokenizer(metadata)
    except Exception as error:  # the tokenizers library has no error of its own for a vocabulary that makes no sense
        return f"the tokenizer in {file.path} cannot be converted ({first_line(error)}): give one with --tokenizer FOLDER."
    made.tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(made.config, ensure_ascii=False), encoding="utf-8")
    if isinstance(template := metadata.get("tokenizer.chat_template"), str):
        (folder / "chat_template.jinja").write_text(_with_bos(template, made.config), encoding="utf-8")
    return f"{file.path}: {made.note}" if made.note else ""


def _architecture(file: GgufFile) -> Architecture:
    if file.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path} is of llama.cpp's architecture {file.architecture!r}, which hybridge does not read. "
            f"It reads {', '.join(sorted(ARCHITECTURES))}. Take the checkpoint that the file was made from."
        )
    return ARCHITECTURES[file.architecture]


def _with_bos(template: str, config: dict[str, Any]) -> str:
    """Let a chat template write bos if the file adds it to every text, because llama.cpp adds it to a chat, too."""
    bos = config.get("bos_token")
    written = bos is None or bos in template or "bos_token" in template
    return template if written or not config["add_bos_token"] else "{{ bos_token }}" + template


# The tokenizer, as a tokenizer.json that gives llama.cpp's ids. llama.cpp's rules differ: bos and eos are switches with
# a default for each kind, tokens of some names are special whatever the file says, and a space goes before a text and
# after each special token if the file asks for it. Source: llama.cpp ``src/llama-vocab.cpp``.

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Types of tokens that are matched in a text before it is split into words."""

ALWAYS_CONTROL = frozenset(
    """<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT>
    _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~[
    <|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>
    <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>
    <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>
    <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>""".split()  # noqa: SIM905  # a line for each token would be longer than the rest
)
"""Tokens that are special whatever type the file gives them."""

ALWAYS_USER_DEFINED = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))
SPACE = "\u2581"
MOST_HALVES = 1 << 30
"""Most characters of all halves of all tokens, each looked up once; Gemma's 262,144 tokens have 20 million."""
NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Names of the special tokens in a tokenizer_config.json and in a GGUF file."""

DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    "gpt2": {"bos_token": 11, "eos_token": 11},
    "llama": {"bos_token": 1, "eos_token": 2},
    "gemma4": {},
}
"""Defaults for a file that asks for a token around its texts and does not say which, by the kinds of tokenizers."""


@dataclass(frozen=True, kw_only=True)
class GgufTokenizer:
    """A converted tokenizer. config: entries of its tokenizer_config.json; note: a warning for the user, or empty."""

    tokenizer: Tokenizer
    config: dict[str, Any]
    note: str = ""


def read_gguf_tokenizer(metadata: Mapping[str, Any]) -> GgufTokenizer:
    """Return the tokenizer that a file's metadata describe; its arrays of strings must have been read.

    Raises CheckpointError for a kind that hybridge does not read, a duplicate token, or a missing one.
    """
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model not in DEFAULT_IDS:
        raise CheckpointError(f"its tokenizer.ggml.model {model!r} is not read, only {', '.join(map(repr, DEFAULT_IDS))}")
    tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(_list(metadata, "tokens"))]
    if len({*tokens}) != len(tokens):
        raise CheckpointError("tokenizer.ggml.tokens has a token twice")
    note, adds_bos = "", True
    if model == "gpt2":
        kind = metadata.get("tokenizer.ggml.pre")
        pre = _pre_tokenizer(kind)
        tokenizer, adds_bos = _byte_level(tokens, _list(metadata, "merges"), pre), pre.adds_bos
        note = "" if kind else "it does not say how its texts are cut (tokenizer.ggml.pre): cut as llama.cpp does by default."
    elif model == "gemma4":
        tokenizer = _merged_words(tokens, _list(metadata, "merges"))
    else:
        scores = _list(metadata, "scores", len(tokens))
        tokenizer = _sentencepiece(tokens, scores, space=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)))
    _add_special(tokenizer, tokens, metadata.get("tokenizer.ggml.token_type") or ())
    adds = {
        "bos_token": model == "gemma4" or bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos)),
        "eos_token": bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    }
    ids = {name: _id(metadata, name, len(tokens), DEFAULT_IDS[model] if adds.get(name) else {}) for name in NAMES}
    if missing := [name for name, wanted in adds.items() if wanted and ids[name] is None]:
        raise CheckpointError(f"tokenizer.ggml.add_{missing[0]} is true, but the file has no such token")
    named = {name: tokens[place] for name, place in ids.items() if place is not None}
    tokenizer.post_processor = _around({name: (named[name], ids[name]) for name, wanted in adds.items() if wanted})
    switches = {f"add_{name}": wanted for name, wanted in adds.items()}
    return GgufTokenizer(
        tokenizer=tokenizer, config={"tokenizer_class": "PreTrainedTokenizerFast", **switches, **named}, note=note
    )


def _list(metadata: Mapping[str, Any], name: str, length: int = 0) -> list[Any]:
    """Return an array of the file with at least ``length`` entries. Raises CheckpointError."""
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list) or len(found) < length:
        raise CheckpointError(f"tokenizer.ggml.{name} is missing or too short")
    return found


def _pre_tokenizer(kind: Any) -> PreTokenizer:
    """Raise CheckpointError for an unknown kind, because a guess would give other tokens unnoticed."""
    if kind and kind not in PRE_TOKENIZERS:
        raise CheckpointError(f"its tokenizer.ggml.pre {kind!r} is not known, so how it cuts texts is not either")
    return PRE_TOKENIZERS[kind or DEFAULT]


def _id(metadata: Mapping[str, Any], name: str, count: int, default: Mapping[str, int]) -> int | None:
    """Return a named token's id, or None if it is missing or outside the vocabulary."""
    places = (metadata.get(f"tokenizer.ggml.{NAMES[name]}_token_id"), default.get(name))
    return next((place for place in places if isinstance(place, int) and 0 <= place < count), None)


def _byte_level(tokens: Sequence[str], merges: Sequence[str], pre: PreTokenizer) -> Tokenizer:
    """Return a tokenizer of GPT-2's kind. A merge is two tokens with a space between; the first may begin with one, too."""
    vocabulary = {text: i for i, text in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, _pairs(vocabulary, merges), ignore_merges=pre.whole_words))
    cuts = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in pre.expressions]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pairs(vocabulary: Mapping[str, int], merges: Sequence[str]) -> list[tuple[str, str]]:
    """Return the two tokens of each merge, without merges of tokens that are not there."""
    pairs = [(each[:at], each[at + 1 :]) for each in merges if (at := each.find(" ", 1)) > 0]
    return [pair for pair in pairs if {*pair, "".join(pair)} <= vocabulary.keys()]


def _merged_words(tokens: Sequence[str], merges: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of Gemma 4's kind: merges as of GPT-2's kind, of characters, in whole lines."""
    vocabulary = {text: i for i, text in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, _pairs(vocabulary, merges), byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _sentencepiece(tokens: Sequence[str], scores: Sequence[float], *, space: bool) -> Tokenizer:
    """Return a tokenizer of Llama's kind, which merges to the token with the best score first.

    space: put one before a text and after each special token, even if there is one already. Raises CheckpointError.
    """
    if sum(len(text) ** 2 for text in tokens) > MOST_HALVES:
        raise CheckpointError("the texts in tokenizer.ggml.tokens are too long to be tokens")
    vocabulary = {text: i for i, text in enumerate(tokens)}
    best_first = sorted(vocabulary.items(), key=lambda each: (-scores[each[1]], each[1]))
    halves = ((text[:at], text[at:]) for text, _ in best_first for at in range(1, len(text)))
    merges = [(left, right) for left, right in halves if left in vocabulary and right in vocabulary]
    tokenizer = Tokenizer(BPE(vocabulary, merges, byte_fallback=True))
    first = [normalizers.Prepend(SPACE)] if space else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if space else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return tokenizer


def _add_special(tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Add the tokens that are matched whole: special and user-defined ones."""
    found = [(text, _kind(text, kinds[i] if i < len(kinds) else 1)) for i, text in enumerate(tokens)]
    for wanted, special in (((UNKNOWN, CONTROL), True), ((USER_DEFINED,), False)):
        each = [AddedToken(text, normalized=False, special=special) for text, kind in found if kind in wanted]
        add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
        add(each)


def _kind(text: str, said: int) -> int:
    if text in ALWAYS_USER_DEFINED:
        return USER_DEFINED
    return CONTROL if text in ALWAYS_CONTROL else said


def _around(added: Mapping[str, tuple[str, int | None]]) -> processors.TemplateProcessing:
    """Return a post-processor that puts bos and eos around a text, as far as they are in ``added``."""
    before, after = ([added[name][0]] if name in added else [] for name in ("bos_token", "eos_token"))
    single, other = [*before, "$A:0", *after], [*before, "$B:1", *after]
    return processors.TemplateProcessing(single=single, pair=[*single, *other], special_tokens=[*{*added.values()}])


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
