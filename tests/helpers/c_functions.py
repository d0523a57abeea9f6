"""The functions of hybridge.h by what they are for."""

from __future__ import annotations

import re

FOR_PYTHON = {
    "hybridge_failure",
    "hybridge_model_verify_lens",
    "hybridge_model_cached",
    "hybridge_slot_tokens",
    "hybridge_keep_hidden",
    "hybridge_draft",
}
"""What apps do without: Python's checks look at more of a session."""


def functions(header: str) -> list[str]:
    """Return all that answer with a status or a text."""
    return re.findall(r"^(?:hybridge_status|const char\*) (hybridge_\w+)\(", header, re.MULTILINE)


def functions_for_apps(header: str) -> list[str]:
    """Return those that Kotlin and Swift call."""
    return [name for name in functions(header) if name not in FOR_PYTHON]
