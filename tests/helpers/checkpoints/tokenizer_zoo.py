"""Tokenizers of each published kind, trained small by the tokenizers library, and texts on which tokenizers differ."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizer_folders import TEXT
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

N, P, D = normalizers, pre_tokenizers, decoders


def split(pattern: str) -> Any:
    return P.Split(Regex(pattern), "isolated")


def byte_level(*before: Any, **options: Any) -> Any:
    """Return a pre-tokenizer that ends with bytes, as GPT-2's and its successors' do."""
    last = P.ByteLevel(add_prefix_space=options.get("prefix", False), use_regex=options.get("regex", False))
    return P.Sequence([*before, last]) if before else last


def template(tokenizer: Tokenizer) -> Any:
    """Return a post-processor that puts bos and eos around a text."""
    names = SPECIAL[:2]
    ids = [(name, tokenizer.token_to_id(name)) for name in names]
    return processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=ids)


def assembled(tokenizer: Tokenizer, trainer: Any, parts: tuple[Any, ...]) -> Tokenizer:
    """Train a tokenizer of these parts: normalizer, pre-tokenizer, decoder, and what makes the post-processor."""
    normalizer, pre_tokenizer, decoder, *post = parts
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator([*TEXT, *PIECES, *PIECES], trainer)
    for each in post:
        tokenizer.post_processor = each(tokenizer)
    return tokenizer


def bpe(*parts: Any, **options: Any) -> Tokenizer:
    """Byte pairs: of bytes, or of characters if there is an unknown token."""
    characters = "unk_token" in options
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[*SPECIAL, *(["<unk>"] if characters else [])],
        initial_alphabet=[] if characters else P.ByteLevel.alphabet(),
        limit_alphabet=120 if characters else 1000,
        show_progress=False,
        **{name: options[name] for name in ("continuing_subword_prefix", "end_of_word_suffix") if name in options},
    )
    return assembled(Tokenizer(models.BPE(**options)), trainer, parts)


def with_bytes(tokenizer: Tokenizer) -> Tokenizer:
    """Let what has no token be bytes."""
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    for token in BYTES:
        if isinstance(vocabulary, dict):
            vocabulary.setdefault(token, len(vocabulary))
        else:
            vocabulary.append([token, -9.0])
    content["model"]["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(content))


def unigram(*parts: Any) -> Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=700, special_tokens=[*SPECIAL, "<unk>"], unk_token="<unk>", show_progress=False
    )
    return assembled(Tokenizer(models.Unigram()), trainer, parts)


def word_piece(normalizer: Any) -> Tokenizer:
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    around = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    parts = (normalizer, P.BertPreTokenizer(), D.WordPiece(), lambda _: around)
    return assembled(Tokenizer(models.WordPiece(unk_token="[UNK]")), trainer, parts)


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"the": 0, "<unk>": 1, "tokens": 2, "<s>": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = P.Sequence([P.CharDelimiterSplit(" "), P.FixedLength(6)])
    return tokenizer


def with_added_tokens() -> Tokenizer:
    """Added tokens of every kind, above a normalizer that changes some of them."""
    tokenizer = bpe(N.Sequence([N.NFC(), N.Lowercase()]), byte_level(split(QWEN)), D.ByteLevel())
    tokenizer.add_tokens(
        [
            *(AddedToken("HYBRID", normalized=True), AddedToken("state", single_word=True, normalized=False)),
            *(AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True)),
            *(AddedToken("é", normalized=True), AddedToken("<|im", special=True, normalized=False)),
            *(AddedToken("to", single_word=True), AddedToken("<lr>", lstrip=True, rstrip=True)),
        ]
    )
    return tokenizer


def byte_level_normalizer() -> Tokenizer:
    tokenizer = bpe(N.ByteLevel(), split(r"[ĠĊ]|\p{L}+|\d+"), D.ByteLevel())
    tokenizer.add_tokens([AddedToken("my tok", normalized=True)])
    return tokenizer


def prepended() -> Tokenizer:
    tokenizer = unigram(N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), P.Split("▁", "merged_with_next"), D.Metaspace())
    tokenizer.add_special_tokens(["<sp ecial>"])
    tokenizer.add_tokens([AddedToken("</s>x", normalized=True)])
    return tokenizer


UNKNOWN = {"unk_token": "<unk>", "fuse_unk": True}
SENTENCEPIECE = (D.Replace("▁", " "), D.ByteFallback(), D.Fuse())
FIRST = P.Metaspace(prepend_scheme="first", split=False)
CLIP = P.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True)
TRIMMED = processors.ByteLevel(trim_offsets=True)
ZOO: Mapping[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: bpe(None, byte_level(regex=True), D.ByteLevel(), lambda _: TRIMMED),
    "gpt2 with a blank in front": lambda: bpe(
        None, byte_level(prefix=True, regex=True), D.ByteLevel(), lambda _: processors.ByteLevel(add_prefix_space=True)
    ),
    "roberta": lambda: bpe(
        None, byte_level(regex=True), D.ByteLevel(), lambda _: processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    ),
    "qwen": lambda: bpe(N.NFC(), byte_level(split(QWEN)), D.ByteLevel(), lambda _: processors.ByteLevel(trim_offsets=False)),
    "llama3": lambda: bpe(
        *(None, byte_level(split(LLAMA3)), D.ByteLevel()),
        lambda tokenizer: processors.Sequence([TRIMMED, template(tokenizer)]),
        ignore_merges=True,
    ),
    "gpt-4o": lambda: bpe(None, byte_level(split(GPT4O)), D.ByteLevel(), template),
    "deepseek": lambda: bpe(
        *(N.Sequence([]), byte_level(*map(split, DEEPSEEK)), D.ByteLevel()),
        lambda tokenizer: processors.Sequence([template(tokenizer), TRIMMED]),
    ),
    "smollm": lambda: bpe(None, byte_level(P.Digits(individual_digits=True), regex=True), D.ByteLevel()),
    "falcon": lambda: bpe(
        *(None, P.Sequence([P.Punctuation("contiguous"), byte_level(regex=True), P.Digits(), split("[0-9][0-9][0-9]")])),
        D.ByteLevel(),
    ),
    "llama2": lambda: with_bytes(
        bpe(
            *(N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), None),
            *(D.Sequence([*SENTENCEPIECE, D.Strip(" ", 1, 0)]), template),
            **UNKNOWN,
        )
    ),
    "gemma": lambda: with_bytes(
        bpe(N.Replace(" ", "▁"), P.Split(" ", "merged_with_previous"), D.Sequence([*SENTENCEPIECE]), template, **UNKNOWN)
    ),
    "mistral": lambda: with_bytes(bpe(None, FIRST, D.Sequence([*SENTENCEPIECE, D.Strip(" ", 1, 0)]), **UNKNOWN)),
    "metaspace": lambda: bpe(N.NFKC(), P.Metaspace(), D.Metaspace(), unk_token="<unk>"),
    "clip": lambda: bpe(
        *(N.Sequence([N.NFC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()]), P.Sequence([CLIP, byte_level(regex=True)])),
        *(D.ByteLevel(),),
        end_of_word_suffix="</w>",
        unk_token="<unk>",
    ),
    "suffixes": lambda: bpe(
        N.NFD(), P.WhitespaceSplit(), D.BPEDecoder(suffix="</w>"), end_of_word_suffix="</w>", unk_token="<unk>"
    ),
    "prefixes": lambda: bpe(
        N.NFKD(), P.Whitespace(), D.WordPiece(prefix="##"), continuing_subword_prefix="##", unk_token="<unk>"
    ),
    "t5": lambda: unigram(None, P.Sequence([P.WhitespaceSplit(), P.Metaspace()]), D.Metaspace(), template),
    "unigram with bytes": lambda: with_bytes(unigram(N.NFKC(), FIRST, D.Sequence([D.ByteFallback(), D.Metaspace()]))),
    "nmt": lambda: unigram(
        N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " "), N.Strip(left=False)]), P.Metaspace(), D.Metaspace()
    ),
    "bert": lambda: word_piece(N.BertNormalizer()),
    "bert, cased": lambda: word_piece(N.BertNormalizer(lowercase=False, strip_accents=True, clean_text=False)),
    "bert, in parts": lambda: word_piece(N.Sequence([N.NFD(), N.StripAccents(), N.Lowercase(), N.Strip()])),
    "words": word_level,
    "added tokens": with_added_tokens,
    "byte-level normalizer": byte_level_normalizer,
    "prepended": prepended,
}
"""By the model that published one like it, or by what is special about it."""


PIECES = (
    "the tokens", "Hybrid", "layers of linear attention", "x_y = f(3.5);",
    "def f(a, b):\n    return a**b\n", "I'M", "they'll", "don't", "WE'VE", "’s", "camelCaseWORDs",
    "ÉCOLE École", "漢字とかな", "한국어", "中文，混排。", "ไทย", "हिन्दी", "شكرا", "עברית", "e\u0301",
    "n\u0303o", "\u0301", "Å", "ﬁ", "ǅ", "ß", "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\U0001f3f3\ufe0f\u200d\U0001f308", "🚀🚀", "\u200b", "\xa0", "\u3000", "\u2581", "\r\n", "\n",
    "\n\n\n", "\t", " ", "  ", "     ", " " * 40, "\n  \n", "1", "12", "12345678", "3.14",
    "1,000,000", "½", "४२", "²", "<0x0A>", "<", "|>", "$+`^~", "!!!", "...", "—", "“q”", "\x00",
    "\x7f", "\ufffd", "𝔘𝔫𝔦", "a" * 30,
)  # fmt: skip


def odd_texts(count: int, special: Sequence[str] = (), seed: int = 0) -> list[str]:
    """Return texts of a few pieces each, the text of special tokens among them; the first is empty."""
    draw = random.Random(seed)
    pieces = (*PIECES, *special, *special)
    return ["", *("".join(draw.choices(pieces, k=draw.randint(1, 8))) for _ in range(count - 1))]
