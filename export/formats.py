"""The formats of an artifact, and who writes each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.cache.errors import UsageError
from hybridge.export.checkpoint.loading import Checkpoint
from hybridge.export.drafters.plan import DrafterPlan
from hybridge.export.output.progress import ExportProgress
from hybridge.export.pinned.transformers_loading import Reader
from hybridge.export.pte.exporter import export
from hybridge.export.pte.state_cache import build_cache
from hybridge.export.quantization.calibration import Calibrated
from hybridge.export.quantization.while_reading import packer
from hybridge.runtime.artifacts.manifest import Manifest
from hybridge.runtime.artifacts.options import ExportOptions


@dataclass(frozen=True, kw_only=True)
class Format:
    """What writes artifacts.

    build_cache: the state of a config, after checking the options; reader: what works on weights as they are read, if anything
    does; export: write the artifact of a checkpoint with them.
    """

    build_cache: Callable[[Any, ExportOptions, DrafterPlan | None], Any]
    reader: Callable[[ExportOptions], Reader | None]
    export: Callable[[Checkpoint, Any, Path, ExportOptions, ExportProgress, Calibrated | None, DrafterPlan | None], Manifest]


def format_of(options: ExportOptions) -> Format:
    """Return the writer of what the options ask for. Raises UsageError if its libraries are not installed."""
    return _onnx() if options.format == "onnx" else Format(build_cache=build_cache, reader=packer, export=export)


def _onnx() -> Format:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"--format onnx needs {error.name}, which is not installed: pip install 'hybridge[onnx]'.") from None
    from hybridge.export.onnx.exporter import export_onnx
    from hybridge.export.onnx.options import build_cache as build_traced_cache

    return Format(build_cache=build_traced_cache, reader=lambda _: None, export=export_onnx)
