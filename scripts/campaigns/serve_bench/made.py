"""An artifact of a published shape, with random weights and a made-up tokenizer of as many tokens."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from campaigns.bench.shapes import EMBEDDED, SHAPES, write_checkpoint
from hybridge.export.api import export_model
from hybridge.runtime.artifacts.options import ExportOptions

VOCABULARY = 248_320
"""Qwen3.5's."""
WORDS = ("<|im_start|>", "<|im_end|>")
"""Tokens of the embedded model's chat template, the last one of which ends a text."""


def made_up_tokenizer(size: int, rng: random.Random) -> str:
    """Return a tokenizer.json whose texts become a token for each byte; the other tokens are words that only a model says."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    vocabulary = {letters[byte]: byte for byte in range(256)}
    while len(vocabulary) < size - len(WORDS):
        word = "".join(rng.choices('etaoinshrdlcumwfgypbvk{}[]":,.0123456789', k=rng.randint(1, 8)))
        vocabulary.setdefault(rng.choice(("Ġ", "")) + word, len(vocabulary))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": size - len(WORDS) + i, "content": word, "special": True, **flags} for i, word in enumerate(WORDS)]
    tokenizer = {
        "version": "1.0", "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }  # fmt: skip
    return json.dumps(tokenizer)


def made_artifact(shape: str, work: Path, max_seq_len: int) -> Path:
    """Return the artifact of a shape of scripts/bench in ``work``, in 8da4w, exported unless it is there."""
    checkpoint, artifact = work / shape / "checkpoint", work / shape / f"artifact-{max_seq_len}"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(SHAPES[shape], checkpoint)
    size = int(SHAPES[shape].config["vocab_size"])
    if not (checkpoint / "tokenizer.json").exists():
        shutil.copy(EMBEDDED / "chat_template.jinja", checkpoint)
        (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": size - 1}))
        (checkpoint / "tokenizer.json").write_text(made_up_tokenizer(size, random.Random(1)))
    if not artifact.exists():
        export_model(checkpoint, artifact, ExportOptions(max_seq_len=max_seq_len, quantize="8da4w"))
    return artifact
