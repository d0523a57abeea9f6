"""Compare each precision's logits with llama.cpp's of the same file, on English prose."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from campaigns.campaign import whole
from hybridge.export.check.evaluate import Comparison
from hybridge.export.texts import logits_of
from hybridge.runtime.binding.session import Session

PEER = Path(__file__).with_name("llama_peer.py")
REQUANTIZED = ("Q4_0", "Q4_K_M", "Q8_0")
HEAD = (
    "| | bytes | of the file | KL from llama.cpp on the file, nats | same best token | perplexity |\n|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Reference:
    """A GGUF file, the tokens of a text, and llama.cpp's logits after each of them."""

    gguf: Path
    tokens: list[int]
    logits: Tensor
    python: Path

    @classmethod
    def of(cls, gguf: Path, tokens: list[int], python: Path) -> Reference:
        """Ask llama.cpp."""
        return cls(gguf, tokens, llama_logits(python, gguf, tokens), python)

    def row(self, name: str, size: int, logits: Tensor) -> str:
        """Return a row of the table for a model of ``size`` bytes with these logits."""
        comparison = Comparison()
        comparison.add(self.tokens, self.logits, logits)
        whole = comparison.report().whole
        share = size / self.gguf.stat().st_size
        return (
            f"| {name} | {size / 1e6:.1f} MB | {share:.2f} | {whole.kl:.4f} | {100 * whole.top1_agreement:.1f} % "
            f"| {whole.perplexity:.2f} |"
        )


def rows(reference: Reference, artifacts: Mapping[str, Path], work: Path) -> Iterator[str]:
    """Yield a row for the file itself, one for each artifact, and those of the file rounded again by llama.cpp."""
    yield reference.row("llama.cpp", reference.gguf.stat().st_size, reference.logits)
    for name, folder in artifacts.items():
        yield reference.row(name, (folder / "model.pte").stat().st_size, logits_of(Session.load(folder), reference.tokens))
    for kind in REQUANTIZED:
        other = work / f"{reference.gguf.stem}-{kind}.gguf"
        if not other.exists():
            with whole(other) as unfinished:
                peer(reference.python, "requantize", reference.gguf, kind, unfinished)
        name = f"llama.cpp, rounded again to {kind}"
        yield reference.row(name, other.stat().st_size, llama_logits(reference.python, other, reference.tokens))


def llama_logits(python: Path, gguf: Path, tokens: list[int]) -> Tensor:
    """Return llama.cpp's logits [T, V] after each token, from an empty state."""
    asked, answered = gguf.with_suffix(".tokens.npy"), gguf.with_suffix(".logits.npy")
    np.save(asked, np.array(tokens))
    try:
        peer(python, "logits", gguf, asked, answered)
        return torch.from_numpy(np.load(answered))
    finally:
        for file in (asked, answered):
            file.unlink(missing_ok=True)


def peer(python: Path, *words: object) -> None:
    """Run ``llama_peer.py``. Raises CalledProcessError with what it said."""
    command = [str(word) for word in (python, PEER, *words)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
