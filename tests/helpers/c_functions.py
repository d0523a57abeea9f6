"""The functions of hybridge.h by what they are for."""

from __future__ import annotations

import re

FOR_PYTHON = {
    "hybridge_model_verify_lens", "hybridge_model_ask", "hybridge_slot_tokens", "hybridge_keep_hidden", "hybridge_draft",
    *("hybridge_begin", "hybridge_next", "hybridge_end", "hybridge_progress", "hybridge_proposed"),
    *("hybridge_program_open", "hybridge_note", "hybridge_buffers", "hybridge_hidden"),
    *("hybridge_checkpoint_parts", "hybridge_checkpoint_part", "hybridge_checkpoint_read"),
    *(f"hybridge_tokenizer_{name}" for name in ("read", "id", "token", "added", "info", "bytes")),
    *(f"hybridge_grammar_{name}" for name in ("calls", "mask", "forced", "fitting", "with")),
    *(f"hybridge_answer_form_{name}" for name in ("find", "named", "general", "describe", "close")),
    *(f"hybridge_answer_{name}" for name in ("open", "reasoning_end", "push", "finish", "close")),
    *(f"hybridge_template_{name}" for name in ("open", "read", "render", "describe", "close")),
    *(f"hybridge_chat_{name}" for name in ("over", "note")), *("hybridge_text_stop", "hybridge_text_stopped"),
    *(f"hybridge_cache_{name}" for name in ("add", "find", "clear", "info", "watch")),
    *("hybridge_model_vision", "hybridge_model_pictures", "hybridge_picture_open_prepared", "hybridge_picture_part"),
}  # fmt: skip
"""What apps do without: a generator's rounds, programs and drafters in another language, states and checkpoints in parts, and
pictures that are already resized, and what their encoder makes of them."""


def functions(header: str) -> list[str]:
    """Return all that answer with a status or a text."""
    return re.findall(r"^(?:hybridge_status|const char\*) (hybridge_\w+)\(", header, re.MULTILINE)


def functions_for_apps(header: str) -> list[str]:
    """Return those that Kotlin and Swift call."""
    return [name for name in functions(header) if name not in FOR_PYTHON]
