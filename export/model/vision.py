"""Describe the pictures of a multimodal checkpoint, by its config and its processor's options; ``VISION`` has its encoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridge.errors import CheckpointError, UsageError
from hybridge.export.model.encoders.encoder import VisionFamily
from hybridge.export.model.encoders.gemma3 import GEMMA3
from hybridge.export.model.encoders.gemma4 import GEMMA4, GEMMA4_UNIFIED
from hybridge.export.model.encoders.glm5_next import GLM5_NEXT
from hybridge.export.model.encoders.lfm2_vl import LFM2_VL
from hybridge.export.model.encoders.lfm3_vl import LFM3_VL
from hybridge.export.model.encoders.nemotron_h_omni import NEMOTRON_H_OMNI
from hybridge.export.model.encoders.qwen3_5 import QWEN3_5
from hybridge.export.source.files import check_files, read_object
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.artifact.pictures import PictureDescription, check_pictures

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Files of a checkpoint that say how pictures are prepared, the first one's options first."""
VISION: Mapping[str, VisionFamily] = {
    "lfm2_vl": LFM2_VL,
    "lfm3_vl": LFM3_VL,
    "qwen3_5": QWEN3_5,
    "qwen3_5_moe": QWEN3_5,
    "gemma3": GEMMA3,
    "gemma4": GEMMA4,
    "gemma4_unified": GEMMA4_UNIFIED,
    "glm5_next": GLM5_NEXT,
    "nemotron_h_omni": NEMOTRON_H_OMNI,
}
"""For each ``model_type`` of a whole config, how its pictures are encoded."""


def describe_pictures(config: Any, folder: Path, options: ExportOptions) -> PictureDescription | None:
    """Return the description of the pictures that an export of a checkpoint takes; None if it takes none.

    Args:
        config: of the whole model.
        folder: of the checkpoint, with the processor's options.
        options: say whether pictures are wanted, and their budgets.

    Raises:
        UsageError: budgets are given for a model without pictures, or are impossible.
        CheckpointError: the processor's options are missing or impossible.
        UnsupportedModelError: the config asks for an encoder that hybridge does not have.
    """
    family = VISION.get(config.model_type) if getattr(config, "vision_config", None) is not None else None
    if family is not None and family.often_text and not (options.image_tokens or _processor_files(folder)):
        return None
    if family is None or not options.images or options.format != "pte":
        if options.image_tokens:
            raise UsageError(
                "--image-tokens is for a .pte of a model whose encoder of pictures hybridge exports "
                f"({', '.join(VISION)}), and not for --no-images; leave it out."
            )
        return None
    processor = read_processor(folder, family)
    try:
        found = family.describe(config, processor, options.image_tokens)
        check_pictures(found, config.get_text_config().vocab_size)
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        if isinstance(error, UsageError):
            raise
        raise CheckpointError(
            f"{folder} describes pictures that no such model takes ({error}). Take the config.json and the "
            f"{PROCESSOR_FILES[0]} that came with the checkpoint, or export with --no-images."
        ) from None
    return found


def read_processor(folder: Path, family: VisionFamily) -> dict[str, Any]:
    """Return the options of a checkpoint's picture processor, as transformers reads them. Raises CheckpointError."""
    present = _processor_files(folder)
    if not present:
        raise CheckpointError(
            f"{folder} has no {PROCESSOR_FILES[0]}, which says how pictures are prepared; download it too, or export with "
            "--no-images."
        )
    check_files(folder, present)
    found: dict[str, Any] = {}
    for name in reversed(present):
        content = read_object(folder / name)
        nested = content.get("image_processor")
        found |= content | (nested if isinstance(nested, dict) else {})
    older = {new: found[old] for new, old in family.older.items() if old in found}
    return {**family.defaults, **older, **found}


def _processor_files(folder: Path) -> list[str]:
    return [name for name in PROCESSOR_FILES if (folder / name).is_file()]
