"""The tensors in a checkpoint's safetensors, by name; read when they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors

from hybridge.cache.errors import CheckpointError
from hybridge.export.checkpoint.forms.form import Method, Quantization, Unread, dequantized
from hybridge.export.checkpoint.weight_files import weight_files
from hybridge.export.source.hub_cache import download_again
from hybridge.export.source.reading import check_files, first_line

SCALED = ("F8_E4M3", "F8_E5M2", "I8", "U8", "I32")
"""Types of weights that are nothing without a scale."""


@dataclass(frozen=True, kw_only=True)
class StoredTensors:
    """tensors: by name, none read yet; metadata: what the files say of themselves; types: of each, by safetensors' names."""

    tensors: dict[str, Unread]
    metadata: dict[str, str]
    types: dict[str, str]

    def dequantized(self, method: Method, quantization: Quantization) -> dict[str, Unread]:
        """Return the tensors of the unquantized checkpoint. Raises CheckpointError for numbers whose scales are missing."""
        found = dequantized(self.tensors, method, replace(quantization, metadata=self.metadata))
        left = [name for name, each in found.items() if self.tensors.get(name) is each and self.types[name] in SCALED]
        if left:
            raise CheckpointError(
                f"{left[0]} is stored as {self.types[left[0]]}, without what {method.name} scales it by "
                f"({len(left)} in all); the checkpoint is incomplete."
            )
        return found


@contextmanager
def stored_tensors(folder: Path) -> Iterator[StoredTensors]:
    """Yield the tensors of the checkpoint in ``folder`` while its files are open.

    Raises CheckpointError where files are missing, damaged or cannot be told from others.
    """
    check_files(folder, [path.name for path in folder.glob("*.safetensors")])
    tensors: dict[str, Unread] = {}
    metadata: dict[str, str] = {}
    types: dict[str, str] = {}
    with ExitStack() as opened:
        for path in weight_files(folder):
            try:
                file = opened.enter_context(safetensors.safe_open(path, framework="pt"))
                metadata |= file.metadata() or {}
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  not a dict
                tensors |= slices
                types |= {name: each.get_dtype() for name, each in slices.items()}
            except (OSError, safetensors.SafetensorError) as error:
                raise CheckpointError(
                    f"the weights in {folder} cannot be read: {path.name} is damaged or only a part of it is there "
                    f"({first_line(error)}); {download_again(folder)}."
                ) from None
        yield StoredTensors(tensors=tensors, metadata=metadata, types=types)
