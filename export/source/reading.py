"""Whether files can be read at all, and are themselves and not what stands in their place."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

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
