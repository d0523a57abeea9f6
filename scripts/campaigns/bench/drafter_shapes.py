"""Drafters of the shapes that are published, with random weights: what a draft costs depends on its shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DrafterShape:
    """A drafter of one of the targets in ``shapes``.

    options: of ``hybridge export``; blocks: lengths that it is measured with, the text's last token included. config: makes its
    config.json for the target's config; none for multi-token prediction, whose weights are in the target's own checkpoint.
    published: tokens a round that its authors or others measured, by the text.
    """

    options: tuple[str, ...]
    blocks: tuple[int, ...]
    config: Callable[[Any], dict[str, Any]] | None = None
    published: Mapping[str, float] | None = None


def dflash(target: Any) -> dict[str, Any]:
    """DFlash: five layers that see everything."""
    from drafter_twins import dflash_config

    return dflash_config(target, ["full_attention"] * 5, [1, 6, 11, 16, 21], block_size=16, **_widths(target))


def dflash2(target: Any) -> dict[str, Any]:
    """DFlash 2: three layers with windows and one without, convolutions and a selector of the sizes of its public fixture."""
    from drafter_twins import dflash2_config

    made = dflash2_config(target, ["sliding_attention"] * 3 + ["full_attention"], [1, 6, 11, 16, 21], **_widths(target))
    sizes = {"block_size": 8, "conv_group_size": 16, "conv_kernel_size": 2, "selector_rank": 256, "selector_top_k": 16}
    return made | {"sliding_window": 2048, "dflash_config": made["dflash_config"] | sizes}


def dspark(target: Any) -> dict[str, Any]:
    """LFM2.5-1.2B-DSpark."""
    from drafter_twins import dspark_config

    sizes = {"intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
    return dspark_config(target, ["full_attention"] * 5, [1, 4, 7, 10, 13], block_size=9, markov_rank=256, **sizes)


def _widths(target: Any) -> dict[str, int]:
    """Return the widths that the drafters of Qwen3.5 have for a target of this width."""
    heads = target.hidden_size // 128
    return {
        "intermediate_size": 3 * target.hidden_size,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 4,
        "head_dim": 128,
    }


FEW = ("--draft-vocab", "32000")
"""As many tokens as by default; random weights say none more often than others."""
QWEN3_5_4B = "Qwen3.5-4B, GSM8K"
DRAFTERS: Mapping[str, Mapping[str, DrafterShape]] = {
    "qwen3.5-0.8b": {
        "mtp": DrafterShape(("--mtp", "--verify-len", "2,4,8", *FEW), (2, 4, 8), None, {QWEN3_5_4B: 4.78}),
        "dflash": DrafterShape(
            ("--verify-len", "4,8,16", "--draft-block", "4,8,16", *FEW), (4, 8, 16), dflash, {QWEN3_5_4B: 4.99}
        ),
        "dflash2": DrafterShape(("--verify-len", "4,8", "--draft-block", "4,8", *FEW), (4, 8), dflash2, {QWEN3_5_4B: 6.20}),
    },
    "lfm2.5-1.2b": {"dspark": DrafterShape(("--verify-len", "4,8", "--draft-block", "4,8", *FEW), (4, 8), dspark)},
}


def write_drafter(shape: DrafterShape, target: Path, folder: Path) -> tuple[Path, list[str]]:
    """Write the drafter for a target's checkpoint into ``folder``; what to export, and the options that name the drafter."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(target)
    if shape.config is None:
        return _with_mtp(config, target, folder), []
    if not folder.exists():
        from drafter_twins import random_tensors, save_drafter

        made = shape.config(config)
        save_drafter(folder, made, random_tensors(made))
    return target, ["--drafter", str(folder)]


def _with_mtp(config: Any, target: Path, folder: Path) -> Path:
    """Write a checkpoint that is ``target`` and random weights of multi-token prediction."""
    if not folder.exists():
        import torch
        from training import mtp

        folder.mkdir()
        for path in target.iterdir():
            (folder / path.name).symlink_to(path.resolve())
        torch.manual_seed(0)
        mtp.publish(mtp.Drafter(config), folder / "mtp.safetensors")
    return folder
