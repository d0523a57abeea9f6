"""Files of tokenizers that nobody trained: deep, long and contradictory ones, in threads with small stacks."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from random_tokenizers import as_bytes, random_text, random_tokenizer
from tokenizer_zoo import ZOO
from tokenizers import Tokenizer as Reference

from hybridge.errors import ArtifactError, UsageError
from hybridge.runtime.binding.tokenizer import TextStream, Tokenizer

SMALL_STACK = 256 * 1024
"""Bytes of a thread's stack; threads of apps have 512 kB or 1 MB."""
WORDS = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
KINDS = {
    "normalizer": ("normalizers", {"type": "NFC"}),
    "pre_tokenizer": ("pretokenizers", {"type": "WhitespaceSplit"}),
    "decoder": ("decoders", {"type": "Fuse"}),
    "post_processor": ("processors", {"type": "BertProcessing", "sep": ["a", 0], "cls": ["a", 0]}),
}
"""By the key of a part: the key of the list in its Sequence, and a part that may be in one."""


def read(**parts: Any) -> Tokenizer:
    return Tokenizer(json.dumps({"version": "1.0", "added_tokens": [], "model": WORDS} | parts).encode())


def nested(part: str, depth: int) -> bytes:
    """Return a tokenizer.json with ``depth`` Sequences inside each other; too deep for the json module."""
    key, inner = KINDS[part]
    sequence = f'{{"type":"Sequence","{key}":[' * depth + json.dumps(inner) + "]}" * depth
    return f'{{"version":"1.0","model":{json.dumps(WORDS)},"{part}":{sequence}}}'.encode()


