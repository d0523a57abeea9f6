"""Encode texts by ExecuTorch's own tokenizer, that of stock runners, in a process of its own.

Its C++ repeats a match of no characters for ever, so that a forged tokenizer.json takes all time and memory.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MEMORY, SECONDS = 4 << 30, 120
LOGGED = re.compile(r"^[EI] tokenizers:\S+ (.*)", re.MULTILINE)
"""A line that the tokenizer logs; the last one before a failure says why it cannot read a file."""


class StockTokenizerError(Exception):
    """ExecuTorch's tokenizer cannot load a file, or is not installed; the text is a reason in its words."""


def encode(path: Path, texts: Sequence[str]) -> list[list[int] | None]:
    """Return the tokens of each text, without those around it; None for a text that the tokenizer fails for.

    Raises StockTokenizerError.
    """
    paths = json.dumps([each for each in sys.path if each])
    try:
        done = subprocess.run(  # noqa: S603  # this interpreter, and this file
            [sys.executable, "-I", __file__, paths, str(path), str(SECONDS)], input=json.dumps(texts), capture_output=True,
            encoding="utf-8", errors="replace", timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise StockTokenizerError(f"it takes longer than {SECONDS} seconds") from None
    if done.returncode != 0:
        logged = LOGGED.findall(done.stderr)
        raise StockTokenizerError(logged[-1][:300] if logged else "its process ends")
    answer: list[list[int] | None] = json.loads(done.stdout)
    return answer


def main() -> None:
    """Load a file and encode the texts from stdin."""
    sys.path[:] = json.loads(sys.argv[1])
    import resource  # which Windows lacks

    for kind, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, int(sys.argv[3]))):
        try:
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
        except (ValueError, OSError):  # the system's limit is lower, or it has none of this kind
            continue
    from pytorch_tokenizers.pytorch_tokenizers_cpp import HFTokenizer

    tokenizer = HFTokenizer()
    tokenizer.load(sys.argv[2])
    json.dump([_encode(tokenizer, text) for text in json.load(sys.stdin)], sys.stdout)


def _encode(tokenizer: object, text: str) -> list[int] | None:
    try:
        return list(tokenizer.encode(text, 0, 0))  # type: ignore[attr-defined]
    except RuntimeError:
        return None


if __name__ == "__main__":
    main()
