"""``hybridge.h`` for ctypes: its numbers, structures and functions.

tests/runtime/binding/test_core_interface.py compares them with the header.
"""

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
    c_uint8,
    c_uint64,
    c_void_p,
)
from enum import IntEnum, IntFlag
from typing import Any, ClassVar, Self

from hybridge.errors import UsageError


class Status(IntEnum):
    """``hybridge_status``"""

    OK = 0
    INVALID_ARGUMENT = 1
    INVALID_HANDLE = 2
    BUSY = 3
    NO_ROOM = 4
    INVALID_STATE = 5
    INVALID_ARTIFACT = 6
    UNREADABLE_FILE = 7
    MISSING_OPERATOR = 8
    OUT_OF_MEMORY = 9
    INTERNAL = 10
    CANCELLED = 11
    NOT_FINITE = 12
    BROKEN_STATE = 13
    PROGRAM_FAILED = 14
    INVALID_TOKEN = 15
    INVALID_COMMIT = 16
    INVALID_SLOT = 17
    INVALID_DRAFTER = 18
    INVALID_PICTURE = 19
    INVALID_GRAMMAR = 20
    INVALID_TEMPLATE = 21
    INVALID_SAVED_STATE = 22
    UNWRITABLE_FILE = 23


class Reading(IntFlag):
    """``hybridge_reading``"""

    AROUND = 1
    PLAIN = 2


class DrafterKind(IntEnum):
    """``hybridge_drafter``"""

    NONE = 0
    PROMPT_LOOKUP = 1
    OWN = 2
    MODEL = 3
    CALLBACK = 4
    AUTO = 5


class CText(bytes):
    """A text that C reads up to its first NUL, so it must have none inside."""

    def __new__(cls, name: str, text: bytes) -> Self:
        """name: what an error calls it. Raises UsageError for a text with a NUL character."""
        if b"\0" in text:
            raise UsageError(f"{name} has a NUL character: {text.decode(errors='replace')!r}. Remove it.")
        return super().__new__(cls, text)


class CTextArgument(c_char_p):
    """The type of an argument that is a ``CText`` or None. Bytes with a length beside them are ``c_char_p``."""

    @classmethod
    def from_param(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, CText):
            raise TypeError(f"{type(value).__name__} may have a NUL character; pass a CText.")
        return c_char_p.from_param(value)


Tokens, Floats, Count, Handle = POINTER(c_int64), POINTER(c_float), POINTER(c_size_t), c_uint64
OnToken = CFUNCTYPE(c_int, c_int64, c_void_p)
OnMask = CFUNCTYPE(None, Tokens, c_size_t, Floats, c_size_t, c_void_p)
OnForced = CFUNCTYPE(c_size_t, Tokens, c_size_t, Tokens, c_size_t, c_void_p)
OnFitting = CFUNCTYPE(c_size_t, Tokens, c_size_t, Tokens, c_size_t, c_void_p)
OnWatch = CFUNCTYPE(None, c_int64, Floats, c_size_t, c_void_p)
OnSame = CFUNCTYPE(c_int, c_void_p)
OnRead = CFUNCTYPE(None, c_size_t, c_void_p)
OnUse = CFUNCTYPE(None, c_uint64, c_void_p)
OnClock = CFUNCTYPE(c_double, c_void_p)


class ContextStruct(Structure):
    """``hybridge_context``"""

    _fields_: ClassVar = [
        ("text", Tokens),
        ("count", c_size_t),
        ("hidden", Floats),
        ("rows", c_size_t),
        ("width", c_size_t),
    ]


class ProposalStruct(Structure):
    """``hybridge_proposal``"""

    _fields_: ClassVar = [
        ("tokens", Tokens),
        ("confidences", POINTER(c_double)),
        ("confidence_count", c_size_t),
        ("probabilities", POINTER(c_double)),
    ]


OnPropose = CFUNCTYPE(c_size_t, POINTER(ContextStruct), POINTER(ProposalStruct), c_size_t, c_void_p)


