"""Tokenizers in the forms that checkpoints have them, small and the same each time."""

from __future__ import annotations

import base64
import io
import json
import warnings
from pathlib import Path
from typing import Any

from tokenizers import ByteLevelBPETokenizer

TEXT = [
    f"{i} hybrid models keep a state: the layers of linear attention fold {i * 7} tokens into it, the others keep them all."
    for i in range(60)
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def added_token(text: str) -> dict[str, Any]:
    """An entry of ``added_tokens_decoder``."""
    return {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))


def save_sentencepiece(folder: Path, kind: str = "bpe", tokens: int = 380) -> Any:
    """Train a tokenizer.model as Llama's are: bytes for what has no piece, whitespace kept. Returns sentencepiece's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sentencepiece

        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT),
            model_writer=written,
            vocab_size=tokens,
            model_type=kind,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / "tokenizer.model").write_bytes(written.getvalue())
        return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def save_vocabulary(folder: Path, tokens: int = 330) -> ByteLevelBPETokenizer:
    """Train a vocab.json and a merges.txt as GPT-2's and Qwen's are."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(TEXT, vocab_size=tokens, special_tokens=SPECIAL, show_progress=False)
    tokenizer.save_model(str(folder))
    return tokenizer


def save_tiktoken(folder: Path, name: str = "tiktoken.model") -> Any:
    """Write base64 lines as Llama 3 has them, and the config that names its special tokens. Returns tiktoken's own."""
    import tiktoken

    pairs = [b"th", b"the", b" t", b" the", b"to", b"tok", b"toke", b"token", b"tokens"]
    ranks = {token: rank for rank, token in enumerate([*(bytes([i]) for i in range(256)), *pairs])}
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    (folder / name).write_text("".join(lines))
    special = {text: len(ranks) + i for i, text in enumerate(SPECIAL)}
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIAL[2],
            "added_tokens_decoder": {str(i): added_token(text) for text, i in special.items()},
        },
    )
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return tiktoken.Encoding("tiny", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
