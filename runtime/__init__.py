"""The on-device harness: sessions and generation over exported artifacts. Each name is imported at its first use."""

from typing import TYPE_CHECKING

from hybridge.cache.imports import deferred

if TYPE_CHECKING:
    from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
    from hybridge.runtime.artifacts.manifest import Manifest
    from hybridge.runtime.artifacts.options import ExportOptions
    from hybridge.runtime.core.checkpoint import Checkpoint, PrefixCache
    from hybridge.runtime.core.drafters import AutoDrafter, BlockDrafter, Context, Drafter, DraftModel, PromptLookup, Proposal
    from hybridge.runtime.core.model import Model
    from hybridge.runtime.core.sampling import Sampling
    from hybridge.runtime.core.session import Session
    from hybridge.runtime.core.statistics import GenerationStats

__all__ = [
    "Artifact",
    "AutoDrafter",
    "BlockDrafter",
    "Checkpoint",
    "Context",
    "DraftModel",
    "Drafter",
    "ExportOptions",
    "GenerationStats",
    "Manifest",
    "Model",
    "PrefixCache",
    "PromptLookup",
    "Proposal",
    "Sampling",
    "Session",
    "open_artifact",
]

if not TYPE_CHECKING:  # else a type checker would believe in every name
    __getattr__ = deferred(
        __name__,
        {
            "Artifact": "hybridge.runtime.artifacts.artifact",
            "AutoDrafter": "hybridge.runtime.core.drafters",
            "BlockDrafter": "hybridge.runtime.core.drafters",
            "Checkpoint": "hybridge.runtime.core.checkpoint",
            "Context": "hybridge.runtime.core.drafters",
            "DraftModel": "hybridge.runtime.core.drafters",
            "Drafter": "hybridge.runtime.core.drafters",
            "ExportOptions": "hybridge.runtime.artifacts.options",
            "GenerationStats": "hybridge.runtime.core.statistics",
            "Manifest": "hybridge.runtime.artifacts.manifest",
            "Model": "hybridge.runtime.core.model",
            "PrefixCache": "hybridge.runtime.core.checkpoint",
            "PromptLookup": "hybridge.runtime.core.drafters",
            "Proposal": "hybridge.runtime.core.drafters",
            "Sampling": "hybridge.runtime.core.sampling",
            "Session": "hybridge.runtime.core.session",
            "open_artifact": "hybridge.runtime.artifacts.artifact",
        },
    )
