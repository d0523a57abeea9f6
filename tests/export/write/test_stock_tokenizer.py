"""The tokenizer.json for stock runners: ExecuTorch's tokenizer has our tokens by it, or the manifest says why not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tokenizer_zoo import SPECIAL, ZOO, byte_level, odd_texts
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from hybridge.export.pinned import stock_tokenizer as stock
from hybridge.export.progress import ExportProgress
from hybridge.export.source.tokenizer import TokenizerFiles
from hybridge.export.write import stock_tokenizer
from hybridge.export.write.stock_tokenizer import adapt_to_stock_runners, compare, texts_to_compare
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.manifest import StockTokenizerEntry
from hybridge.runtime.binding.tokenizer import Tokenizer as CoreTokenizer

SAME = ("gpt2", "gpt2 with a blank in front", "qwen", "llama3", "gpt-4o", "smollm", "llama2")
"""Kinds of ``ZOO`` that ExecuTorch's tokenizer reads; Gemma's it reads but for a text that is the name of a byte, "<0x0A>"."""


class Warned(ExportProgress):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def adapted(folder: Path, tokenizer: Tokenizer) -> tuple[StockTokenizerEntry, list[str]]:
    """Return what an export's manifest has of a tokenizer in ``folder``, and its warnings."""
    TokenizerFiles(folder=folder, tokenizer=tokenizer).write(folder)
    progress = Warned()
    entry = adapt_to_stock_runners(folder, progress)
    assert entry is not None
    return entry, progress.warnings


def check_kind(folder: Path, kind: str, texts: Iterable[str]) -> None:
    """Check that the manifest tells the truth of a kind: the same tokens for all texts, or a reason and the file as it was."""
    tokenizer = ZOO[kind]()
    entry, warnings = adapted(folder, tokenizer)
    path = folder / "tokenizer.json"
    if entry.difference:
        assert kind not in SAME, entry.difference
        assert entry.equal < entry.texts or entry.texts == 0
        assert len(warnings) == 1
        assert entry.difference in warnings[0]
        assert not entry.without_nfc
        assert path.read_text() == tokenizer.to_str()
        return
    assert kind in SAME
    assert entry.equal == entry.texts > 0
    assert warnings == []
    texts, own = list(texts), CoreTokenizer.from_file(path)
    for text, found in zip(texts, stock.encode(path, texts), strict=True):
        assert found == own.encode(text, around=False).ids, repr(text)


@pytest.fixture
def tenth_of_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an export compare a tenth of its texts."""

    def some(tokenizer: CoreTokenizer) -> Iterator[str]:
        return islice(texts_to_compare(tokenizer), 0, None, 10)

    monkeypatch.setattr(stock_tokenizer, "texts_to_compare", some)


@pytest.mark.usefixtures("tenth_of_the_texts")
@pytest.mark.parametrize("kind", ZOO)
def test_a_kind_has_our_tokens_in_stock_runners_or_a_reason(tmp_path: Path, kind: str) -> None:
    """DeepSeek's had none of "a", with no error; "Müller" was "Muller" where a file had NFC."""
    check_kind(tmp_path, kind, ["Müller", "한국어", *odd_texts(300, SPECIAL), *map(chr, range(0xC0, 0xD800, 211))])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ZOO)
def test_every_character_has_our_tokens_in_stock_runners(tmp_path: Path, kind: str) -> None:
    characters = (chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000)
    check_kind(tmp_path, kind, [*odd_texts(10_000, SPECIAL), *characters])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda made: made.add_tokens([AddedToken("state", single_word=True, normalized=False)]), "state"),
        (lambda made: made.add_tokens([AddedToken("<l>", lstrip=True, normalized=False)]), "<l>"),
        (lambda made: setattr(made, "normalizer", normalizers.NFKC()), "Unsupported Normalizer type: NFKC"),
        (lambda made: setattr(made, "pre_tokenizer", byte_level(pre_tokenizers.Split(Regex(" "), "removed"))), "begins with"),
    ],
)
def test_a_small_difference_is_found_and_named(tmp_path: Path, change: Any, reason: str) -> None:
    tokenizer = ZOO["smollm"]()
    change(tokenizer)
    entry, _ = adapted(tmp_path, tokenizer)
    assert reason in entry.difference


def test_a_token_that_no_merges_make_is_a_difference(tmp_path: Path) -> None:
    """ExecuTorch's tokenizer takes a whole word that is a token, as if ``ignore_merges`` were set."""
    content = json.loads(ZOO["gpt2"]().to_str())
    for word in ("zebras", *(f"zebras{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")):
        content["model"]["vocab"][word] = len(content["model"]["vocab"])
    entry, _ = adapted(tmp_path, Tokenizer.from_str(json.dumps(content)))
    assert "zebras" in entry.difference


def test_a_file_that_takes_all_memory_there_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that matches no characters is matched at the same place for ever."""
    monkeypatch.setattr(stock, "SECONDS", 3)
    content = json.loads(ZOO["smollm"]().to_str())
    content["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "q*"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(stock.StockTokenizerError, match=r"process ends|longer than 3 seconds"):
        stock.encode(tmp_path / "tokenizer.json", ["a b"])


def test_a_manifest_says_what_stock_runners_read(artifact: Path, kernels_artifact: Path) -> None:
    """The tokenizer of the tests' model has nothing but ASCII and an unknown token, which stock runners leave out."""
    entry = open_artifact(artifact).manifest.stock_tokenizer
    assert entry == compare((artifact / "tokenizer.json").read_text())
    assert 0 < entry.equal < entry.texts
    assert entry.difference
    assert open_artifact(kernels_artifact).manifest.stock_tokenizer is None