class InfoStruct(Structure):
    """``hybridge_info``"""

    _fields_: ClassVar = [
        (name, c_int64) for name in ("max_seq_len", "vocab_size", "prefill_chunk", "verify_len", "snapshot_slots", "draft_len")
    ]


class Type(IntEnum):
    """``hybridge_type``"""

    UINT8 = 0
    INT8 = 1
    INT64 = 2
    FLOAT32 = 3
    BOOL = 4
    FLOAT16 = 5


MOST_DIMENSIONS = 8


class ArrayStruct(Structure):
    """``hybridge_array``"""

    _fields_: ClassVar = [
        ("name", c_char_p),
        ("type", c_int),
        ("dimensions", c_size_t),
        ("shape", c_int64 * MOST_DIMENSIONS),
        ("data", c_void_p),
    ]


OnCall = CFUNCTYPE(c_int, c_void_p, c_char_p, POINTER(ArrayStruct), c_size_t, POINTER(ArrayStruct), c_size_t)
OnBuffer = CFUNCTYPE(c_int, c_void_p, c_char_p, POINTER(ArrayStruct))
OnClose = CFUNCTYPE(None, c_void_p)


class ProgramStruct(Structure):
    """``hybridge_program``"""

    _fields_: ClassVar = [
        ("self", c_void_p),
        ("call", OnCall),
        ("buffer", OnBuffer),
        ("close", OnClose),
        *((name, c_int64) for name in ("max_seq_len", "vocab_size", "prefill_chunk", "snapshot_slots", "taps")),
        *((name, Tokens) for name in ("verify_lens", "eos_ids", "draft_blocks", "draft_taps")),
        *((name, c_size_t) for name in ("verify_len_count", "eos_id_count", "draft_block_count", "draft_tap_count")),
        ("names", POINTER(c_char_p)),
        ("bounded", POINTER(c_char_p)),
        *((name, c_size_t) for name in ("name_count", "bounded_count", "row_axis")),
        *((name, c_int) for name in ("draft_samples", "fixed_shapes")),
        ("fingerprint", c_uint64),
        ("vision", Tokens),
        ("vision_count", c_size_t),
    ]


class VisionStruct(Structure):
    """``hybridge_vision``"""

    _fields_: ClassVar = [(name, c_int64) for name in ("unit", "most_tokens", "placeholder")]


class PicturedStruct(Structure):
    """``hybridge_pictured``"""

    _fields_: ClassVar = [(name, c_size_t) for name in ("parts", "rows", "columns", "encodings")]


class EncodedStruct(Structure):
    """``hybridge_encoded``"""

    _fields_: ClassVar = [
        ("rgb", POINTER(c_uint8)),
        ("embeddings", Floats),
        *((name, c_size_t) for name in ("width", "height", "rows", "hidden")),
    ]


class DraftedStruct(Structure):
    """``hybridge_drafted``"""

    _fields_: ClassVar = [
        *((name, c_size_t) for name in ("count", "width")),
        ("tokens", Tokens),
        ("confidences", Floats),
        ("scores", Floats),
        ("candidates", Tokens),
        ("shared_candidates", c_int),
    ]


class PartStruct(Structure):
    """``hybridge_part``"""

    _fields_: ClassVar = [("bytes", c_char_p), ("size", c_size_t)]


class SamplingStruct(Structure):
    """``hybridge_sampling``"""

    _fields_: ClassVar = [
        *((name, c_double) for name in ("temperature", "top_p", "min_p", "repetition_penalty")),
        ("top_k", c_size_t),
        ("seed", c_uint64),
        ("has_seed", c_int),
    ]


class GenerationStruct(Structure):
    """``hybridge_generation``"""

    _fields_: ClassVar = [
        ("max_new_tokens", c_size_t),
        ("block_length", c_size_t),
        ("drafter", c_int),
        ("sampling", POINTER(SamplingStruct)),
        ("draft", Handle),
        ("mask", OnMask),
        ("propose", OnPropose),
        ("on_read", OnRead),
        ("clock", OnClock),
        ("noise", POINTER(c_uint64)),
        ("forced", OnForced),
        ("fitting", OnFitting),
        ("watch", OnWatch),
        ("drafter_id", c_uint64),
        ("reads_hidden", c_int),
        ("is_cheap", c_int),
        ("grammar", Handle),
        ("tool_choice", c_char_p),
    ]


