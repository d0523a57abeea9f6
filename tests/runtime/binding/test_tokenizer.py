"""The core's tokenizer beside the tokenizers library: tokens, offsets, texts, streams; and files that are none."""

from __future__ import annotations

import copy
import ctypes
import json
import random
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_zoo import QWEN, SPECIAL, ZOO, bpe, byte_level, odd_texts, split
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, normalizers

from hybridge.errors import ArtifactError, TokenError, UsageError
from hybridge.runtime.binding.interface import Reading, SpanStruct, Status
from hybridge.runtime.binding.library import load
from hybridge.runtime.binding.tokenizer import TextStream, Tokenizer

Parts = list[tuple[int, int]]

ADDED = (*SPECIAL, "HYBRID", " state ", "<l>", " <r> ", "to", "é", "<lr>", "<|im", "my tok", "[MASK]", "<sp ecial>", "</s>x")
TEXTS = odd_texts(120, ADDED, seed=3)


@pytest.fixture(scope="module", params=ZOO)
def reference_and_tokenizer(request: pytest.FixtureRequest) -> tuple[Reference, Tokenizer]:
    """Return a tokenizer of the library, and the core's of the same file."""
    reference = ZOO[request.param]()
    return reference, Tokenizer(reference.to_str().encode())


def check_same(both: tuple[Reference, Tokenizer], text: str) -> None:
    reference, own = both
    for special in (True, False):
        wanted, found = reference.encode(text, add_special_tokens=special), own.encode(text, around=special)
        assert found.ids == wanted.ids
        assert [*map(tuple, found.spans.tolist())] == wanted.offsets
    for skipped in (True, False):
        assert own.decode(wanted.ids, skipped) == reference.decode(wanted.ids, skip_special_tokens=skipped)


def test_odd_texts_are_the_same(reference_and_tokenizer: tuple[Reference, Tokenizer]) -> None:
    for text in TEXTS:
        check_same(reference_and_tokenizer, text)


@given(text=st.text(max_size=30))
def test_any_text_is_the_same(reference_and_tokenizer: tuple[Reference, Tokenizer], text: str) -> None:
    check_same(reference_and_tokenizer, text)


@pytest.mark.parametrize("name", ["gpt2", "smollm", "llama2", "gemma", "mistral"])
def test_tokens_add_their_bytes_to_a_text(name: str) -> None:
    """Parts of characters and spaces as they are; special tokens their texts."""
    reference = ZOO[name]()
    own, text = Tokenizer(reference.to_str().encode()), "the  tokens 漢字 🚀 é\n ÅÅ"
    added = [own.token_bytes(token) for token in own.encode(text, around=False).ids]
    assert b"".join(added).removeprefix(b" ") == text.encode()
    assert any(b" t" in each or each == b" " for each in added)
    for token, special in own.added_tokens(special=True).items():
        assert own.token_bytes(token) == special.encode()
    assert own.token_bytes(1 << 40) == b""


@pytest.mark.parametrize("name", ["bert", "t5", "words"])
def test_tokens_of_a_vocabulary_of_words_add_their_texts(name: str) -> None:
    reference = ZOO[name]()
    own = Tokenizer(reference.to_str().encode())
    for token in own.encode("the tokens", around=False).ids:
        assert own.token_bytes(token).decode().strip() == reference.decode([token], skip_special_tokens=False).strip()


def test_a_stream_gives_the_text_of_all_tokens(reference_and_tokenizer: tuple[Reference, Tokenizer]) -> None:
    reference, own = reference_and_tokenizer
    for text in TEXTS[:40]:
        ids = reference.encode(text).ids
        stream = TextStream(own)
        pieces = [*map(stream.push, ids), stream.finish()]
        assert "".join(pieces) == reference.decode(ids)
        assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in reference.decode(ids))


@given(draws=st.lists(st.integers(0, 1500), max_size=12))
def test_any_tokens_are_the_same_text(reference_and_tokenizer: tuple[Reference, Tokenizer], draws: list[int]) -> None:
    reference, own = reference_and_tokenizer
    assert own.decode(draws, False) == reference.decode(draws, skip_special_tokens=False)


