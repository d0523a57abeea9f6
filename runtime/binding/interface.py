"""``hybridge.h`` and ``hybridge_dev.h`` for ctypes: their numbers, structures and functions.

tests/runtime/binding/test_core_interface.py compares them with the headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import (
    CDLL,
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
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
    OTHER_MODEL = 24
    UNSUPPORTED = 25
    CALLBACK_FAILED = 26


class Reading(IntFlag):
    """``hybridge_reading``"""

    AROUND = 1
    PLAIN = 2


class GrammarKind(IntEnum):
    """``hybridge_grammar_kind``"""

    JSON_SCHEMA = 0
    REGEX = 1


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


class Handle(Structure):
    """A handle of the core. Each kind is a class of its own, so that ctypes refuses one of another kind; an id of 0 is none."""

    _fields_: ClassVar = [("id", c_uint64)]


class ModelHandle(Handle):
    """``hybridge_model``"""


class PictureHandle(Handle):
    """``hybridge_picture``"""


class SessionHandle(Handle):
    """``hybridge_session``"""


class CheckpointHandle(Handle):
    """``hybridge_checkpoint``"""


class CacheHandle(Handle):
    """``hybridge_cache``"""


class TokenizerHandle(Handle):
    """``hybridge_tokenizer``"""


class TextHandle(Handle):
    """``hybridge_text``"""


class GrammarHandle(Handle):
    """``hybridge_grammar``"""


class ArtifactHandle(Handle):
    """``hybridge_artifact``"""


class ChatHandle(Handle):
    """``hybridge_chat``"""


class TemplateHandle(Handle):
    """``hybridge_template``"""


class AnswerFormHandle(Handle):
    """``hybridge_answer_form``"""


class AnswerParserHandle(Handle):
    """``hybridge_answer_parser``"""


class OptionsStruct(Structure):
    """Options of a caller's, which begin with their size. DEFAULTS: those that are not 0."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"struct_size": sizeof(self), **self.DEFAULTS, **given})


Tokens, Floats, Count = POINTER(c_int64), POINTER(c_float), POINTER(c_size_t)
OnToken = CFUNCTYPE(c_int, c_int64, c_void_p)
OnMask = CFUNCTYPE(None, Tokens, c_size_t, Floats, c_size_t, c_void_p)
OnForced = CFUNCTYPE(c_size_t, Tokens, c_size_t, Tokens, c_size_t, c_void_p)
OnFitting = CFUNCTYPE(c_size_t, Tokens, c_size_t, Tokens, c_size_t, c_void_p)
OnWatch = CFUNCTYPE(None, c_int64, Floats, c_size_t, c_void_p)
OnSame = CFUNCTYPE(c_int, c_void_p)
OnRead = CFUNCTYPE(None, c_size_t, c_void_p)
OnUse = CFUNCTYPE(None, CheckpointHandle, c_void_p)
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
    ]


OnPropose = CFUNCTYPE(c_size_t, POINTER(ContextStruct), POINTER(ProposalStruct), c_size_t, c_void_p)


class InfoStruct(Structure):
    """``hybridge_info``"""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("max_seq_len", "vocab_size", "prefill_chunk", "verify_len", "snapshot_slots")),
        *((name, c_int64) for name in ("draft_len", "picture_unit", "max_picture_tokens", "placeholder")),
    ]


class PromptsReadStruct(Structure):
    """``hybridge_prompts_read``"""

    _fields_: ClassVar = [(name, c_int64) for name in ("delegate_in_use", "delegate_tokens", "cpu_tokens")]


class ValidationStruct(Structure):
    """``hybridge_validation``"""

    _fields_: ClassVar = [
        ("steps", c_size_t),
        ("worst", c_double),
        ("tolerance", c_double),
        ("same_bits", c_int),
        ("instruction_set", c_char * 32),
        ("exported_on", c_char * 32),
        ("bits", c_uint64 * 32),
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


class ProgramStruct(OptionsStruct):
    """``hybridge_program``"""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
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
        ("count", c_size_t),
        ("tokens", Tokens),
        ("confidences", Floats),
    ]


class PartStruct(Structure):
    """``hybridge_part``"""

    _fields_: ClassVar = [("bytes", c_char_p), ("size", c_size_t)]


class BiasStruct(Structure):
    """``hybridge_bias``"""

    _fields_: ClassVar = [("token", c_int64), ("bias", c_double)]


