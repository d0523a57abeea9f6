"""The on-device harness: sessions, generation and validation of exported artifacts. Each name is imported at its first use."""

from typing import TYPE_CHECKING

from hybridge.cache.deferred import deferred

if TYPE_CHECKING:
    from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
    from hybridge.runtime.artifacts.manifest import Manifest
    from hybridge.runtime.artifacts.options import ExportOptions
    from hybridge.runtime.core.sampling import Sampling
    from hybridge.runtime.drafters.prompt_lookup import PromptLookup
    from hybridge.runtime.generation.drafter import Context, Drafter
    from hybridge.runtime.generation.sampling import Proposal, Sampler
    from hybridge.runtime.generation.stats import GenerationStats
    from hybridge.runtime.sessions.session import Session

__all__ = [
    "Artifact",
    "Context",
    "Drafter",
    "ExportOptions",
    "GenerationStats",
    "Manifest",
    "PromptLookup",
    "Proposal",
    "Sampler",
    "Sampling",
    "Session",
    "open_artifact",
]

if not TYPE_CHECKING:  # else a type checker would believe in every name
    __getattr__ = deferred(
        __name__,
        {
            "Artifact": "hybridge.runtime.artifacts.artifact",
            "Context": "hybridge.runtime.generation.drafter",
            "Drafter": "hybridge.runtime.generation.drafter",
            "ExportOptions": "hybridge.runtime.artifacts.options",
            "GenerationStats": "hybridge.runtime.generation.stats",
            "Manifest": "hybridge.runtime.artifacts.manifest",
            "PromptLookup": "hybridge.runtime.drafters.prompt_lookup",
            "Proposal": "hybridge.runtime.generation.sampling",
            "Sampler": "hybridge.runtime.generation.sampling",
            "Sampling": "hybridge.runtime.core.sampling",
            "Session": "hybridge.runtime.sessions.session",
            "open_artifact": "hybridge.runtime.artifacts.artifact",
        },
    )
