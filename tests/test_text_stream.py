from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tokenizers import Tokenizer

from hybridge.cache.errors import UsageError
from hybridge.export.cli.embedded import EMBEDDED
from hybridge.runtime.text_stream import TextStream

BYTES = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))


class Words:
    """Puts a space before every token but the first, as sub-word tokenizers do."""

    def decode(self, ids: list[int]) -> str:
        return " ".join("abcde"[i] * (i + 1) for i in ids)


def streamed(tokenizer: object, ids: list[int], stop: list[str]) -> tuple[str, list[str], int]:
    """The whole text, its pieces, and how many tokens were taken in."""
    stream = TextStream(tokenizer, stop)  # type: ignore[arg-type]
    pieces = []
    for count, token in enumerate(ids, start=1):
        stopped = stream.push(token)
        pieces.append(stream.take())
        if stopped:
            return "".join(pieces), pieces, count
    pieces.append(stream.finish())
    return "".join(pieces), pieces, len(ids)


def up_to(text: str, stops: list[str]) -> str:
    met = [at for at in map(text.find, stops) if at >= 0]
    return text[: min(met)] if met else text


texts = st.text(st.sampled_from("ab\nä漢🙂 "), max_size=30)
stops = st.lists(st.text(st.sampled_from("ab\nä"), min_size=1, max_size=4), max_size=3)


@given(text=texts, stop=stops)
def test_pieces_make_the_text_up_to_a_stop_string(text: str, stop: list[str]) -> None:
    # Whichever stop string is complete first ends the text, so the earliest end decides.
    ends = [(text.find(each) + len(each), text.find(each)) for each in stop if each in text]
    want = text[: min(at for end, at in ends if end <= min(ends)[0])] if ends else text
    got, pieces, _ = streamed(BYTES, list(text.encode()), stop)
    assert got == want
    assert not any("\ufffd" in piece for piece in pieces), "no character is torn"


@given(raw=st.binary(max_size=40))
def test_bytes_that_are_no_text_come_out_in_the_end(raw: bytes) -> None:
    got, _, _ = streamed(BYTES, list(raw), [])
    assert got.replace("\ufffd", "") == BYTES.decode(list(raw)).replace("\ufffd", "")


@given(ids=st.lists(st.integers(0, 4), max_size=30))
def test_a_tokenizer_that_looks_at_its_neighbours(ids: list[int]) -> None:
    assert streamed(Words(), ids, [])[0] == Words().decode(ids)


def test_nothing_is_taken_in_behind_a_stop_string() -> None:
    text, _, taken = streamed(BYTES, list(b"one END two"), ["END"])
    assert (text, taken) == ("one ", 7)


def test_a_stop_string_that_never_comes_changes_nothing() -> None:
    assert streamed(BYTES, list(b"one EN EN"), ["END"])[0] == "one EN EN"


def test_only_a_few_tokens_are_decoded_at_a_time(tmp_path: Path) -> None:
    longest = 0

    class Counting:
        def decode(self, ids: list[int]) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return BYTES.decode(ids)

    streamed(Counting(), list("ä漢".encode() * 300), [])
    assert longest < 10


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        TextStream(BYTES, [""])
