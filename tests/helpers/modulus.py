"""A mask for the native core that is easy to check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def mask_by(modulus: int) -> Callable[[Any, Any], None]:
    """Let only those tokens come that add up with the text's length to a multiple of ``modulus``."""

    def mask(text: Any, logits: Any) -> None:
        logits[(np.arange(len(logits)) + len(text)) % modulus != 0] = -np.inf

    return mask