COUNTS = ("tokens", "proposed", "accepted", "verifies", "decodes", "rollbacks", "forced")
SECONDS = tuple(f"{phase}_seconds" for phase in ("prefill", "draft", "verify", "commit", "decode", "new"))


class GeneratedStruct(Structure):
    """``hybridge_generated``"""

    _fields_: ClassVar = [*((name, c_size_t) for name in COUNTS), *((name, c_double) for name in SECONDS)]


class KeptStruct(Structure):
    """``hybridge_kept``"""

    _fields_: ClassVar = [(name, c_size_t) for name in ("length", "bytes", "shared_bytes")]


class CachedStruct(Structure):
    """``hybridge_cached``"""

    _fields_: ClassVar = [(name, c_size_t) for name in ("checkpoints", "bytes")]


class VocabularyStruct(Structure):
    """``hybridge_vocabulary``"""

    _fields_: ClassVar = [(name, c_size_t) for name in ("vocab_size", "longest")]


class SpanStruct(Structure):
    """``hybridge_span``"""

    _fields_: ClassVar = [(name, c_size_t) for name in ("begin", "end")]


Spans = POINTER(SpanStruct)


class Thinking(IntEnum):
    """``hybridge_thinking``"""

    AS_USUAL = 0
    ON = 1
    OFF = 2


class Ending(IntEnum):
    """``hybridge_ending``"""

    BY_MODEL = 0
    BY_STOP = 1
    BY_LENGTH = 2
    BY_CALLER = 3


class ChatOptionsStruct(Structure):
    """``hybridge_chat_options``"""

    _fields_: ClassVar = [
        *(("system", c_char_p), ("thinking", c_int), ("checkpoint_bytes", c_size_t)),
        *(("variables", c_char_p), ("tools", c_char_p), ("cache", c_uint64), ("now", c_char_p)),
    ]


class CallStruct(Structure):
    """``hybridge_call``"""

    _fields_: ClassVar = [
        *(("id", c_char_p), ("name", c_void_p), ("name_size", c_size_t)),
        *(("arguments", c_void_p), ("arguments_size", c_size_t)),
    ]


class ResultStruct(Structure):
    """``hybridge_result``"""

    _fields_: ClassVar = [("content", c_void_p), ("size", c_size_t)]


class PieceStruct(Structure):
    """``hybridge_piece``"""

    _fields_: ClassVar = [
        *(("content", c_void_p), ("content_size", c_size_t), ("reasoning", c_void_p), ("reasoning_size", c_size_t)),
        *(("calls", POINTER(CallStruct)), ("call_count", c_size_t)),
    ]


OnPiece = CFUNCTYPE(c_int, POINTER(PieceStruct), c_void_p)


class AnswerStruct(Structure):
    """``hybridge_answer``"""

    _fields_: ClassVar = [
        ("ending", c_int), ("prompt_tokens", c_size_t), ("cached_tokens", c_size_t), ("generated", GeneratedStruct)
    ]  # fmt: skip


class MessageStruct(Structure):
    """``hybridge_message``"""

    _fields_: ClassVar = [
        ("role", c_char_p),
        ("content", c_void_p),
        ("content_size", c_size_t),
        ("reasoning", c_void_p),
        ("reasoning_size", c_size_t),
        ("pictures", c_size_t),
        *(("calls", POINTER(CallStruct)), ("call_count", c_size_t)),
    ]


ANSWERING = [POINTER(GenerationStruct), POINTER(c_char_p), c_size_t, OnPiece, c_void_p, POINTER(AnswerStruct)]

