"""Rope whose angles depend on the length of the text, held still: a branch on values cannot be exported.

Up to the cache's ``max_seq_len`` the angles are those of the start, or ``hybridge.cache.families.checks`` refused the model.
"""

from __future__ import annotations

from torch import nn

from hybridge.export.pinned.transformers import keep_first_angles, rope_types

MOVING = ("dynamic", "longrope")
"""In the names of kinds of rope: the angles follow the length."""


def hold_rope(model: nn.Module) -> None:
    """Give all rope modules of ``model`` their first angles back, for good, in place."""
    for module in model.modules():
        for prefix, kind in rope_types(module).items():
            if any(each in kind for each in MOVING):
                keep_first_angles(module, prefix)
