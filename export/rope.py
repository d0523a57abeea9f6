"""Rope whose angles depend on the length of the text, held still: a branch on values cannot be exported.

Up to the cache's ``max_seq_len`` the angles are those of the start, or ``hybridge.cache.families.options`` refused the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

MOVING = ("dynamic", "longrope")


def hold_rope(model: nn.Module) -> None:
    """Give all rope modules of ``model`` their first angles back, for good, in place.

    ``rope_type`` says whether transformers' ``dynamic_rope_update`` looks at the length at all.
    """
    module: Any
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str) and _moves(kinds):
            module.rope_type = "default"
            _start_anew(module, "")
        elif isinstance(kinds, Mapping):
            module.rope_type = {layers: "default" if _moves(kind) else kind for layers, kind in kinds.items()}
            for layers in (layers for layers, kind in kinds.items() if _moves(kind)):
                _start_anew(module, f"{layers}_")


def _moves(kind: str) -> bool:
    return any(each in kind for each in MOVING)


def _start_anew(module: Any, prefix: str) -> None:
    # A copy, not in place: a copied model shares its buffers with the one it was copied from.
    setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq").clone())
