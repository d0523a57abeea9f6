"""The on-device harness: sessions, generation and validation of exported artifacts."""

from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.artifacts.manifest import Manifest
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.drafters.prompt_lookup import PromptLookup
from hybridge.runtime.generation.drafter import Context, Drafter
from hybridge.runtime.generation.sampling import Proposal, Sampler, Sampling
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