FUNCTIONS: Mapping[str, list[Any]] = {
    "set_threads": [c_size_t],
    "model_open": [CTextArgument, POINTER(Handle)],
    "program_open": [POINTER(ProgramStruct), POINTER(Handle)],
    "model_close": [Handle],
    "model_ask": [Handle, OnSame, c_void_p],
    "model_info": [Handle, POINTER(InfoStruct)],
    "model_eos_ids": [Handle, Tokens, c_size_t, Count],
    "model_verify_lens": [Handle, Tokens, c_size_t, Count],
    "model_vision": [Handle, POINTER(VisionStruct)],
    "model_pictures": [Handle, Handle, c_char_p, c_size_t],
    "picture_open": [Handle, c_void_p, c_size_t, c_size_t, POINTER(Handle)],
    "picture_open_prepared": [Handle, c_void_p, c_size_t, c_size_t, POINTER(Handle)],
    "picture_close": [Handle],
    "picture_ids": [Handle, Tokens, c_size_t, Count, POINTER(PicturedStruct)],
    "picture_part": [Handle, c_size_t, POINTER(EncodedStruct)],
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
    "save": [Handle, CTextArgument, CTextArgument],
    "load": [Handle, CTextArgument],
    "note": [Handle, c_char_p, c_size_t, Count],
    "buffers": [Handle, POINTER(ArrayStruct), c_size_t, Count],
    "hidden": [Handle, POINTER(Floats), Count, Count],
    "keep_hidden": [Handle, c_int],
    "draft": [Handle, Floats, c_size_t, c_size_t, Tokens, c_size_t, Floats, c_double, POINTER(DraftedStruct)],
    "checkpoint_make": [Handle, POINTER(Handle)],
    "checkpoint_info": [Handle, POINTER(KeptStruct)],
    "checkpoint_close": [Handle],
    "checkpoint_parts": [Handle, POINTER(c_uint64), c_size_t, Count],
    "checkpoint_part": [Handle, c_size_t, c_char_p, c_size_t, Count],
    "checkpoint_read": [Handle, Handle, c_size_t, POINTER(PartStruct), c_size_t, POINTER(Handle)],
    "cache_open": [Handle, c_size_t, POINTER(Handle)],
    "cache_close": [Handle],
    "cache_add": [Handle, Handle],
    "cache_find": [Handle, Tokens, c_size_t, POINTER(Handle)],
    "cache_clear": [Handle],
    "cache_watch": [Handle, OnUse, c_void_p],
    "cache_info": [Handle, POINTER(CachedStruct)],
    "resume": [Handle, Handle],
    "bring_to": [Handle, Handle, Tokens, c_size_t, Count],
    "generate": [Handle, Tokens, c_size_t, POINTER(GenerationStruct), OnToken, c_void_p, POINTER(GeneratedStruct)],
    "begin": [Handle, Tokens, c_size_t, POINTER(GenerationStruct), c_void_p, Tokens, c_size_t, Count],
    "next": [Handle, Tokens, c_size_t, Count],
    "end": [Handle, c_size_t, POINTER(GeneratedStruct)],
    "progress": [Handle, POINTER(GeneratedStruct)],
    "proposed": [Handle, Tokens, c_size_t, Count, POINTER(c_int)],
    "cancel": [Handle],
    "tokenizer_open": [CTextArgument, POINTER(Handle)],
    "tokenizer_read": [c_char_p, c_size_t, POINTER(Handle)],
    "tokenizer_close": [Handle],
    "tokenizer_encode": [Handle, c_char_p, c_size_t, c_int, Spans, c_size_t, Tokens, Spans, c_size_t, Count],
    "tokenizer_decode": [Handle, Tokens, c_size_t, c_int, c_char_p, c_size_t, Count],
    "tokenizer_id": [Handle, c_char_p, c_size_t, Tokens],
    "tokenizer_token": [Handle, c_int64, c_char_p, c_size_t, Count],
    "tokenizer_bytes": [Handle, c_int64, c_char_p, c_size_t, Count],
    "tokenizer_added": [Handle, c_int, Tokens, c_size_t, Count],
    "tokenizer_info": [Handle, POINTER(VocabularyStruct)],
    "text_open": [Handle, c_int, POINTER(Handle)],
    "text_push": [Handle, c_int64, POINTER(c_void_p), Count],
    "text_finish": [Handle, POINTER(c_void_p), Count],
    "text_stop": [Handle, c_char_p, c_size_t],
    "text_stopped": [Handle, POINTER(c_int)],
    "text_close": [Handle],
    "grammar_json_schema": [Handle, c_char_p, c_size_t, POINTER(Handle)],
    "grammar_regex": [Handle, c_char_p, c_size_t, POINTER(Handle)],
    "grammar_calls": [Handle, Handle, c_char_p, c_size_t, CTextArgument, c_int, POINTER(Handle)],
    "grammar_with": [Handle, c_char_p, c_size_t, Tokens, c_size_t, POINTER(Handle)],
    "grammar_close": [Handle],
    "grammar_mask": [Handle, Tokens, c_size_t, Floats, c_size_t],
    "grammar_forced": [Handle, Tokens, c_size_t, Tokens, c_size_t, Count],
    "grammar_fitting": [Handle, Tokens, c_size_t, Tokens, c_size_t, Count],
    "answer_form_find": [Handle, Handle, POINTER(Handle)],
    "answer_form_named": [c_char_p, c_size_t, POINTER(Handle)],
    "answer_form_describe": [Handle, c_char_p, c_size_t, Count],
    "answer_form_close": [Handle],
    "answer_open": [Handle, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(Handle)],
    "answer_reasoning_end": [Handle, c_char_p, c_size_t, Count],
    "answer_push": [Handle, c_char_p, c_size_t, POINTER(c_void_p), Count],
    "answer_finish": [Handle, POINTER(c_void_p), Count],
    "answer_close": [Handle],
    "template_open": [c_char_p, c_size_t, POINTER(Handle)],
    "template_render": [
        *(Handle, Handle, c_char_p, c_size_t, CTextArgument),
        *(POINTER(c_void_p), Count, POINTER(POINTER(SpanStruct)), Count),
    ],
    "template_read": [CTextArgument, POINTER(Handle)],
    "template_describe": [Handle, c_char_p, c_size_t, Count],
    "template_close": [Handle],
    "artifact_open": [CTextArgument, POINTER(Handle)],
    "artifact_close": [Handle],
    "artifact_model": [Handle, POINTER(Handle)],
    "artifact_tokenizer": [Handle, POINTER(Handle)],
    "chat_open": [Handle, POINTER(ChatOptionsStruct), POINTER(Handle)],
    "chat_over": [Handle, Handle, Handle, POINTER(ChatOptionsStruct), POINTER(Handle)],
    "chat_close": [Handle],
    "chat_show": [Handle, POINTER(Handle), c_size_t],
    "chat_send": [Handle, c_char_p, c_size_t, *ANSWERING],
    "chat_give_results": [Handle, POINTER(ResultStruct), c_size_t, *ANSWERING],
    "chat_retry": [Handle, *ANSWERING],
    "chat_undo": [Handle],
    "chat_reset": [Handle],
    "chat_cancel": [Handle],
    "chat_save": [Handle, CTextArgument],
    "chat_load": [Handle, CTextArgument],
    "chat_note": [Handle, c_char_p, c_size_t, Count],
    "chat_messages": [Handle, POINTER(MessageStruct), c_size_t, Count, POINTER(c_int64)],
}
"""Argument types of each function that returns a status, by its name without ``hybridge_``."""


def declare(library: CDLL) -> None:
    """Tell ctypes what the functions take and answer with. Raises AttributeError for one that the library lacks."""
    for name, takes in FUNCTIONS.items():
        function = getattr(library, f"hybridge_{name}")
        function.argtypes, function.restype = takes, c_int
    for name, takes in {"version": [], "failure": [], "status_text": [c_int]}.items():
        function = getattr(library, f"hybridge_{name}")
        function.argtypes, function.restype = takes, c_char_p
    library.hybridge_threads.argtypes, library.hybridge_threads.restype = [], c_size_t
    for name in ("has_operator", "has_backend"):
        function = getattr(library, f"hybridge_{name}")
        function.argtypes, function.restype = [c_char_p], c_int
    library.hybridge_print_log.argtypes, library.hybridge_print_log.restype = [c_int], None