def in_small_thread(call: Callable[[], Any]) -> Any:
    """Return what a call returns or raises in a thread with a small stack."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    before = threading.stack_size(SMALL_STACK)
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return found[0]


@pytest.mark.parametrize("part", KINDS)
@pytest.mark.parametrize("depth", [64, 15_000, 200_000])
def test_a_file_that_is_nested_too_deeply_is_refused(part: str, depth: int) -> None:
    """15,000 Sequences inside each other were a stack overflow."""
    data = nested(part, depth)
    begin = time.perf_counter()
    error = in_small_thread(lambda: Tokenizer(data))
    assert isinstance(error, ArtifactError)
    assert "nested too deeply" in str(error)
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("part", KINDS)
def test_the_deepest_file_that_is_read_needs_little_of_a_stack(part: str) -> None:
    def ids() -> list[int]:
        tokenizer = Tokenizer(nested(part, 62))
        tokenizer.decode([0, 0])
        return tokenizer.encode("a", around=False).ids

    assert in_small_thread(ids) == [0]


@pytest.mark.parametrize("part", KINDS)
def test_more_parts_than_any_file_has_are_refused(part: str) -> None:
    """100,000 normalizers took 4 GB and 40 seconds."""
    key, inner = KINDS[part]
    sequence = {"type": "Sequence", key: [inner] * 50}
    read(**{part: {"type": "Sequence", key: [sequence, sequence]}})
    for many in ([sequence, sequence, inner], [inner] * 100_000):
        with pytest.raises(ArtifactError, match="100 p"):
            read(**{part: {"type": "Sequence", key: many}})


# Parts of a text


@pytest.mark.parametrize("affix", ["continuing_subword_prefix", "end_of_word_suffix"])
@pytest.mark.parametrize("text", ["x", "xyz", "é漢", "x y", "<s>xyz<s>"])
def test_bytes_of_an_affix_are_no_part_of_the_text(affix: str, text: str) -> None:
    """Tokens for them were given memory after the word's; ids and order are the library's."""
    vocabulary = {**BYTES, "x": 256, "<0x2F><0x77>": 257}
    merges = [["<0x2F>", "<0x77>"]] if affix == "end_of_word_suffix" else []
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "byte_fallback": True, affix: "</w>", "unk_token": None}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": 258, "content": "<s>", "special": True, **flags}]
    content = {"version": "1.0", "model": model, "added_tokens": added, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    found = Tokenizer(json.dumps(content).encode()).encode(text)
    assert found.ids == Reference.from_str(json.dumps(content)).encode(text).ids
    assert all(0 <= begin <= end <= len(text) for begin, end in found.spans.tolist())


def answer_of_library(call: Callable[[], Any]) -> Any:
    """Return what a call of the library returns, or None if it fails or panics, which is no Exception."""
    try:
        return call()
    except BaseException as error:
        if type(error).__name__ not in ("PanicException", "Exception"):
            raise
        return None


def check_a_random_tokenizer(seed: int) -> int:
    """Compare a random tokenizer with the library, and return how many texts both have tokens for."""
    rng = random.Random(seed)
    content = random_tokenizer(rng)
    own, compared = Tokenizer(as_bytes(content)), 0
    model = content["model"]
    # The library's offsets leave the word for bytes, and overlap at some splits; of unknown pieces it trims by another text.
    is_loose = model.get("byte_fallback") or model["type"] == "Unigram"
    # Which of two tokens that a normalizer makes alike is found is not the same at each start of the library.
    may_be_alike = content["normalizer"] and sum(each["normalized"] for each in content["added_tokens"]) > 1
    reference = answer_of_library(lambda: Reference.from_str(json.dumps(content)))
    for _ in range(6):
        text = random_text(rng)
        plain = sorted(rng.sample(range(len(text) + 1), 2)) if text else [0, 0]
        try:
            found = own.encode(text)
            apart = own.encode(text, plain=[(plain[0], plain[1])])
            own.decode(found.ids)
        except UsageError:
            continue
        for spans in (found.spans, apart.spans):
            assert all(0 <= begin <= end <= len(text) for begin, end in spans.tolist()), text
        wanted = None if reference is None else answer_of_library(lambda text=text: reference.encode(text))
        if wanted is not None and not may_be_alike:
            assert found.ids == wanted.ids, text
            is_in_order = all(left[1] <= right[0] or right == (0, 0) for left, right in pairwise(wanted.offsets))
            assert is_loose or not is_in_order or [*map(tuple, found.spans.tolist())] == wanted.offsets, text
            compared += 1
    return compared


def test_random_tokenizers_make_the_tokens_of_the_library() -> None:
    assert sum(map(check_a_random_tokenizer, range(300))) > 700


@pytest.mark.thorough
def test_many_random_tokenizers_make_the_tokens_of_the_library() -> None:
    assert sum(map(check_a_random_tokenizer, range(1000, 21_000))) > 60_000


# Work


def added(*contents: str, special: bool = True) -> list[dict[str, Any]]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [{"id": 2 + place, "content": content, "special": special, **flags} for place, content in enumerate(contents)]


LONG = ["a" * length for length in range(2, 3000)]
HEAVY: dict[str, tuple[dict[str, Any], str]] = {
    "added tokens of 20,001 bytes": ({"added_tokens": added("a" * 20_000 + "b", "a" * 20_001)}, "a" * 19_999 + " "),
    "normalizers that double the text": (
        {
            "normalizer": {
                "type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 60,
            },
        },
        "a",
    ),
    "a replacement of a megabyte": (
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 1_000_000}}, "a" * 50,
    ),
    "pre-tokenizers that double the text": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": False}] * 60}},
        "é" * 50,
    ),
    "long words of pieces": (
        {
            "model": {
                "type": "WordPiece", "vocab": {"a": 0, "[UNK]": 1, "##a": 2, "##b": 3, "##" + "a" * 3000: 4},
                "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 1 << 30,
            },
        },
        ("a" * 2990 + "b") * 5,
    ),
    "every beginning of a long piece": (
        {"model": {"type": "Unigram", "vocab": [["a", -1.0], *([each, -1.0] for each in LONG)], "unk_id": 0}}, "a" * 200,
    ),
    "an expression that goes back": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|aa)+c|b"}, "behavior": "Isolated", "invert": False}},
        ("a" * 30 + "b") * 20,
    ),
}  # fmt: skip
"""A part of a file, and a text that it is too much for ten times."""


@pytest.mark.parametrize("heavy", HEAVY)
def test_a_text_that_takes_too_long_is_refused(heavy: str) -> None:
    """WordPiece and added tokens took the cube of a length, and nothing interrupts a call."""
    parts, text = HEAVY[heavy]
    tokenizer = read(**parts)
    begin = time.perf_counter()
    with pytest.raises(UsageError, match=r"takes too long|too long"):
        tokenizer.encode(text * 10)
    assert time.perf_counter() - begin < 10


def test_a_decoder_that_doubles_a_text_is_refused() -> None:
    doubles = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    tokenizer = read(decoder={"type": "Sequence", "decoders": [doubles] * 60})
    with pytest.raises(UsageError, match="too long"):
        tokenizer.decode([0])


def test_a_stream_of_tokens_without_text_takes_time_by_their_number() -> None:
    """A decoder that drops every text had all tokens so far decoded again for each one."""
    drops = {"type": "Replace", "pattern": {"Regex": "[ab]+"}, "content": ""}
    stream = TextStream(read(decoder={"type": "Sequence", "decoders": [drops]}))
    begin = time.perf_counter()
    assert {stream.push(0) for _ in range(20_000)} == {""}
    assert stream.finish() == ""
    assert time.perf_counter() - begin < 30


def test_special_tokens_that_people_spell_are_read_once() -> None:
    """After each of them the rest of the text was read again."""
    vocabulary = [["a", -1.0], ["<unk>", -9.0], ["</s>", 0.0], ["<", -1.0], ["/", -1.0], ["s", -1.0], [">", -1.0]]
    tokenizer = read(model={"type": "Unigram", "vocab": vocabulary, "unk_id": 1}, added_tokens=added("</s>"))
    text = "</s>a" * 20_000
    begin = time.perf_counter()
    assert tokenizer.encode(text, plain=[(0, len(text))]).ids == [3, 4, 5, 6, 0] * 20_000
    assert time.perf_counter() - begin < 5


MEMORY = """
import ctypes, sys
from hybridge.runtime.binding.library import load
from hybridge.runtime.binding.tokenizer import TextStream, Tokenizer

