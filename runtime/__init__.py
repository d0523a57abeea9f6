"""The on-device harness: sessions, generation and validation of exported artifacts."""

from hybridge.runtime.artifact import Artifact, open_artifact
from hybridge.runtime.generate import Drafter, GenerationStats
from hybridge.runtime.manifest import ExportOptions, Manifest
from hybridge.runtime.prompt_lookup import PromptLookup
from hybridge.runtime.session import Session

__all__ = [
    "Artifact",
    "Drafter",
    "ExportOptions",
    "GenerationStats",
    "Manifest",
    "PromptLookup",
    "Session",
    "open_artifact",
]
