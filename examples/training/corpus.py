"""The training text that ships with every Python, as byte ids."""

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

END, PAD, LENGTH, BATCH = 256, 259, 512, 8
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "__pycache__", "pydoc_data"}


def documents() -> dict[str, bytes]:
    """Name -> text: the standard library's modules, and the language reference as plain English topics."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(root.rglob("*.py")) if not SKIPPED & set(path.relative_to(root).parts)]
    modules = {str(path.relative_to(root)): path.read_bytes() for path in paths}
    return modules | {f"topics/{name}": text.encode() for name, text in sorted(topics.items())}


def is_heldout(name: str) -> bool:
    """Whole documents are held out, by a hash of the name, so that the split is the same on every machine."""
    return hashlib.sha256(name.encode()).digest()[0] < 8


def split() -> tuple[list[bytes], list[bytes]]:
    """(training, held-out) documents."""
    texts = documents()
    kept = [text for name, text in texts.items() if not is_heldout(name)]
    return kept, [text for name, text in texts.items() if is_heldout(name)]


def tokens(texts: list[bytes]) -> Tensor:
    """[n] int16: the texts as byte ids, each followed by END."""
    return torch.tensor([token for text in texts for token in (*text, END)], dtype=torch.int16)


def windows(data: Tensor, seed: int, length: int = LENGTH, batch: int = BATCH) -> Iterator[Tensor]:
    """[batch, length + 1] int64 batches, for ever; each pass cuts the data at another phase, in another order."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        phase = int(torch.randint(length, (1,), generator=generator))
        cuts = data[phase:].unfold(0, length + 1, length)
        for rows in torch.split(torch.randperm(len(cuts), generator=generator), batch):
            yield cuts[rows].long()
