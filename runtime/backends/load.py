"""Choose the backend of an artifact, ExecuTorch or onnxruntime, by the format that its manifest names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.backends.methods import Methods
from hybridge.runtime.backends.onnx_program import OnnxProgram
from hybridge.runtime.backends.pte_program import Program

BACKENDS: Mapping[str, Callable[[Artifact], Methods]] = {"pte": Program, "onnx": OnnxProgram}


def load_program(artifact: Artifact) -> Methods:
    """Load the methods of an artifact. Raises ArtifactError if its program does not load or is not the manifest's."""
    return BACKENDS[artifact.manifest.options.format](artifact)
