"""The on-device harness: sessions, generation and validation of exported artifacts."""

from hybridge.runtime.artifact import Artifact, open_artifact
from hybridge.runtime.drafter import Context, Drafter
from hybridge.runtime.generation_stats import GenerationStats
from hybridge.runtime.manifest import Manifest
from hybridge.runtime.options import ExportOptions
from hybridge.runtime.prompt_lookup import PromptLookup
from hybridge.runtime.sampling import Proposal, Sampler, Sampling
from hybridge.runtime.session import Session

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
