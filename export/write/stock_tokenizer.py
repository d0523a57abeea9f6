"""Write a tokenizer.json that ExecuTorch's tokenizer reads as the core does, or find out why it cannot.

That tokenizer, which stock runners use, has a part of the format alone, and drops what it does not match without an error.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from hybridge.export.pinned import stock_tokenizer
from hybridge.export.progress import ExportProgress
from hybridge.export.source.tokenizer import TOKENIZER, without_nfc
from hybridge.runtime.artifact.manifest import StockTokenizerEntry
from hybridge.runtime.binding.tokenizer import Tokenizer

PIECES = (
    *("a", "The quick brown fox", "I'M", "they'll", "WE'VE", "don’t", "camelCaseWORDs", "x_y = f(3.5);", "ÉCOLE Müller"),
    *("def f(a, b):\n    return a**b\n", "e\u0301", "\u0301", "ﬁ", "ß", "漢字とかな", "한국어", "中文，混排。", "ไทย"),
    *("हिन्दी", "شكرا", "עברית", "𝔘𝔫𝔦", "👩\u200d👩\u200d👧", "🚀🚀", "\u200b", "\xa0", "\u3000", "\u2581", "\ufffd", "\x00"),
    *(" ", "  ", "     ", "\t", "\n", "\n\n\n", "\r\n", "\n  \n", "1", "12", "12345678", "3.14", "1,000,000", "½", "४२"),
    *("<0x0A>", "<", "|>", "$+`^~", "!!!", "...", "—", "“q”", "\x7f"),
)  # fmt: skip
MIXED, MOST_ADDED, TOGETHER = 1000, 10_000, 48
"""Random texts; most added tokens that have a text of their own; characters, or tokens, of one text."""
SHOWN = 6
"""Tokens of a text that a difference shows."""


def adapt_to_stock_runners(folder: Path, steps: ExportProgress) -> StockTokenizerEntry | None:
    """Leave Unicode's form NFC out of ``folder``'s tokenizer.json if ExecuTorch's tokenizer then has the core's tokens.

    The file stays as it is, and a warning says why, if it reads other tokens or nothing. NFC is left out because that tokenizer
    takes letters apart for it and does not compose them again: it reads "Müller" as "Muller".

    Returns:
        The comparison, for the manifest; None without a tokenizer.json.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    own = path.read_text(encoding="utf-8")
    adapted = without_nfc(own)
    compared = compare(adapted)
    if compared.difference:
        steps.warn(
            f"Stock runners read other tokens than a Session of this artifact, or none: {compared.difference}. Run it with "
            "hybridge, or give a stock runner's program token ids."
        )
    elif adapted != own:
        path.write_text(adapted, encoding="utf-8")
        return compared.model_copy(update={"without_nfc": True})
    return compared


def compare(content: str) -> StockTokenizerEntry:
    """Compare the tokens that ExecuTorch's tokenizer and the core have for texts, by a tokenizer.json with this content."""
    tokenizer = Tokenizer(content.encode())
    texts = list(texts_to_compare(tokenizer))
    with TemporaryDirectory() as scratch:
        (Path(scratch) / TOKENIZER).write_text(content, encoding="utf-8")
        try:
            found = stock_tokenizer.encode(Path(scratch) / TOKENIZER, texts)
        except stock_tokenizer.StockTokenizerError as error:
            return StockTokenizerEntry(texts=0, equal=0, difference=f"ExecuTorch's tokenizer cannot be tried ({error})")
    wanted = [tokenizer.encode(text, around=False).ids for text in texts]
    different = [at for at, (got, want) in enumerate(zip(found, wanted, strict=True)) if got != want]
    difference = ""
    if different:
        at = min(different, key=lambda each: len(texts[each]))
        got, want = (str(ids[:SHOWN]) if ids is not None else "an error" for ids in (found[at], wanted[at]))
        difference = f"{texts[at][:TOGETHER]!r} begins with {got} there, but should with {want}"
    return StockTokenizerEntry(texts=len(texts), equal=len(texts) - len(different), difference=difference)


def texts_to_compare(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield texts with every character up to U+2FFFF, every token, every added token between others, and random mixtures."""
    yield from PIECES
    yield from (f"<0x{byte:02X}>" for byte in range(256))  # the names of byte tokens, which are no text of theirs
    for first in (*range(0, 0xD800, TOGETHER), *range(0xE000, 0x30000, TOGETHER)):
        yield "".join(map(chr, range(first, first + TOGETHER)))
    added = list(islice(tokenizer.added_tokens().values(), MOST_ADDED))
    for token in added:
        yield f"{token} a {token} b{token}c\n{token}"
    break_id = tokenizer.encode("\n", around=False).ids
    for first in range(0, tokenizer.info.vocab_size, TOGETHER):
        some = range(first, min(first + TOGETHER, tokenizer.info.vocab_size))
        yield tokenizer.decode([each for token in some for each in (token, *break_id)], skip_special_tokens=False)
    draw = random.Random(0)
    pieces = (*PIECES, *added[: len(PIECES)])
    for _ in range(MIXED):
        yield "".join(draw.choices(pieces, k=draw.randint(1, 8)))