class SamplingStruct(OptionsStruct):
    """``hybridge_sampling``"""

    DEFAULTS: ClassVar = {
        "top_p": 1.0, "repetition_penalty": 1.0, "repeat_last_n": -1, "dry_base": 1.75, "dry_allowed_length": 2,
    }  # fmt: skip
    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        *((name, c_double) for name in ("temperature", "top_p", "min_p", "repetition_penalty")),
        ("top_k", c_size_t),
        ("seed", c_uint64),
        ("has_seed", c_int),
        *((name, c_double) for name in ("presence_penalty", "frequency_penalty")),
        ("repeat_last_n", c_int64),
        *((name, c_double) for name in ("top_n_sigma", "dry_multiplier", "dry_base")),
        ("dry_allowed_length", c_size_t),
        ("dry_breakers", POINTER(c_int64)),
        ("dry_breaker_count", c_size_t),
        ("logit_bias", POINTER(BiasStruct)),
        ("bias_count", c_size_t),
    ]


class DevGenerationStruct(OptionsStruct):
    """``hybridge_dev_generation``"""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("forced", OnForced),
        ("fitting", OnFitting),
        ("watch", OnWatch),
        ("clock", OnClock),
        ("noise", POINTER(c_uint64)),
    ]


class GenerationStruct(OptionsStruct):
    """``hybridge_generation``"""

    DEFAULTS: ClassVar = {"max_new_tokens": 64, "drafter": DrafterKind.AUTO}
    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("max_new_tokens", c_size_t),
        ("block_length", c_size_t),
        ("drafter", c_int),
        ("draft", ModelHandle),
        ("sampling", POINTER(SamplingStruct)),
        ("grammar", GrammarHandle),
        ("mask", OnMask),
        ("tool_choice", c_char_p),
        ("on_read", OnRead),
        ("propose", OnPropose),
        ("drafter_id", c_uint64),
        ("reads_hidden", c_int),
        ("is_cheap", c_int),
        ("dev", POINTER(DevGenerationStruct)),
        ("stop_after_reasoning", c_int),
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


CHECKPOINT_BYTES = 256 << 20
"""Most memory for the states that a chat goes back to."""


