"""Tokenizers as a GGUF file's metadata describe them, trained small; the names are without ``tokenizer.ggml.``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llama_cpp_tokens import CUTS
from tokenizer_folders import SPECIAL, TEXT, save_sentencepiece
from tokenizer_zoo import BYTES
from tokenizers import ByteLevelBPETokenizer, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers


def byte_level(pre: str, **switches: Any) -> dict[str, Any]:
    """Return the metadata of a tokenizer of GPT-2's kind; the names are without ``tokenizer.ggml.``."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(TEXT, vocab_size=330, special_tokens=SPECIAL, show_progress=False)
    content = json.loads(tokenizer.to_str())
    tokens = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    merges = [" ".join(merge) for merge in content["model"]["merges"]]
    kinds = [3 if token in SPECIAL else 1 for token in tokens]
    tokens, kinds = [*tokens, "<think>", "   ", "Ġunmerged"], [*kinds, 4, 4, 1]
    return {
        "model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": merges, "bos_token_id": 0,
        "eos_token_id": 2, **switches,
    }  # fmt: skip


def by_score(**switches: Any) -> dict[str, Any]:
    """Return the metadata of a tokenizer of Llama's kind."""
    with TemporaryDirectory() as folder:
        model = save_sentencepiece(Path(folder))
    pieces = range(model.get_piece_size())
    kinds = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in pieces]
    return {
        "model": "llama", "tokens": [*map(model.id_to_piece, pieces), "   ", "<start_of_turn>"],
        "scores": [*map(model.get_score, pieces), -1000.0, -1000.0], "token_type": [*kinds, 4, 3],
        "bos_token_id": 1, "eos_token_id": 2, **switches,
    }  # fmt: skip


def by_merged_lines() -> dict[str, Any]:
    """Return the metadata of a tokenizer of Gemma 4's kind."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=480, special_tokens=[*SPECIAL, *BYTES], show_progress=False)
    tokenizer.train_from_iterator([*TEXT, "a\nb"], trainer)
    content = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].__getitem__)
    kinds = [3 if token in SPECIAL else 6 if token in BYTES else 1 for token in tokens]
    breaks = ["\n" * count for count in range(2, 6)]
    lines = [f"{each[:at]} {each[at:]}" for each in breaks for at in range(1, len(each))]
    return {
        "model": "gemma4", "tokens": [*tokens, *breaks, "<think>"], "token_type": [*kinds, *(1 for _ in breaks), 4],
        "merges": [*lines, *(" ".join(each) for each in content["merges"])], "bos_token_id": 0, "eos_token_id": 2,
        "add_space_prefix": False, "add_bos_token": False,
    }  # fmt: skip


def by_longest() -> dict[str, Any]:
    """Return the metadata of a tokenizer of RWKV's kind, as llama.cpp's converter writes them."""
    parts = {text[at : at + size].encode() for text in TEXT for at in range(0, len(text), 3) for size in (2, 5, 6)}
    known = [
        *(bytes([byte]) for byte in range(256)),
        *sorted({*parts, b"\n\n", b"=" * 128, "\u00e9".encode() + b"\xe4", b"'\\"}),
    ]
    tokens = ["<s>", *(repr(each)[2:-1] for each in dict.fromkeys(known)), "[PAD0]"]
    return {
        "model": "rwkv", "tokens": tokens, "token_type": [3, *(1 for _ in tokens[2:]), 5], "bos_token_id": 0, "eos_token_id": 0,
        "eot_token_id": tokens.index("\\n\\n"),
    }  # fmt: skip


FILES: dict[str, Callable[[], dict[str, Any]]] = {
    **{pre: lambda pre=pre: byte_level(pre) for pre in CUTS},
    "bos": lambda: byte_level("smollm", add_bos_token=True),
    "bos and eos": lambda: byte_level("gpt-2", add_bos_token=True, add_eos_token=True),
    "no bos after all": lambda: byte_level("llama-bpe", add_bos_token=False),
    "gemma4": by_merged_lines,
    "rwkv": by_longest,
    "llama": by_score,
    "llama without a space": lambda: by_score(add_space_prefix=False),
    "llama, switches": lambda: by_score(add_bos_token=False, add_eos_token=True),
}
