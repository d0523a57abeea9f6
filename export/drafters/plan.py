"""Choose the drafter of an export, and check that it fits the target before any weight is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hybridge.cache.families import text_config
from hybridge.errors import UnsupportedModelError, UsageError
from hybridge.export.drafters.assistant import plan_assistant
from hybridge.export.drafters.block import plan_block
from hybridge.export.drafters.drafter import DrafterPlan, VocabularyName
from hybridge.export.drafters.eagle import plan_eagle
from hybridge.export.drafters.folder import open_drafter
from hybridge.export.drafters.mtp import has_mtp, plan_mtp
from hybridge.export.drafters.vocabulary import vocabulary_of
from hybridge.export.source.checkpoint import CheckpointSource, logits_width
from hybridge.runtime.artifact.options import ExportOptions

KINDS = {"DFlash, DFlash 2, DSpark": plan_block, "EAGLE-3": plan_eagle, "Gemma 4's assistants": plan_assistant}
"""Planners of drafters with a checkpoint of their own, by the words for them in an error. Each returns None for other kinds."""


def plan_drafter(
    config: Any, options: ExportOptions, folder: str | Path | None = None, vocabulary: VocabularyName | None = None
) -> tuple[DrafterPlan | None, ExportOptions]:
    """Return the plan of the drafter that is asked for, if any, and the options with the hidden states that it reads.

    Args:
        config: the target's, or its text model's.
        options: of the export.
        folder: the drafter's own checkpoint, if it has one.
        vocabulary: the tokens that it may propose; if left out, all, or some of a large vocabulary.

    Raises:
        UsageError: the options do not go together.
        CheckpointError: the folder is no drafter, or one of another target.
        UnsupportedModelError: hybridge does not know this kind, or no such drafter of the target's family.
    """
    config = text_config(config)
    if folder is not None:
        return _plan_folder(config, options, folder, vocabulary)
    if options.draft_blocks:
        raise UsageError("--draft-block is for a drafter's own folder: give --drafter FOLDER, or --draft-len with --mtp.")
    if options.mtp is not True:
        if vocabulary is not None:
            raise UsageError("--draft-vocab is for a drafter in the artifact: give --mtp or --drafter FOLDER, or leave it out.")
        return None, options
    return plan_mtp(config, options, vocabulary_of(vocabulary, logits_width(config), options))


def plan_own_drafter(
    source: CheckpointSource, options: ExportOptions, vocabulary: VocabularyName | None
) -> tuple[DrafterPlan | None, ExportOptions]:
    """Do what ``plan_drafter`` does for the option mtp ``auto``: plan the drafter that a checkpoint has, if it may have one."""
    otherwise = replace(options, mtp=False)
    drafts = options.format == "pte" and options.verify_len > 1 and not options.draft_blocks
    if not drafts or not has_mtp(source):
        return plan_drafter(source.config, otherwise, vocabulary=vocabulary)
    config = text_config(source.config)
    few = vocabulary_of(vocabulary, logits_width(config), options)
    # One draft token and a verify of two pay where texts are hard to predict.
    shorter = tuple(sorted({2, *options.verify_lens} - {options.verify_len}))
    return plan_mtp(config, replace(options, mtp=True, shorter_verify_lens=shorter), few, otherwise)


def _plan_folder(
    config: Any, options: ExportOptions, named: str | Path, vocabulary: VocabularyName | None
) -> tuple[DrafterPlan, ExportOptions]:
    if options.mtp is True:
        raise UsageError("--mtp and --drafter are two drafters; an artifact has one. Give one of them.")
    if options.format != "pte":
        raise UsageError("--drafter is for --format pte. Leave it out.")
    options = replace(options, mtp=False)
    folder = open_drafter(named)
    for plan in KINDS.values():
        if (planned := plan(folder, config, options, vocabulary)) is not None:
            return planned
    kind = folder.config.get("architectures") or folder.config.get("model_type")
    *others, last = KINDS
    raise UnsupportedModelError(
        f"{folder.place} is no drafter that hybridge knows (its config.json says {kind!r}); it knows {', '.join(others)} and "
        f"{last}. A smaller model of the same vocabulary is exported by itself, and drafts with 'hybridge run --draft'."
    )
