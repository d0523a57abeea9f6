"""A tokenizer.json in the native core: tokens of a text, and the text of tokens."""

from __future__ import annotations

import ctypes
import functools
import operator
import re
import weakref
from collections.abc import Iterable, Sequence
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p, sizeof
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

from hybridge.arguments import checked
from hybridge.errors import ArtifactError, DraftError, UsageError
from hybridge.runtime.artifact.folder import LARGEST_SIDE_FILE, Artifact
from hybridge.runtime.binding.interface import Reading, SpanStruct, TextHandle, TokenizerHandle, VocabularyStruct
from hybridge.runtime.binding.library import load, run, words
from hybridge.runtime.binding.sampling import core_ids
from hybridge.runtime.files import read_regular

if TYPE_CHECKING:  # NumPy takes long to start
    import numpy as np
    from numpy.typing import NDArray

ID_BYTES, SPAN_BYTES = sizeof(c_int64), sizeof(SpanStruct)


@dataclass(frozen=True)
class Encoding:
    """The tokens of a text. ids: of each; text: in UTF-8; places: the core's structures of the tokens' places in it."""

    ids: list[int]
    text: bytes
    places: bytes

    @functools.cached_property
    def spans(self) -> NDArray[np.intp]:
        """The part of the text that each token stands for, begin and end in characters."""
        import numpy as np

        found = np.frombuffer(self.places, np.uintp).reshape(-1, 2).astype(np.intp)
        return found if self.text.isascii() else characters_before(self.text)[found]


class UnreadableTokenizerError(ArtifactError):
    """A tokenizer.json is damaged, or asks for a part that the core does not have. reason: names it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be read as a tokenizer ({reason}); export the model again.")
        self.reason = reason


class Tokenizer:
    """The tokenizer of a tokenizer.json. It is immutable, and any number of threads may use it."""

    def __init__(self, json: bytes, name: str = "tokenizer.json") -> None:
        """Read the content of a tokenizer.json; name: what errors call it. Raises ArtifactError if it cannot be used."""
        self.json, handle = json, TokenizerHandle()
        if load().hybridge_tokenizer_read(json, len(json), byref(handle)):
            raise UnreadableTokenizerError(name, words())
        self.handle = handle
        weakref.finalize(self, load().hybridge_tokenizer_close, handle)

    @classmethod
    def from_file(cls, path: Path | str) -> Tokenizer:
        """Read a tokenizer.json. Raises ArtifactError if it cannot be used."""
        try:
            return cls(read_regular(Path(path), LARGEST_SIDE_FILE), str(path))
        except OSError as error:
            raise UnreadableTokenizerError(str(path), str(error.strerror)) from None

    @classmethod
    def of(cls, artifact: Artifact) -> Tokenizer:
        """Read the tokenizer of an artifact that has one, from checked bytes. Raises ArtifactError."""
        return cls(artifact.read("tokenizer.json"), str(artifact.folder / "tokenizer.json"))

    @functools.cached_property
    def info(self) -> VocabularyStruct:
        """vocab_size: one more than the largest id; longest: bytes of the longest token."""
        info = VocabularyStruct()
        run("tokenizer_info", self.handle, byref(info))
        return info

    def added_tokens(self, *, special: bool = False) -> dict[int, str]:
        """Return the tokens that are cut out of a text before it is split, by id: all of them, or those that are special."""
        count = c_size_t()
        run("tokenizer_added", self.handle, special, None, 0, byref(count))
        ids = (c_int64 * count.value)()
        run("tokenizer_added", self.handle, special, ids, len(ids), byref(count))
        return {token: self.id_to_token(token) for token in ids}

    @functools.cached_property
    def dry_breakers(self) -> tuple[int, ...]:
        """The tokens across which DRY finds no repetition: with a line break, a colon, a quotation mark or an asterisk."""
        count, ids = c_size_t(), (c_int64 * self.info.vocab_size)()
        run("tokenizer_dry_breakers", self.handle, ids, len(ids), byref(count))
        return tuple(ids[: count.value])

    def vocabulary(self) -> dict[str, int]:
        """Return the ids of all tokens, the added ones included, by their texts."""
        texts = map(self.id_to_token, range(self.info.vocab_size))
        return {text: token for token, text in enumerate(texts) if text}

    @functools.cached_property
    def before_texts(self) -> list[int]:
        """The tokens that are put before every text, such as bos; those after it, such as eos, are left out."""
        whole, text = self.encode("a").ids, self.encode("a", around=False).ids
        places = (at for at in range(len(whole) - len(text) + 1) if whole[at : at + len(text)] == text)
        return whole[: next(places, 0)]

    def encode(self, text: str, *, around: bool = True, plain: Sequence[tuple[int, int]] = ()) -> Encoding:
        """Return the tokens of a text.

        Args:
            text: of any length; half a surrogate pair is read as U+FFFD.
            around: with what the tokenizer puts around every text, such as bos.
            plain: parts of the text that people wrote, begin and end in characters: special tokens take nothing of them.

        Raises:
            UsageError: the vocabulary has no tokens for the text, or a part is not inside it.
        """
        data = _utf8(text)
        parts = _places(plain, len(text))
        if not text.isascii() and parts:
            places = bytes_before(data)
            parts = [(places[begin], places[end]) for begin, end in parts]
        spans = (SpanStruct * len(parts))(*(SpanStruct(*part) for part in parts))
        arguments = (self.handle, data, len(data), Reading.AROUND if around else 0, spans, len(spans))
        capacity, count = len(data) + 16, c_size_t()
        while True:
            memory, first = mmap(-1, capacity * (ID_BYTES + SPAN_BYTES)), capacity * ID_BYTES  # it is taken where it is written
            ids, found = (c_int64 * capacity).from_buffer(memory), (SpanStruct * capacity).from_buffer(memory, first)
            run("tokenizer_encode", *arguments, ids, found, capacity, byref(count))
            if count.value <= capacity:
                return Encoding(ids[: count.value], data, memory[first : first + count.value * SPAN_BYTES])
            capacity = count.value

    def decode(self, ids: Iterable[SupportsIndex], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens; ids that nothing has are left out. Raises TokenError for what is no whole number."""
        given = core_ids(ids)
        arguments = (given, len(given), skip_special_tokens)
        return self._written("tokenizer_decode", *arguments, capacity=16 * len(given) + 64).decode("utf-8")

    @checked
    def stream(self, stop: Sequence[str] = ()) -> TextStream:
        """Return the text of tokens that come one after the other, without special ones; see ``TextStream`` for ``stop``."""
        return TextStream(self, stop=stop)

    @checked
    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token by its text."""
        data, found = token.encode("utf-8", "surrogatepass"), c_int64()
        run("tokenizer_id", self.handle, data, len(data), byref(found))
        return None if found.value < 0 else found.value

    def id_to_token(self, token: int) -> str:
        """Return the text of a token as the vocabulary has it; empty for an id that nothing has."""
        return self._written("tokenizer_token", core_ids([token])[0], capacity=256).decode("utf-8")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text after others, which may be a part of a character.

        A special token adds its text.
        """
        return self._written("tokenizer_bytes", core_ids([token])[0], capacity=256)

    def _written(self, call: str, *arguments: object, capacity: int) -> bytes:
        """Return the bytes that a call writes, which is called again if they are more than ``capacity``."""
        size = c_size_t()
        while True:
            text = ctypes.create_string_buffer(capacity)
            run(call, self.handle, *arguments, text, capacity, byref(size))
            if size.value <= capacity:
                return text.raw[: size.value]
            capacity = size.value


