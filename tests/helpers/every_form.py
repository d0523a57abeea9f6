"""Each form of docs/checkpoints.md as a small folder or file, with a tokenizer and a chat template."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from checkpoint_forms import save_adapter, save_sharded
from gguf_files import MODELS, TYPES, random_model, save_gguf
from public_folders import save_qwen3_5
from quantized_folders import FORMS, save_mxfp4, save_quantized, save_torchao
from tiny import save_checkpoint, save_tokenizer, tiny_config

from hybridge.export.source.checkpoint import CheckpointSource, resolve_checkpoint

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}<end>"
TOKENS = 262
"""Enough for all bytes, and for what a file of llama.cpp's has beside them."""
Save = Callable[[Path], CheckpointSource]
"""Writes into a folder and returns what to export."""


def plain(folder: Path, dtype: torch.dtype) -> CheckpointSource:
    save_checkpoint(folder, tiny_config("qwen3"), dtype)
    return with_template(folder)


def shards(folder: Path, *, index: bool) -> CheckpointSource:
    save_sharded(folder, index=index)
    return with_template(folder)


def quantized(folder: Path, form: str) -> CheckpointSource:
    save_quantized(folder, form, layers=1)
    return with_template(folder)


def written(folder: Path, save: Callable[[Path], object]) -> CheckpointSource:
    save(folder)
    return with_template(folder)


def gguf_file(folder: Path, architecture: str, kind: TYPES) -> CheckpointSource:
    save_gguf(folder / "model.gguf", architecture, random_model(architecture, vocab_size=TOKENS), kind)
    return resolve_checkpoint(folder / "model.gguf")


def with_adapter(folder: Path) -> CheckpointSource:
    layers = ["linear_attention", "full_attention"]
    save_checkpoint(folder, tiny_config("qwen3_5_text", layer_types=layers, num_hidden_layers=len(layers)))
    save_adapter(folder / "adapter")
    return resolve_checkpoint(with_template(folder).path, (folder / "adapter",))


def multimodal(folder: Path) -> CheckpointSource:
    save_qwen3_5(folder)
    return resolve_checkpoint(folder)


def with_template(folder: Path) -> CheckpointSource:
    save_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return resolve_checkpoint(folder)


EVERY_FORM: dict[str, Save] = {
    **{str(dtype).removeprefix("torch."): partial(plain, dtype=dtype) for dtype in (torch.float16, torch.bfloat16)},
    "shards": partial(shards, index=True),
    "shards without an index": partial(shards, index=False),
    **{form: partial(quantized, form=form) for form in FORMS},
    "mxfp4": partial(written, save=save_mxfp4),
    "torchao": partial(written, save=save_torchao),
    **{f"gguf {name}": partial(gguf_file, architecture=name, kind=TYPES.Q4_0) for name in MODELS},
    "gguf in 8 bits": partial(gguf_file, architecture="lfm2", kind=TYPES.Q8_0),
    "adapter": with_adapter,
    "multimodal": multimodal,
}
