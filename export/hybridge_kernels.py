"""hybridge's own operators for state (``hybridge.runtime.kernels``). Importing this module registers them with torch."""

from __future__ import annotations

from hybridge.export.hybridge_recurrences import HybridgeRecurrences
from hybridge.export.llm_kernels import LlmKernels


class HybridgeKernels(HybridgeRecurrences, LlmKernels):
    """See ``hybridge.cache.kernels.Kernels``."""