def test_ids_and_texts_of_tokens(reference_and_tokenizer: tuple[Reference, Tokenizer]) -> None:
    reference, own = reference_and_tokenizer
    for token, number in reference.get_vocab().items():
        assert own.token_to_id(token) == number
        assert own.id_to_token(number) == reference.id_to_token(number)
    assert own.token_to_id("no token of it") is None
    assert own.id_to_token(1 << 40) == own.id_to_token(-1) == ""
    assert own.info.vocab_size == max(reference.get_vocab().values()) + 1
    added = reference.get_added_tokens_decoder()
    assert list(own.added_tokens()) == sorted(added)
    assert list(own.added_tokens(special=True)) == sorted(each for each, token in added.items() if token.special)


# What people wrote


def of_format_and_words(special: Sequence[str], words: Sequence[str], seed: int) -> tuple[str, Parts, Parts]:
    """Return a text of special tokens and words in turn, and where each of the two is."""
    draw = random.Random(seed)
    text, parts = "", list[tuple[int, int]]()
    for piece in (each for _ in range(3) for each in (draw.choice(special), draw.choice(words))):
        parts.append((len(text), len(text) + len(piece)))
        text += piece
    return text, parts[::2], parts[1::2]


def special_ids(own: Tokenizer) -> dict[int, str]:
    """Return the special tokens, but for the one that stands for what the vocabulary has no token for."""
    return {each: text for each, text in own.added_tokens(special=True).items() if text not in ("<unk>", "[UNK]")}


def test_special_tokens_that_people_spell_stay_text(reference_and_tokenizer: tuple[Reference, Tokenizer]) -> None:
    """Those of the format are there, each where it was written, and no other one."""
    _, own = reference_and_tokenizer
    special = special_ids(own)
    names = sorted(special.values()) or ["the"]
    words = [
        *names,
        *(name[1:] for name in names),
        *(name[:-1] for name in names),
        *(f"é {a}{b}" for a in names for b in names),
    ]
    for seed in range(300):
        text, written, plain = of_format_and_words(names, words, seed)
        found = own.encode(text, around=False, plain=plain)
        pairs = [
            (special[each], tuple(span)) for each, span in zip(found.ids, found.spans.tolist(), strict=True) if each in special
        ]
        assert pairs == [(text[slice(*span)], span) for span in written if special]


def test_words_without_special_tokens_are_the_same_if_they_are_named(
    reference_and_tokenizer: tuple[Reference, Tokenizer],
) -> None:
    reference, own = reference_and_tokenizer
    special = sorted(special_ids(own).values(), key=len, reverse=True) or ["the"]
    spelled = re.compile("|".join(map(re.escape, special)))
    words = [text for text in odd_texts(200, seed=4) if text]
    for seed in range(150):
        text, written, plain = of_format_and_words(special, words, seed)
        assert [match.span() for match in spelled.finditer(text)] == written or special == ["the"]
        assert own.encode(text, plain=plain).ids == reference.encode(text).ids


def test_a_text_that_is_all_words_is_read_as_the_library_does_without_special_tokens() -> None:
    reference = ZOO["qwen"]()
    own = Tokenizer(reference.to_str().encode())
    reference.encode_special_tokens = True
    text = "<|im_start|>system</s>"
    assert own.encode(text, plain=[(0, len(text))]).ids == reference.encode(text).ids


def test_a_token_that_is_half_format_is_the_shorter_one_before_the_words() -> None:
    reference = ZOO["qwen"]()
    reference.add_special_tokens(["</s>more", "a<|im_end|>"])
    own = Tokenizer(reference.to_str().encode())
    assert own.encode("</s>more", plain=[(4, 8)]).ids == [1, *reference.encode("more").ids]
    assert own.encode("a<|im_end|>", plain=[(0, 1)]).ids == [*reference.encode("a").ids, 3]


def test_words_of_bytes_that_are_no_text_stay_words() -> None:
    """Where a part lies is moved with what is put in place of such bytes, and a part that is not in the text is refused."""
    own = Tokenizer(ZOO["qwen"]().to_str().encode())

    def ids(text: bytes, *parts: tuple[int, int], reading: int = 0) -> list[int] | int:
        found, spans, count = (ctypes.c_int64 * 64)(), (SpanStruct * len(parts))(*parts), ctypes.c_size_t()
        status = load().hybridge_tokenizer_encode(
            own.handle, text, len(text), reading, spans, len(parts), found, None, 64, ctypes.byref(count)
        )
        return status or found[: count.value]

    broken = b"\xff\xe2\x82<|im_end|>\xf0\x9f</s>"
    assert 1 in ids(broken, (0, 15))
    assert 3 in ids(broken, (15, 19))
    for part in ((3, 4), (12, 14), (1, 13), (2, 4)):
        assert 3 not in ids(broken, part)
    assert not {1, 3} & set(ids(broken, (15, 19), (3, 13)))
    assert not {1, 3} & set(ids(broken, reading=Reading.PLAIN))
    for part in ((0, 20), (2, 1), (20, 20)):
        assert ids(broken, part) == Status.INVALID_ARGUMENT


