"""The core's tokenizer beside the tokenizers library: tokens, offsets, texts, streams; and files that are none."""

from __future__ import annotations

import copy
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd_texts import odd_texts
from tokenizer_zoo import QWEN, SPECIAL, ZOO, bpe, byte_level, in_characters, split
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, normalizers

from hybridge.cache.errors import ArtifactError, UsageError
from hybridge.runtime.core.tokenizer import TextStream, Tokenizer

ADDED = (*SPECIAL, "HYBRID", " state ", "<l>", " <r> ", "to", "é", "<lr>", "<|im", "my tok", "[MASK]", "<sp ecial>", "</s>x")
TEXTS = odd_texts(120, ADDED, seed=3)


@pytest.fixture(scope="module", params=ZOO)
def both(request: pytest.FixtureRequest) -> tuple[Reference, Tokenizer]:
    """Return a tokenizer of the library, and the core's of the same file."""
    reference = ZOO[request.param]()
    return reference, Tokenizer(reference.to_str().encode())


def check_same(both: tuple[Reference, Tokenizer], text: str) -> None:
    reference, own = both
    for special in (True, False):
        wanted, found = reference.encode(text, add_special_tokens=special), own.encode(text, special)
        assert found.ids == wanted.ids
        assert in_characters(text, found.spans) == wanted.offsets
    for skipped in (True, False):
        assert own.decode(wanted.ids, skipped) == reference.decode(wanted.ids, skip_special_tokens=skipped)


def test_odd_texts_are_the_same(both: tuple[Reference, Tokenizer]) -> None:
    for text in TEXTS:
        check_same(both, text)


@given(text=st.text(max_size=30))
def test_any_text_is_the_same(both: tuple[Reference, Tokenizer], text: str) -> None:
    check_same(both, text)


def test_a_stream_gives_the_text_of_all_tokens(both: tuple[Reference, Tokenizer]) -> None:
    reference, own = both
    for text in TEXTS[:40]:
        ids = reference.encode(text).ids
        stream = TextStream(own)
        pieces = [*map(stream.push, ids), stream.finish()]
        assert "".join(pieces) == reference.decode(ids)
        assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in reference.decode(ids))


@given(draws=st.lists(st.integers(0, 1500), max_size=12))
def test_any_tokens_are_the_same_text(both: tuple[Reference, Tokenizer], draws: list[int]) -> None:
    reference, own = both
    assert own.decode(draws, False) == reference.decode(draws, skip_special_tokens=False)


def test_ids_and_texts_of_tokens(both: tuple[Reference, Tokenizer]) -> None:
    reference, own = both
    for token, number in reference.get_vocab().items():
        assert own.token_to_id(token) == number
        assert own.id_to_token(number) == reference.id_to_token(number)
    assert own.token_to_id("no token of it") is None
    assert own.id_to_token(1 << 40) == own.id_to_token(-1) == ""
    assert own.info.vocab_size == max(reference.get_vocab().values()) + 1
    added = reference.get_added_tokens_decoder()
    assert list(own.added_tokens()) == sorted(added)
    assert list(own.added_tokens(special=True)) == sorted(each for each, token in added.items() if token.special)


def test_what_people_type_is_no_special_token() -> None:
    reference = ZOO["qwen"]()
    own = Tokenizer(reference.to_str().encode())
    reference.encode_special_tokens = True
    text = "<|im_start|>system</s>"
    assert own.encode(text, plain=True).ids == reference.encode(text).ids
    assert not set(own.encode(text, plain=True).ids) & set(own.added_tokens(special=True))


@pytest.mark.parametrize("normal_form", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"])
def test_every_character_is_normalized_in_the_same_way(normal_form: str) -> None:
    """Behind a letter and in front of two marks, by the bytes that come of it; each 37th character, others each time."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    content = {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": True}}
    content["normalizer"] = {"type": normal_form}
    reference = Reference.from_str(json.dumps(content))
    own = Tokenizer(json.dumps(content).encode())
    for code in range(random.randrange(37) + 1, 0x110000, 37):
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
    assert own.encode("a\ud800b").ids == own.encode("a\ufffd\ufffd\ufffdb").ids


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
        "has a '\\+' behind braces",
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
