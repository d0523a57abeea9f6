"""``hybridge.h`` for ctypes: its numbers, structures and functions, which tests/test_core_interface.py compares with it."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import (
    CDLL,
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Any, ClassVar

VERSION = "0.2.0"
"""Of the header."""


class Status(IntEnum):
    """``hybridge_status``"""

    OK = 0
    INVALID_ARGUMENT = 1
    INVALID_HANDLE = 2
    BUSY = 3
    NO_ROOM = 4
    INVALID_STATE = 5
    INVALID_FILE = 6
    FILE_ACCESS = 7
    MISSING_OPERATOR = 8
    OUT_OF_MEMORY = 9
    INTERNAL = 10
    CANCELLED = 11
    NOT_FINITE = 12


class DrafterKind(IntEnum):
    """``hybridge_drafter``"""

    NONE = 0
    PROMPT_LOOKUP = 1
    OWN = 2
    MODEL = 3
    CALLBACK = 4


Tokens, Floats, Count, Handle = POINTER(c_int64), POINTER(c_float), POINTER(c_size_t), c_uint64
OnToken = CFUNCTYPE(c_int, c_int64, c_void_p)
OnMask = CFUNCTYPE(None, Tokens, c_size_t, Floats, c_size_t, c_void_p)
OnPropose = CFUNCTYPE(c_size_t, Tokens, c_size_t, Tokens, c_size_t, c_void_p)
OnRead = CFUNCTYPE(None, c_size_t, c_void_p)
OnClock = CFUNCTYPE(c_double, c_void_p)


class Info(Structure):
    """``hybridge_info``"""

    _fields_: ClassVar = [
        (name, c_int64) for name in ("max_seq_len", "vocab_size", "prefill_chunk", "verify_len", "snapshot_slots", "draft_len")
    ]


class SamplingOptions(Structure):
    """``hybridge_sampling``"""

    _fields_: ClassVar = [
        *((name, c_double) for name in ("temperature", "top_p", "min_p", "repetition_penalty")),
        ("top_k", c_size_t),
        ("seed", c_uint64),
        ("has_seed", c_int),
    ]


class GenerationOptions(Structure):
    """``hybridge_generation``"""

    _fields_: ClassVar = [
        ("max_new_tokens", c_size_t),
        ("block_length", c_size_t),
        ("drafter", c_int),
        ("sampling", POINTER(SamplingOptions)),
        ("draft", Handle),
        ("mask", OnMask),
        ("propose", OnPropose),
        ("on_read", OnRead),
        ("clock", OnClock),
        ("noise", POINTER(c_uint64)),
    ]


COUNTS = ("tokens", "proposed", "accepted", "verifies", "decodes", "rollbacks")
SECONDS = tuple(f"{phase}_seconds" for phase in ("prefill", "draft", "verify", "commit", "decode", "new"))


class Counted(Structure):
    """``hybridge_generated``"""

    _fields_: ClassVar = [*((name, c_size_t) for name in COUNTS), *((name, c_double) for name in SECONDS)]


class Kept(Structure):
    """``hybridge_kept``"""

    _fields_: ClassVar = [(name, c_size_t) for name in ("length", "bytes", "shared_bytes")]


class CachedSizes(Structure):
    """``hybridge_cached``"""

    _fields_: ClassVar = [(name, c_size_t) for name in ("checkpoints", "bytes")]


FUNCTIONS: Mapping[str, list[Any]] = {
    "set_threads": [c_size_t],
    "model_open": [c_char_p, POINTER(Handle)],
    "model_close": [Handle],
    "model_info": [Handle, POINTER(Info)],
    "model_eos_ids": [Handle, Tokens, c_size_t, Count],
    "model_verify_lens": [Handle, Tokens, c_size_t, Count],
    "model_cache": [Handle, c_size_t],
    "model_cached": [Handle, POINTER(CachedSizes)],
    "session_open": [Handle, POINTER(Handle)],
    "session_close": [Handle],
    "tokens": [Handle, Tokens, c_size_t, Count],
    "slot_tokens": [Handle, c_int64, Tokens, c_size_t, Count],
    "prefill": [Handle, Tokens, c_size_t, Floats],
    "decode": [Handle, c_int64, Floats],
    "verify": [Handle, Tokens, c_size_t, Floats],
    "commit": [Handle, c_int64],
    "snapshot": [Handle, c_int64],
    "restore": [Handle, c_int64],
    "reset": [Handle],
    "save": [Handle, c_char_p],
    "load": [Handle, c_char_p],
    "keep_hidden": [Handle, c_int],
    "draft": [Handle, c_int64, Tokens, c_size_t, Count],
    "checkpoint_make": [Handle, POINTER(Handle)],
    "checkpoint_info": [Handle, POINTER(Kept)],
    "checkpoint_close": [Handle],
    "resume": [Handle, Handle],
    "bring_to": [Handle, Tokens, c_size_t, Count],
    "generate": [Handle, Tokens, c_size_t, POINTER(GenerationOptions), OnToken, c_void_p, POINTER(Counted)],
    "cancel": [Handle],
}
"""What each function that answers with a status takes, by its name without ``hybridge_``."""


def declare(library: CDLL) -> None:
    """Tell ctypes what the functions take and answer with. Raises AttributeError for one that the library lacks."""
    for name, takes in FUNCTIONS.items():
        function = getattr(library, f"hybridge_{name}")
        function.argtypes, function.restype = takes, c_int
    for name, takes in {"version": [], "failure": [], "status_text": [c_int]}.items():
        function = getattr(library, f"hybridge_{name}")
        function.argtypes, function.restype = takes, c_char_p
    for name in ("has_operator", "has_backend"):
        function = getattr(library, f"hybridge_{name}")
        function.argtypes, function.restype = [c_char_p], c_int
    library.hybridge_print_log.argtypes, library.hybridge_print_log.restype = [c_int], None
