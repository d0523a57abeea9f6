"""What the cache assumes of torch 2.13 beyond what it documents; see ``hybridge.export.pinned``."""

from __future__ import annotations

from typing import Any

import torch


def check(condition: Any) -> None:
    """Promise torch.export that a condition on a symbolic size holds, so that it may index or slice by that size."""
    torch._check(condition)