def check_stop_strings(stop: Sequence[str]) -> None:
    """Raise UsageError for an empty stop string."""
    if "" in stop:
        raise UsageError("a stop string is empty; give at least one character.")


def _places(parts: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Return parts of a text as whole numbers. Raises UsageError for one that is not inside a text of this length."""
    found = []
    for part in parts:
        try:
            begin, end = map(operator.index, part)
        except (TypeError, ValueError):
            raise UsageError(f"{part!r} is no part of a text; give its begin and its end in characters.") from None
        if not 0 <= begin <= end <= length:
            raise UsageError(f"the part from {begin} to {end} is not inside the text, which has {length} characters.")
        found.append((begin, end))
    return found


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return re.sub("[\ud800-\udfff]", "\ufffd", text).encode()


def characters_before(data: bytes) -> NDArray[np.intp]:
    """Return for each byte of a text in UTF-8, and for its end, the number of characters before its own."""
    import numpy as np

    begins = _begins_character(data)
    return np.append(begins.cumsum() - 1, np.count_nonzero(begins)).astype(np.intp)


def bytes_before(data: bytes) -> list[int]:
    """Return for each character of a text in UTF-8, and for its end, the number of bytes before it."""
    import numpy as np

    return [*np.flatnonzero(_begins_character(data)).tolist(), len(data)]


def _begins_character(data: bytes) -> NDArray[np.bool_]:
    """Return for each byte in UTF-8 whether a character begins there."""
    import numpy as np

    begins: NDArray[np.bool_] = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80
    return begins


def check_draft_tokenizer(draft: Artifact, target: Artifact) -> None:
    """Raise DraftError if the two artifacts' tokenizers give ids different meanings."""
    if draft.tokenizer is None or target.tokenizer is None:
        return  # the caller has token ids, and knows what they mean
    if draft.manifest.files["tokenizer.json"] == target.manifest.files["tokenizer.json"]:
        return
    mine, other = (Tokenizer.of(artifact).vocabulary() for artifact in (draft, target))
    if mine == other:
        return
    differing = sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name))
    raise DraftError(
        f"the draft model's tokenizer is another one: {len(differing)} tokens differ, such as {differing[0]!r} "
        f"({mine.get(differing[0])} there, {other.get(differing[0])} in the target); use a draft model that was trained with "
        "the target's tokenizer."
    )


class TextStream:
    """The text of tokens that come one after the other, up to a stop string, in pieces that never change."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, stop: Sequence[str] = ()) -> None:
        """Begin a text.

        stop: texts before the first of which it ends. One that may begin them is held back until more has come. Raises
        UsageError for an empty one, which would end every text before it begins.
        """
        check_stop_strings(stop)
        self.handle, self._has_stops = TextHandle(), bool(stop)
        run("text_open", tokenizer.handle, skip_special_tokens, byref(self.handle))
        weakref.finalize(self, load().hybridge_text_close, self.handle)
        for text in stop:
            data = text.encode("utf-8", "surrogatepass")
            run("text_stop", self.handle, data, len(data))

    @property
    def stopped(self) -> bool:
        """Return whether a stop string was complete, after which nothing is added."""
        if not self._has_stops:
            return False
        stopped = c_int()
        run("text_stopped", self.handle, byref(stopped))
        return bool(stopped)

    def push(self, token: int) -> str:
        """Return what a token adds to the text; a character is held back until all of it is there."""
        return self._piece("text_push", core_ids([token])[0])

    def finish(self) -> str:
        """Return what is still held back."""
        return self._piece("text_finish")

    def _piece(self, call: str, *arguments: int) -> str:
        piece, size = c_void_p(), c_size_t()
        run(call, self.handle, *arguments, byref(piece), byref(size))
        return ctypes.string_at(piece.value or 0, size.value).decode("utf-8") if size.value else ""
