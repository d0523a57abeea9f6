"""The small JSON files beside a checkpoint's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hybridge.cache.errors import CheckpointError


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
