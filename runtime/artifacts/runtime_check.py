"""Does the runtime that is installed here have what a program was made for? Asked first, so that an error can name it."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version

from hybridge.cache.errors import ArtifactError
from hybridge.runtime.artifacts.manifest import Manifest
from hybridge.runtime.pinned import executorch_version

LIBRARIES = {"pte": "executorch", "onnx": "onnxruntime"}
"""What runs an artifact, by its format."""
OURS = "hybridge::"
NAMED = 8
"""So many of what is missing are named."""


def check_runtime(manifest: Manifest, operators: Collection[str], backends: Collection[str]) -> None:
    """Raises ArtifactError where the program calls operators, or hands parts to backends, that are not among these."""
    missing = sorted(manifest.operators - set(operators))
    if ours := [name for name in missing if name.startswith(OURS)]:
        raise ArtifactError(
            f"this hybridge has no operator {_names(ours)}, which the program calls. Export the model again, or use hybridge "
            f"{manifest.versions.get('hybridge', 'of the version')} that made it."
        )
    if missing:
        raise ArtifactError(
            f"this ExecuTorch has no operator {_names(missing)}, which the program calls.{other_version(manifest)} "
            "Export the model again, with --kernels aten if the operator is still missing then."
        )
    delegates = {name for method in manifest.methods.values() for name in method.delegates}
    if absent := sorted(delegates - set(backends)):
        raise ArtifactError(
            f"this ExecuTorch has no backend {_names(absent)}, to which the program hands parts.{other_version(manifest)} "
            "Export the model again, with --backend portable if the backend is still missing then."
        )


def other_version(manifest: Manifest) -> str:
    """Return a sentence, with a space before it, where another version is installed than made the artifact; else nothing."""
    library = LIBRARIES[manifest.options.format]
    made, here = manifest.versions.get(library), installed(library)
    return "" if made in (None, here) else f" It was made with {library} {made}, and {here} is installed here."


def installed(library: str) -> str:
    """Return the version of a library that is here, ``none`` where it is not installed."""
    if library == "executorch":
        return executorch_version() or "none"
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
