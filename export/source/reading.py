"""Read the small files beside a checkpoint's weights: whether they are there at all, and are themselves."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hybridge.cache.errors import CheckpointError
from hybridge.export.source.hub_cache import download_again

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"


def check_files(folder: Path, names: Iterable[str]) -> None:
    """Look at the beginning of those files of ``folder`` that are there.

    Raises CheckpointError for git-lfs pointers, links that lead nowhere, and what there is no permission to read.
    """
    heads = {name: _head(folder / name) for name in sorted(names) if os.path.lexists(folder / name)}
    if pointers := [name for name, head in heads.items() if head.startswith(LFS_POINTER)]:
        sizes = [re.search(rb"^size (\d+)$", heads[name], re.MULTILINE) for name in pointers]
        megabytes = sum(int(size[1]) for size in sizes if size) / 1e6
        raise CheckpointError(
            f"{folder} was cloned without its large files: instead of {', '.join(pointers)} there "
            f"{'is a git-lfs pointer' if len(pointers) == 1 else 'are git-lfs pointers'} ({megabytes:,.1f} MB are missing). "
            f"Run 'git lfs install' and then 'git lfs pull' in that folder."
        )


def first_line(error: Exception) -> str:
    """Return the first line of what a library says, or the name of its error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _head(path: Path) -> bytes:
    """The first bytes of a file: enough for a pointer."""
    try:
        with path.open("rb") as file:
            return file.read(256)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is a link to {os.readlink(path)}, which does not exist; {download_again(path.parent)}, "
            "or copy the folder that it leads to as well."
        ) from None
    except PermissionError:
        raise CheckpointError(f"no permission to read {path}; change it, or copy the checkpoint.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}).") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; an empty one where there is no such file. Raises CheckpointError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); get the file again.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object, but should hold names with values; get the file again.")
    return content