@pytest.mark.parametrize("normal_form", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"])
def test_every_character_is_normalized_in_the_same_way(normal_form: str) -> None:
    """After a letter and in front of two marks, by the bytes that come of it.

    Each 37th character of the planes that have some, and a hundredth of those of the others; other ones each time.
    """
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    content = {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": True}}
    content["normalizer"] = {"type": normal_form}
    reference = Reference.from_str(json.dumps(content))
    own = Tokenizer(json.dumps(content).encode())
    begin = random.randrange(37) + 1
    for code in (*range(begin, 0x34000, 37), *range(0xE0000 + begin, 0xE0200, 37), *range(0x34000 + begin, 0x110000, 3701)):
        if not 0xD800 <= code < 0xE000:
            text = f"a{chr(code)}\u0323\u0301"
            assert own.encode(text).ids == reference.encode(text).ids, f"U+{code:04X}"


def test_a_long_text_without_words_takes_no_square_of_its_length() -> None:
    reference = ZOO["llama2"]()
    text = "ab" * 50_000
    assert Tokenizer(reference.to_str().encode()).encode(text).ids == reference.encode(text).ids


def test_threads_share_one() -> None:
    reference = ZOO["llama3"]()
    own = Tokenizer(reference.to_str().encode())
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: own.encode(text).ids, TEXTS * 4))
    assert found == [reference.encode(text).ids for text in TEXTS * 4]


def test_half_a_surrogate_pair_is_one_character_that_is_unknown() -> None:
    own = Tokenizer(ZOO["qwen"]().to_str().encode())
    found = own.encode("a\ud800b</s>", plain=[(3, 7)])
    assert found.ids == own.encode("a\ufffdb</s>", plain=[(3, 7)]).ids
    assert found.spans[-1].tolist()[1] == 7


# Files that are none


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(bpe(normalizers.NFC(), byte_level(split(QWEN)), decoders.ByteLevel()).to_str())
    return made


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a model of another kind": ({"model": {"type": "Neural"}}, "the model 'Neural' is not supported"),
    "no model": ({"model": None}, "model is not an object"),
    "a normalizer of another kind": ({"normalizer": {"type": "Rot13"}}, "the normalizer 'Rot13' is not supported"),
    "a pre-tokenizer of another kind": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "UnicodeScripts"}]}},
        "the pre-tokenizer 'UnicodeScripts' is not supported",
    ),
    "a decoder of another kind": ({"decoder": {"type": "CTC"}}, "the decoder 'CTC' is not supported"),
    "a post-processor of another kind": ({"post_processor": {"type": "X"}}, "the post-processor 'X' is not supported"),
    "another version": ({"version": "2.0"}, "its version is not 1.0"),
    "an expression that never ends": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": False}},
        "regular expression '\\(a' is damaged: missing closing parenthesis",
    ),
    "an expression that is read in two ways": (
        {"normalizer": {"type": "Replace", "pattern": {"Regex": r"a{2}+"}, "content": ""}},
        "has a '\\+' after braces",
    ),
    "a rule that is no base64": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}},
        "precompiled_charsmap is not base64",
    ),
    "rules that are cut off": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAEAAA=="}},
        "precompiled_charsmap is damaged",
    ),
    "an id that is a text": (
        {"model": {"type": "BPE", "vocab": {"a": "0"}, "merges": []}},
        "vocab{} is not an integer from 0 to 16777215",
    ),
    "an id that would take all memory": (
        {"model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}},
        "is not an integer from 0 to 16777215",
    ),
    "a merge of nothing": (
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
        "a merge is of tokens that the vocabulary does not have",
    ),
    "a merge of three": ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b c"]}}, "is not two tokens"),
    "an unknown token that is none": (
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 5}},
        "unk_id is outside the vocabulary",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_is_refused_by_the_name_of_what_is_wrong(content: dict[str, Any], wrong: str) -> None:
    changes, message = WRONG[wrong]
    with pytest.raises(ArtifactError, match=message):
        Tokenizer(json.dumps(content | changes).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model":' * 5000, b"[" * 2_000_000])
def test_what_is_no_tokenizer_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError, match="cannot be read as a tokenizer"):
        Tokenizer(data)


def test_what_nothing_was_made_for_is_refused_in_a_text() -> None:
    lacking = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}}
    with pytest.raises(UsageError, match=r"does not have its unknown token \[UNK\]"):
        Tokenizer(json.dumps(lacking).encode()).encode("b")