class ChatOptionsStruct(OptionsStruct):
    """``hybridge_chat_options``"""

    DEFAULTS: ClassVar = {"checkpoint_bytes": CHECKPOINT_BYTES}
    _fields_: ClassVar = [
        *(("struct_size", c_size_t), ("system", c_char_p), ("thinking", c_int), ("checkpoint_bytes", c_size_t)),
        *(("variables", c_char_p), ("tools", c_char_p), ("cache", CacheHandle), ("now", c_char_p)),
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
        ("ending", c_int), ("prompt_tokens", c_size_t), ("cached_tokens", c_size_t), ("generated", GeneratedStruct),
        ("dropped_messages", c_size_t),
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
    "sampling_init": [POINTER(SamplingStruct), c_size_t],
    "generation_init": [POINTER(GenerationStruct), c_size_t],
    "chat_options_init": [POINTER(ChatOptionsStruct), c_size_t],
    "model_open": [CTextArgument, POINTER(ModelHandle)],
    "program_open": [POINTER(ProgramStruct), POINTER(ModelHandle)],
    "model_close": [ModelHandle],
    "model_ask": [ModelHandle, OnSame, c_void_p],
    "model_limit": [ModelHandle, c_int64],
    "model_delegate_from": [ModelHandle, c_int64],
    "model_strict_reuse": [ModelHandle, c_int],
    "model_info": [ModelHandle, POINTER(InfoStruct)],
    "model_eos_ids": [ModelHandle, Tokens, c_size_t, Count],
    "validate": [ModelHandle, CTextArgument, POINTER(ValidationStruct)],
    "model_verify_lens": [ModelHandle, Tokens, c_size_t, Count],
    "model_pictures": [ModelHandle, TokenizerHandle, c_char_p, c_size_t],
    "picture_open": [ModelHandle, c_void_p, c_size_t, c_size_t, POINTER(PictureHandle)],
    "picture_open_prepared": [ModelHandle, c_void_p, c_size_t, c_size_t, POINTER(PictureHandle)],
    "picture_close": [PictureHandle],
    "picture_ids": [PictureHandle, Tokens, c_size_t, Count, POINTER(PicturedStruct)],
    "picture_part": [PictureHandle, c_size_t, POINTER(EncodedStruct)],
    "session_open": [ModelHandle, POINTER(SessionHandle)],
    "session_close": [SessionHandle],
    "tokens": [SessionHandle, Tokens, c_size_t, Count],
    "session_prompts": [SessionHandle, POINTER(PromptsReadStruct), c_char_p, c_size_t, Count],
    "delegated": [SessionHandle, Tokens, c_size_t, Count],
    "slot_tokens": [SessionHandle, c_int64, Tokens, c_size_t, Count],
    "prefill": [SessionHandle, Tokens, c_size_t, Floats],
    "decode": [SessionHandle, c_int64, Floats],
    "verify": [SessionHandle, Tokens, c_size_t, Floats],
    "commit": [SessionHandle, c_int64],
    "snapshot": [SessionHandle, c_int64],
    "restore": [SessionHandle, c_int64],
    "reset": [SessionHandle],
    "save": [SessionHandle, CTextArgument, CTextArgument],
    "load": [SessionHandle, CTextArgument],
    "note": [SessionHandle, c_char_p, c_size_t, Count],
    "saved_elsewhere": [SessionHandle, c_char_p, c_size_t, Count],
    "buffers": [SessionHandle, POINTER(ArrayStruct), c_size_t, Count],
    "hidden": [SessionHandle, POINTER(Floats), Count, Count],
    "keep_hidden": [SessionHandle, c_int],
    "draft": [
        SessionHandle,
        Floats,
        c_size_t,
        c_size_t,
        Tokens,
        c_size_t,
        POINTER(c_uint32),
        c_double,
        POINTER(DraftedStruct),
    ],
    "checkpoint_make": [SessionHandle, POINTER(CheckpointHandle)],
    "checkpoint_info": [CheckpointHandle, POINTER(KeptStruct)],
    "checkpoint_close": [CheckpointHandle],
    "checkpoint_parts": [CheckpointHandle, POINTER(c_uint64), c_size_t, Count],
    "checkpoint_part": [CheckpointHandle, c_size_t, c_char_p, c_size_t, Count],
    "checkpoint_read": [SessionHandle, CheckpointHandle, c_size_t, POINTER(PartStruct), c_size_t, POINTER(CheckpointHandle)],
    "cache_open": [ModelHandle, c_size_t, POINTER(CacheHandle)],
    "cache_close": [CacheHandle],
    "cache_add": [CacheHandle, CheckpointHandle],
    "cache_find": [CacheHandle, Tokens, c_size_t, POINTER(CheckpointHandle)],
    "resume_prefix": [SessionHandle, CacheHandle, Tokens, c_size_t],
    "keep_checkpoint": [SessionHandle, CacheHandle],
    "cache_clear": [CacheHandle],
    "cache_watch": [CacheHandle, OnUse, c_void_p],
    "cache_info": [CacheHandle, POINTER(CachedStruct)],
    "resume": [SessionHandle, CheckpointHandle],
    "bring_to": [SessionHandle, CacheHandle, Tokens, c_size_t, Count],
    "generate": [SessionHandle, Tokens, c_size_t, POINTER(GenerationStruct), OnToken, c_void_p, POINTER(GeneratedStruct)],
    "begin": [SessionHandle, Tokens, c_size_t, POINTER(GenerationStruct), c_void_p, Tokens, c_size_t, Count],
    "next": [SessionHandle, Tokens, c_size_t, Count],
    "end": [SessionHandle, c_size_t, POINTER(GeneratedStruct)],
    "progress": [SessionHandle, POINTER(GeneratedStruct)],
    "proposed": [SessionHandle, Tokens, c_size_t, Count, POINTER(c_int)],
    "cancel": [SessionHandle],
    "tokenizer_open": [CTextArgument, POINTER(TokenizerHandle)],
    "tokenizer_read": [c_char_p, c_size_t, POINTER(TokenizerHandle)],
    "tokenizer_close": [TokenizerHandle],
    "tokenizer_encode": [TokenizerHandle, c_char_p, c_size_t, c_int, Spans, c_size_t, Tokens, Spans, c_size_t, Count],
    "tokenizer_decode": [TokenizerHandle, Tokens, c_size_t, c_int, c_char_p, c_size_t, Count],
    "tokenizer_id": [TokenizerHandle, c_char_p, c_size_t, Tokens],
    "tokenizer_token": [TokenizerHandle, c_int64, c_char_p, c_size_t, Count],
    "tokenizer_bytes": [TokenizerHandle, c_int64, c_char_p, c_size_t, Count],
    "tokenizer_added": [TokenizerHandle, c_int, Tokens, c_size_t, Count],
    "sampling_read": [c_char_p, c_size_t, POINTER(SamplingStruct)],
    "artifact_sampling": [ArtifactHandle, POINTER(SamplingStruct)],
    "tokenizer_dry_breakers": [TokenizerHandle, Tokens, c_size_t, Count],
    "tokenizer_info": [TokenizerHandle, POINTER(VocabularyStruct)],
    "text_open": [TokenizerHandle, c_int, POINTER(TextHandle)],
    "text_push": [TextHandle, c_int64, POINTER(c_void_p), Count],
    "text_finish": [TextHandle, POINTER(c_void_p), Count],
    "text_stop": [TextHandle, c_char_p, c_size_t],
    "text_stopped": [TextHandle, POINTER(c_int)],
    "text_close": [TextHandle],
    "grammar_open": [TokenizerHandle, c_int, c_char_p, c_size_t, POINTER(GrammarHandle)],
    "grammar_calls": [TokenizerHandle, AnswerFormHandle, c_char_p, c_size_t, CTextArgument, c_int, POINTER(GrammarHandle)],
    "grammar_with": [GrammarHandle, c_char_p, c_size_t, Tokens, c_size_t, POINTER(GrammarHandle)],
    "grammar_close": [GrammarHandle],
    "grammar_mask": [GrammarHandle, Tokens, c_size_t, Floats, c_size_t],
    "grammar_forced": [GrammarHandle, Tokens, c_size_t, Tokens, c_size_t, Count],
    "grammar_fitting": [GrammarHandle, Tokens, c_size_t, Tokens, c_size_t, Count],
    "answer_form_find": [TokenizerHandle, TemplateHandle, POINTER(AnswerFormHandle)],
    "answer_form_named": [c_char_p, c_size_t, POINTER(AnswerFormHandle)],
    "answer_form_describe": [AnswerFormHandle, c_char_p, c_size_t, Count],
    "answer_form_close": [AnswerFormHandle],
    "answer_open": [AnswerFormHandle, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(AnswerParserHandle)],
    "answer_stop": [AnswerParserHandle, c_char_p, c_size_t],
    "answer_stopped": [AnswerParserHandle, POINTER(c_int)],
    "answer_reasoning_end": [AnswerParserHandle, c_char_p, c_size_t, Count],
    "answer_push": [AnswerParserHandle, c_char_p, c_size_t, POINTER(c_void_p), Count],
    "answer_finish": [AnswerParserHandle, POINTER(c_void_p), Count],
    "answer_close": [AnswerParserHandle],
    "template_open": [c_char_p, c_size_t, POINTER(TemplateHandle)],
    "template_render": [
        *(TemplateHandle, AnswerFormHandle, c_char_p, c_size_t, CTextArgument),
        *(POINTER(c_void_p), Count, POINTER(POINTER(SpanStruct)), Count),
    ],
    "template_read": [CTextArgument, POINTER(TemplateHandle)],
    "template_describe": [TemplateHandle, c_char_p, c_size_t, Count],
    "template_close": [TemplateHandle],
    "fit_lines": [c_void_p, c_void_p, c_size_t, c_size_t, c_int, c_void_p, c_void_p],
    "artifact_open": [CTextArgument, POINTER(ArtifactHandle)],
    "artifact_close": [ArtifactHandle],
    "artifact_model": [ArtifactHandle, POINTER(ModelHandle)],
    "artifact_tokenizer": [ArtifactHandle, POINTER(TokenizerHandle)],
    "chat_open": [ArtifactHandle, POINTER(ChatOptionsStruct), POINTER(ChatHandle)],
    "chat_over": [SessionHandle, TokenizerHandle, TemplateHandle, POINTER(ChatOptionsStruct), POINTER(ChatHandle)],
    "chat_close": [ChatHandle],
    "chat_show": [ChatHandle, POINTER(PictureHandle), c_size_t],
    "chat_send": [ChatHandle, c_char_p, c_size_t, *ANSWERING],
    "chat_give_results": [ChatHandle, POINTER(ResultStruct), c_size_t, *ANSWERING],
    "chat_retry": [ChatHandle, *ANSWERING],
    "chat_continue": [ChatHandle, *ANSWERING],
    "chat_set_system": [ChatHandle, c_char_p, c_size_t],
    "chat_undo": [ChatHandle],
    "chat_reset": [ChatHandle],
    "chat_cancel": [ChatHandle],
    "chat_save": [ChatHandle, CTextArgument],
    "chat_load": [ChatHandle, CTextArgument],
    "chat_note": [ChatHandle, c_char_p, c_size_t, Count],
    "chat_restore": [ChatHandle, c_char_p, c_size_t],
    "chat_messages": [ChatHandle, POINTER(MessageStruct), c_size_t, Count, POINTER(c_int64)],
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
