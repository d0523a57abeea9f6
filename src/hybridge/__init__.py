"""hybridge: hybrid language models on a device, exported once, run with speculative rollback.

The packages live at the repository's root (``cache``, ``export``, ``runtime``); this folder gives them their import name, and
has the modules that all three share. Importing it loads the errors alone; each other name is imported where it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridge import errors

if TYPE_CHECKING:
    from hybridge.cache.hybrid_cache import HybridCache
    from hybridge.export.api import export_model
    from hybridge.export.program.eager import eager_session
    from hybridge.models.find import ModelOptions, load
    from hybridge.runtime.artifact.options import ExportOptions
    from hybridge.runtime.binding.library import set_threads
    from hybridge.runtime.binding.session import Session
    from hybridge.runtime.version import __version__ as __version__

__all__ = [
    "ExportOptions",
    "HybridCache",
    "ModelOptions",
    "Session",
    "eager_session",
    "errors",
    "export_model",
    "load",
    "set_threads",
]

_MODULES = {
    "ExportOptions": "hybridge.runtime.artifact.options",
    "HybridCache": "hybridge.cache.hybrid_cache",
    "ModelOptions": "hybridge.models.find",
    "Session": "hybridge.runtime.binding.session",
    "eager_session": "hybridge.export.program.eager",
    "export_model": "hybridge.export.api",
    "load": "hybridge.models.find",
    "set_threads": "hybridge.runtime.binding.library",
    "__version__": "hybridge.runtime.version",
}


if not TYPE_CHECKING:  # else a type checker would believe in every name

    def __getattr__(name: str) -> object:
        """Import what ``name`` stands for, at its first use."""
        from importlib import import_module

        if name not in _MODULES:
            raise AttributeError(f"module 'hybridge' has no attribute {name!r}")
        from hybridge.imports import needs_export, quiet, without_collections

        with quiet(), without_collections(), needs_export(f"hybridge.{name}"):
            return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
