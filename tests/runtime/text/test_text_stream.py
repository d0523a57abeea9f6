import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tokenizer_zoo import ZOO
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models

from hybridge.export.cli.embedded import EMBEDDED
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.answers import TokenDecoder

BYTES = Tokenizer.from_file(EMBEDDED / "tokenizer.json")


def words() -> Tokenizer:
    """A tokenizer that puts a space before every token but the first, as sub-word tokenizers do."""
    made = Reference(models.WordLevel({letter * (i + 1): i for i, letter in enumerate("abcde")}, unk_token="a"))
    made.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return Tokenizer(made.to_str().encode())


WORDS = words()


def streamed(tokenizer: TokenDecoder, ids: list[int], stop: list[str]) -> tuple[str, list[str], int]:
    """The whole text, its pieces, and how many tokens were taken in."""
    stream = tokenizer.stream(stop)
    pieces = []
    for count, token in enumerate(ids, start=1):
        pieces.append(stream.push(token))
        if stream.stopped:
            return "".join(pieces), pieces, count
    pieces.append(stream.finish())
    return "".join(pieces), pieces, len(ids)


texts = st.text(st.sampled_from("ab\nä漢🙂 "), max_size=30)
stops = st.lists(st.text(st.sampled_from("ab\nä"), min_size=1, max_size=4), max_size=3)


def cut(chunks: list[bytes]) -> tuple[Tokenizer, list[int]]:
    """A byte-level tokenizer that has these chunks as its tokens, and the chunks as tokens of it."""
    names = ["".join(BYTES.id_to_token(byte) for byte in chunk) for chunk in chunks]
    vocabulary = {name: i for i, name in enumerate(dict.fromkeys(names))}
    made = Reference(models.WordLevel(vocabulary, unk_token=names[0] if names else ""))
    made.decoder = decoders.ByteLevel()
    return Tokenizer(made.to_str().encode()), [vocabulary[name] for name in names]


def fallback() -> Tokenizer:
    """Words with the space before them, and bytes for all else, as Llama's tokenizer has them."""
    words = ["▁", "▁a", "a", "▁ä", "b"]
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), *words]
    made = Reference(models.BPE({name: i for i, name in enumerate(names)}, merges=[], byte_fallback=True))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(made.to_str().encode())


FALLBACK = fallback()
GEMMA = Tokenizer(ZOO["gemma"]().to_str().encode())


def expected(text: str, stop: list[str]) -> str:
    """Up to the stop string that is complete first."""
    ends = [(text.find(each) + len(each), text.find(each)) for each in stop if each in text]
    return text[: min(ends)[1]] if ends else text


@pytest.mark.slow
@given(data=st.data(), text=texts, stop=stops)
def test_a_stop_string_is_found_across_any_tokens(data: st.DataObject, text: str, stop: list[str]) -> None:
    raw, chunks = text.encode(), []
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        chunks.append(raw[:size])
        raw = raw[size:]
    tokenizer, ids = cut(chunks)
    assert streamed(tokenizer, ids, stop)[0] == expected(text, stop)


some_bytes = st.binary(min_size=1, max_size=5) | st.sampled_from([b"\xff", b"\xe4", b"\xbd", b"\xa0", b"\xf0\x9f", b"a"])


@pytest.mark.slow
@settings(max_examples=5 * settings().max_examples)
@given(chunks=st.lists(some_bytes, min_size=1, max_size=30))
def test_any_bytes_in_any_tokens_come_out_as_they_are_decoded_at_once(chunks: list[bytes]) -> None:
    tokenizer, ids = cut(chunks)
    assert streamed(tokenizer, ids, [])[0] == tokenizer.decode(ids)


@pytest.mark.slow
@given(words=st.lists(st.sampled_from(["▁", "▁a", "a", "▁ä", "b", "漢", "🙂", "\n", " "]), max_size=20), stop=stops)
def test_a_tokenizer_that_falls_back_to_bytes(words: list[str], stop: list[str]) -> None:
    known = [[FALLBACK.token_to_id(word)] if FALLBACK.token_to_id(word) is not None else list(word.encode()) for word in words]
    ids = [each for word in known for each in word]
    assert streamed(FALLBACK, ids, stop)[0] == expected(FALLBACK.decode(ids), stop)


@given(left_out=st.integers(0, 8), words=st.lists(st.sampled_from(["a", "漢", "🙂", "𝔘𝔫", " ▁a", "\ufffd"]), max_size=6))
def test_tokens_that_are_left_out_tear_no_character(left_out: int, words: list[str]) -> None:
    """Such as special tokens in front of a character that is bytes, and ids that nothing has."""
    special = [GEMMA.token_to_id("</s>"), 10**6] * left_out
    ids = [token for word in words for token in (*special, *GEMMA.encode(word, around=False).ids)]
    text, pieces, _ = streamed(GEMMA, ids, [])
    assert text == GEMMA.decode(ids) == "".join(word.replace("▁", " ") for word in words)
    assert "\ufffd" in words or not any("\ufffd" in piece for piece in pieces)


@pytest.mark.slow
@given(ids=st.lists(st.integers(0, 4), max_size=30))
def test_a_tokenizer_that_looks_at_its_neighbours(ids: list[int]) -> None:
    assert WORDS.decode(ids) == " ".join("abcde"[i] * (i + 1) for i in ids)
    assert streamed(WORDS, ids, [])[0] == WORDS.decode(ids)


def test_nothing_is_taken_in_behind_a_stop_string() -> None:
    text, _, taken = streamed(BYTES, list(b"one END two"), ["END"])
    assert (text, taken) == ("one ", 7)


def test_only_a_few_tokens_are_held_back() -> None:
    """So only a few are decoded at a time, also of bytes that are no text."""
    ids = [*("ä漢".encode() * 300), *[0xFF] * 300]
    stream = BYTES.stream()
    text = ""
    for count, token in enumerate(ids, start=1):
        text += stream.push(token)
        assert BYTES.decode(ids[: max(0, count - 8)]).removesuffix("\ufffd") in text
    assert text + stream.finish() == BYTES.decode(ids)
