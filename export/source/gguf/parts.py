"""Find and check the parts of a model in several files, ``NAME-00001-of-00003.gguf``.

The first part has the metadata; each has some of the tensors, and entries that say which part of how many it is.
Source: llama.cpp ``tools/gguf-split`` and ``gguf-py/gguf/gguf_writer.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridge.errors import CheckpointError
from hybridge.export.source.files import names_of_parts

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
"""Entries: the number of a part from 0 on, the number of parts, and of the tensors in all of them."""

NORM = re.compile(r"(blk\.[0-9]+\.attn|output)_norm\.weight")
"""Tensors that have as many numbers as an embedding in every architecture."""


def find_parts(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """Return the parts of the model that ``path``, which has ``metadata``, is a part of; ``path`` alone if it is whole.

    Raises CheckpointError if a part is missing, or if the name of ``path`` does not fit what it says.
    """
    count = metadata.get(COUNT)
    if not isinstance(count, int) or count <= 1:
        return [path]
    number, names = metadata.get(NUMBER), names_of_parts(path.name)
    if not isinstance(number, int) or len(names) != count or number >= count or names[number] != path.name:
        raise CheckpointError(
            f"{path} says that it is part {_shown(number)} of {count}, so its name should end with "
            f"-{_shown(number, 5)}-of-{count:05d}.gguf. Give the parts the names that they were published by."
        )
    parts = [path.with_name(name) for name in names]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise CheckpointError(
            f"{path.parent} lacks {missing[0]}, {len(missing)} of {count} parts of the model in {path.name}; "
            "download it into the same folder."
        )
    return parts


def check_parts(
    parts: Sequence[Path], metadata: Sequence[Mapping[str, Any]], shapes: Sequence[Mapping[str, tuple[int, ...]]]
) -> None:
    """Raise CheckpointError if a part is not of the first one's model.

    Args:
        parts: the files, in order.
        metadata: of each.
        shapes: of the tensors in each, by name.
    """
    first, width = metadata[0], metadata[0].get(f"{metadata[0].get('general.architecture')}.embedding_length")
    places: dict[str, Path] = {}
    for number, (part, own, tensors) in enumerate(zip(parts, metadata, shapes, strict=True)):
        wanted = {NUMBER: number, COUNT: len(parts), TENSORS: first.get(TENSORS)}
        wanted |= {name: first.get(name) for name in ("general.architecture", "general.name") if name in own}
        for name, value in wanted.items():
            if own.get(name) != value:
                raise _foreign(part, parts[0], f"its {name} is {own.get(name)!r}, expected {value!r}")
        if again := sorted(places.keys() & tensors.keys()):
            raise _foreign(part, places[again[0]], f"both have {again[0]}")
        for name, shape in tensors.items():
            if NORM.fullmatch(name) and isinstance(width, int) and shape != (width,):
                raise _foreign(part, parts[0], f"its {name} has shape {list(shape)}, expected [{width}]")
        places |= dict.fromkeys(tensors, part)
    if len(places) != first.get(TENSORS, len(places)):
        raise CheckpointError(
            f"the {len(parts)} parts of {parts[0]} have {len(places):,} tensors, but it says {first[TENSORS]:,}: one of them "
            "is of another model; download them again."
        )


def _foreign(part: Path, other: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{part} is not of the same model as {other.name} ({reason}); download it again.")


def _shown(number: Any, width: int = 1) -> str:
    return f"{number + 1:0{width}d}" if isinstance(number, int) else repr(number)
