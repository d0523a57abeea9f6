"""A drafter of one's own, which completes words that the text has already: python own_drafter.py OUT

A drafter proposes what may come next. The model verifies it, so a bad drafter costs time and never changes the text.
"""

from __future__ import annotations

import re
import sys

import hybridge
from hybridge.runtime import Context, GenerationStats, Proposal
from hybridge.runtime.binding.tokenizer import Tokenizer

PROMPT = "def save_document(document, folder):\n    document_name = document.name\n"


class WordCompleter:
    """Proposes the rest of the longest known word that begins like the last one of the text."""

    needs_hidden = False  # it looks at the text alone, not at the model's hidden states
    is_cheap = True  # it takes next to no time, so it is asked in every round

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose at most ``limit`` tokens that may follow the text."""
        words = re.findall(r"\w+", self.tokenizer.decode(context.tokens))
        if not words:
            return Proposal([])
        known = [word for word in words[:-1] if word.startswith(words[-1]) and word != words[-1]]
        rest = max(known, key=len)[len(words[-1]) :] if known else ""
        return Proposal(self.tokenizer.encode(rest, around=False).ids[:limit])


def main(out: str) -> bool:
    """Generate with and without the drafter; returns whether the texts are the same."""
    session = hybridge.Session.load(out)
    tokenizer = Tokenizer.from_file(f"{out}/tokenizer.json")
    prompt = tokenizer.encode(PROMPT).ids

    plain = list(session.generate(prompt, max_new_tokens=150))
    session.reset()
    stats = GenerationStats()
    drafted = list(session.generate(prompt, max_new_tokens=150, drafter=WordCompleter(tokenizer), stats=stats))

    print(tokenizer.decode(drafted))
    print(f"{stats.accepted} of {stats.proposed} draft tokens accepted, {stats.rollbacks} rollbacks")
    print("the text is that of plain decoding" if drafted == plain else "the texts differ")
    return drafted == plain


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1]) else 1)
