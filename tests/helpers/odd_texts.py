"""Texts on which tokenizers differ, from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

PIECES = (
    "the tokens", "Hybrid", "layers of linear attention", "x_y = f(3.5);",
    "def f(a, b):\n    return a**b\n", "I'M", "they'll", "don't", "WE'VE", "’s", "camelCaseWORDs",
    "ÉCOLE École", "漢字とかな", "한국어", "中文，混排。", "ไทย", "हिन्दी", "شكرا", "עברית", "e\u0301",
    "n\u0303o", "\u0301", "Å", "ﬁ", "ǅ", "ß", "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\U0001f3f3\ufe0f\u200d\U0001f308", "🚀🚀", "\u200b", "\xa0", "\u3000", "\u2581", "\r\n", "\n",
    "\n\n\n", "\t", " ", "  ", "     ", " " * 40, "\n  \n", "1", "12", "12345678", "3.14",
    "1,000,000", "½", "४२", "²", "<0x0A>", "<", "|>", "$+`^~", "!!!", "...", "—", "“q”", "\x00",
    "\x7f", "\ufffd", "𝔘𝔫𝔦", "a" * 30,
)  # fmt: skip


def odd_texts(count: int, special: Sequence[str] = (), seed: int = 0) -> list[str]:
    """Return texts of a few pieces each, the text of special tokens among them; the first is empty."""
    draw = random.Random(seed)
    pieces = (*PIECES, *special, *special)
    return ["", *("".join(draw.choices(pieces, k=draw.randint(1, 8))) for _ in range(count - 1))]
