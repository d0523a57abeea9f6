"""Who runs an artifact: ExecuTorch or onnxruntime, by the format that its manifest names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.backends.methods import Methods
from hybridge.runtime.backends.onnx_program import OnnxProgram
from hybridge.runtime.backends.pte_program import Program

BACKENDS: Mapping[str, Callable[[Artifact], Methods]] = {"pte": Program, "onnx": OnnxProgram}


def load_program(artifact: Artifact) -> Methods:
    """The methods of an artifact. Raises ArtifactError where its program does not load or is not what the manifest says."""
    return BACKENDS[artifact.manifest.options.format](artifact)
