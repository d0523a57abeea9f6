"""hybridge: hybrid language models on a device, exported once, run with speculative rollback.

The packages live at the repository's root (``cache``, ``export``, ``runtime``); this folder gives them their import name, and
has the modules that all three share. Importing it loads the errors alone; each other name is imported where it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hybridge import errors

if TYPE_CHECKING:
    from pathlib import Path

    from hybridge.cache.hybrid_cache import HybridCache
    from hybridge.export.api import export_model
    from hybridge.export.program.eager import eager_session
    from hybridge.runtime.artifact.options import ExportOptions
    from hybridge.runtime.binding.drafters import Drafter
    from hybridge.runtime.binding.library import set_threads
    from hybridge.runtime.binding.session import Session
    from hybridge.runtime.integrations.causal_lm import CausalLM
    from hybridge.runtime.version import __version__ as __version__

__all__ = ["ExportOptions", "HybridCache", "Session", "eager_session", "errors", "export_model", "load", "set_threads"]

_MODULES = {
    "ExportOptions": "hybridge.runtime.artifact.options",
    "HybridCache": "hybridge.cache.hybrid_cache",
    "Session": "hybridge.runtime.binding.session",
    "eager_session": "hybridge.export.program.eager",
    "export_model": "hybridge.export.api",
    "set_threads": "hybridge.runtime.binding.library",
    "__version__": "hybridge.runtime.version",
}


def load(
    folder: str | Path,
    *,
    drafter: Drafter | Literal["auto"] | None = "auto",
    cache_dir: str | Path | None = None,
    context: int | None = None,
) -> CausalLM:
    """Open an artifact with transformers' interface: ``load("OUT").generate(**tokenizer(text, return_tensors="pt"))``.

    drafter: proposes draft tokens; "auto" is an ``AutoDrafter``, and None decodes plainly.
    cache_dir: a folder in which checkpoints of what was read stay for the next time; it holds texts, for their owner alone.
    context: most tokens of a text, fewer than the artifact holds; as many as it holds if left out.
    Raises ArtifactError, saying what is wrong with the folder, and UsageError without ``pip install 'hybridge[export]'``: use
    ``hybridge.Session`` there.
    """
    from hybridge.imports import needs_export

    with needs_export("hybridge.load"):
        from hybridge.runtime.integrations.causal_lm import CausalLM

    return CausalLM.from_pretrained(folder, drafter=drafter, cache_dir=cache_dir, context=context)


if not TYPE_CHECKING:  # else a type checker would believe in every name

    def __getattr__(name: str) -> object:
        """Import what ``name`` stands for, at its first use."""
        from importlib import import_module

        if name not in _MODULES:
            raise AttributeError(f"module 'hybridge' has no attribute {name!r}")
        from hybridge.imports import needs_export, quiet

        with quiet(), needs_export(f"hybridge.{name}"):
            return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
