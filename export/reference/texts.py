"""Compare the tokens of an artifact's tokenizer with its checkpoint's, on texts that tokenizers differ on."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from hybridge.export.checkpoint.loading import Checkpoint
from hybridge.export.checks.validation import TextCheck
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.artifacts.tokenizer import tokenizer_of

ODD_TEXTS = (
    "",
    "a",
    " a  text\twith   spaces ",
    "\n\nThe quick brown fox,\r\n  12 of them: 'jumps' over x_y = f(3.5);\n",
    "I'M they'll WE'VE don't",
    "1234567890 3.14 1,000,000 ½ ४२",
    "漢字とかな 한국어 中文,混排",
    "e\u0301 n\u0303 Ünïcödé ﬁ Å",
    "👩\u200d👩\u200d👧 🚀🏳\ufe0f\u200d🌈",
    "شكرا עברית हिन्दी ไทย",
    "def f(x):\n    return x**2  # <|not a token|>\n",
    "\u2581 \u00a0 \u3000 \u200b \ufffd \x00 \x7f",
)


def compare_texts(artifact: Artifact, checkpoint: Checkpoint) -> TextCheck:
    """Return how the artifact's tokens compare with the checkpoint's; no texts where one of them has no tokenizer."""
    wanted = checkpoint.tokenizer
    if artifact.tokenizer is None or wanted.tokenizer is None:
        return TextCheck()
    return compare_tokenizers(tokenizer_of(artifact), wanted.tokenizer, [*wanted.special.values()])


def compare_tokenizers(found: Tokenizer, wanted: Tokenizer, special: Sequence[str]) -> TextCheck:
    """Return how many texts, some with special tokens in them, become the same tokens, with what is added around them."""
    check = TextCheck()
    for text in (*ODD_TEXTS, *(f"a{token} b" for token in special)):
        got, want = found.encode(text).ids, wanted.encode(text).ids
        check.texts += 1
        check.equal += got == want
        if got != want and not check.difference:
            check.difference = f"{text!r} is {got}, but should be {want}"
    return check
