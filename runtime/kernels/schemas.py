"""Our operators' schemas, for who checks what a program hands to a kernel. Nothing is compiled for them."""

from __future__ import annotations

from importlib import import_module

MODULES = (
    "activation", "attention", "choose", "experts", "fading_sum", "gated_delta_rule", "linear", "linear_attention", "norm",
    "permute", "rotary", "selective_scan", "short_conv", "slots", "where",
)  # fmt: skip
"""Those that define operators."""


def register() -> None:
    """Make every operator of ours known to torch, which programs themselves do not need."""
    for name in MODULES:
        import_module(f"{__package__}.{name}")
