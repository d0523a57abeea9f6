"""The on-device harness: sessions and generation over exported artifacts. Each name is imported at its first use."""

from typing import TYPE_CHECKING

from hybridge.imports import deferred

if TYPE_CHECKING:
    from hybridge.runtime.artifact.folder import Artifact, open_artifact
    from hybridge.runtime.artifact.manifest import Manifest
    from hybridge.runtime.artifact.options import ExportOptions
    from hybridge.runtime.binding.checkpoint import Checkpoint, PrefixCache
    from hybridge.runtime.binding.drafters import AutoDrafter, Context, Drafter, DraftModel, OwnDrafter, PromptLookup, Proposal
    from hybridge.runtime.binding.model import Model
    from hybridge.runtime.binding.sampling import Sampling
    from hybridge.runtime.binding.session import Session
    from hybridge.runtime.binding.statistics import GenerationStats

__all__ = [
    "Artifact",
    "AutoDrafter",
    "Checkpoint",
    "Context",
    "DraftModel",
    "Drafter",
    "ExportOptions",
    "GenerationStats",
    "Manifest",
    "Model",
    "OwnDrafter",
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
            "hybridge.runtime.artifact.folder": ("Artifact", "open_artifact"),
            "hybridge.runtime.artifact.manifest": ("Manifest",),
            "hybridge.runtime.artifact.options": ("ExportOptions",),
            "hybridge.runtime.binding.checkpoint": ("Checkpoint", "PrefixCache"),
            "hybridge.runtime.binding.drafters": (
                *("AutoDrafter", "Context", "Drafter", "DraftModel", "OwnDrafter", "PromptLookup", "Proposal"),
            ),
            "hybridge.runtime.binding.model": ("Model",),
            "hybridge.runtime.binding.sampling": ("Sampling",),
            "hybridge.runtime.binding.session": ("Session",),
            "hybridge.runtime.binding.statistics": ("GenerationStats",),
        },
    )