def test_an_expression_that_never_comes_to_an_end_is_stopped(content: dict[str, Any]) -> None:
    slow = {"type": "Split", "pattern": {"Regex": "(a|aa)+c"}, "behavior": "Isolated", "invert": False}
    with pytest.raises(UsageError, match="takes too long"):
        Tokenizer(json.dumps(content | {"pre_tokenizer": slow}).encode()).encode("a" * 200 + "b c")


@given(data=st.data())
def test_a_file_with_a_wrong_value_anywhere_is_read_or_refused(content: dict[str, Any], data: st.DataObject) -> None:
    """Whatever a value is, opening it and reading a text end in a result or an error of ours."""
    model = {**content["model"], "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    changed: Any = copy.deepcopy({**content, "model": model})
    place: Any = changed
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(st.sampled_from([None, True, -1, 2**70, 0.5, "", "a", "\x00", [], {}, [[]], {"type": "Sequence"}]))
    try:
        own = Tokenizer(json.dumps(changed).encode())
        own.decode(own.encode("ab <|im_start|> c").ids)
    except (ArtifactError, UsageError):
        pass


def test_the_file_of_a_folder_is_read(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert Tokenizer.from_file(path).encode("state").ids == Reference.from_file(str(path)).encode("state").ids


# Scripts


SCRIPTS = ("Han", "Hiragana", "Katakana", "Hangul", "Latin", "Cyrillic", "Greek", "Arabic", "Thai", "Devanagari", "Common")


def check_a_property(expression: str, codes: Sequence[int]) -> None:
    """Compare what is left of characters, without those that an expression matches."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    content = {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": True}}
    content["normalizer"] = {"type": "Replace", "pattern": {"Regex": expression}, "content": ""}
    reference, own = Reference.from_str(json.dumps(content)), Tokenizer(json.dumps(content).encode())
    for begin in range(0, len(codes), 4096):
        text = "".join(map(chr, codes[begin : begin + 4096]))
        assert bytes(own.encode(text).ids).decode() == bytes(reference.encode(text).ids).decode()


@pytest.mark.parametrize("script", SCRIPTS)
def test_characters_of_a_script_are_those_of_the_library(script: str) -> None:
    """PCRE2 takes '·' and '、' for Han, because Chinese texts have them."""
    codes = [*range(0x20, 0x3200), *range(0x3200 + random.randrange(19), 0xD800, 19), *range(0xF900, 0x30000, 61)]
    check_a_property(rf"\p{{{script}}}", codes)
    check_a_property(rf"[^\p{{{script}}}a]", codes[::7])
    check_a_property(rf"\P{{{script}}}", codes[::7])
    check_a_property(rf"\p{{^{script}}}", codes[::7])


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*SCRIPTS, "L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "Nd", "P", "S", "Z"])
def test_every_character_has_the_librarys_properties(name: str) -> None:
    check_a_property(rf"\p{{{name}}}", [code for code in range(0x110000) if not 0xD800 <= code < 0xE000])


# Wrong arguments


@pytest.mark.parametrize("part", [(-1, 2), (0, 4), (2, 1), (0.5, 1), (1,), ("a", "b")])
def test_a_part_that_is_not_in_the_text_is_refused(content: dict[str, Any], part: Any) -> None:
    with pytest.raises(UsageError, match="part"):
        Tokenizer(json.dumps(content).encode()).encode("é漢a", plain=[part])


def test_what_is_no_token_id_is_refused(content: dict[str, Any]) -> None:
    own = Tokenizer(json.dumps(content).encode())
    for wrong in (1.5, "1", None, [1], True):
        calls: list[Any] = [lambda wrong=wrong: own.decode([wrong]), own.id_to_token, TextStream(own).push]
        for call in calls:
            with pytest.raises(TokenError, match="whole numbers"):
                call() if call is calls[0] else call(wrong)
    assert own.decode([2**64, -1, 2**32, 1]) == own.decode([1])
    assert own.id_to_token(2**64 + 1) == TextStream(own).push(2**64 + 300) == ""