def resident():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmRSS"))

tokenizer = Tokenizer(sys.stdin.buffer.read())
tokenizer.encode("the tokens")
before, count, text = resident(), ctypes.c_size_t(), b"the tokens of a text, 12 " * 200_000
load().hybridge_tokenizer_encode(tokenizer.handle, text, len(text), 0, None, 0, None, None, 0, ctypes.byref(count))
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_long_text_leaves_no_memory_behind() -> None:
    """5 MB of text left 117 MB."""
    data = ZOO["llama2"]().to_str().encode()  # to which all of a text is one word
    done = subprocess.run([sys.executable, "-c", MEMORY], input=data, capture_output=True, check=True)
    assert int(done.stdout) < 20 << 20


# Ids


def test_an_id_of_the_file_that_is_not_the_tokens_is_refused() -> None:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    wrong = [{"id": 7, "content": "<s>", **flags}]
    with pytest.raises(ArtifactError, match="'<s>' has the id 7 in the file, and 2 by its place"):
        read(added_tokens=wrong)
    with pytest.raises(ArtifactError, match="'a' has the id 7 in the file, and 0"):
        read(added_tokens=[{**wrong[0], "content": "a"}])
    with pytest.raises(ArtifactError, match=r"added_tokens\[\]\.id is not an integer"):
        read(added_tokens=[{"content": "<s>", **flags}])
    gap = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 2}, "unk_token": "[UNK]"}
    with pytest.raises(ArtifactError, match=r"'<s>' has the id of '\[UNK\]'"):
        read(model=gap, added_tokens=[{**wrong[0], "id": 2}])


def test_ids_after_a_gap_are_the_librarys() -> None:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokens = [{"id": 9, "content": "b", **flags}, {"id": 3, "content": "<s>", **flags}, {"id": 4, "content": "<t>", **flags}]
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 9, "[UNK]": 1}, "unk_token": "[UNK]"}
    content = {"version": "1.0", "model": model, "added_tokens": tokens}
    assert Reference.from_str(json.dumps(content)).encode("<t>b<s>").ids == [4, 9, 3]
    assert Tokenizer(json.dumps(content).encode()).encode("<t>b<s>").ids == [4, 9, 3]


def test_a_token_or_an_id_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ArtifactError, match="two tokens of the vocabulary have the id 0"):
        read(model=WORDS | {"vocab": {"a": 0, "b": 0}})
    twice = json.dumps({"version": "1.0", "model": WORDS}).replace('"a": 0', '"a": 0, "a": 3').encode()
    with pytest.raises(ArtifactError, match="has the token 'a' twice"):
        Tokenizer(twice)


def test_a_piece_that_is_there_twice_has_two_ids() -> None:
    """Added tokens had the ids of pieces before them."""
    vocabulary = [["<unk>", 0.0], ["a", -1.0], ["b", -2.0], ["a", -3.0]]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    content = {
        "version": "1.0",
        "model": {"type": "Unigram", "vocab": vocabulary, "unk_id": 0},
        "added_tokens": [{"id": 4, "content": "<s>", **flags}],
    }
    reference, own = Reference.from_str(json.dumps(content)), Tokenizer(json.dumps(content).encode())
    assert own.encode("ab<s>a").ids == reference.encode("ab<s>a").ids
    assert [own.id_to_token(each) for each in range(5)] == [reference.id_to_token(each) for each in range(5)]
