"""The functions of the C headers."""

from __future__ import annotations

import re


def functions(header: str) -> list[str]:
    """Return all that answer with a status or a text."""
    return re.findall(r"^(?:hybridge_status|const char\*) (hybridge_\w+)\(", header, re.MULTILINE)


def uncalled(header: str, source: str) -> list[str]:
    """Return those that a source does not call. Defaults are asked for by the function that returns them."""
    return [name for name in functions(header) if f"{name.replace('_init', '_defaults')}(" not in source]
