"""Artifacts altered by somebody who knows how their hashes are made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridge.runtime.artifact import describe_file
from hybridge.runtime.manifest import MANIFEST, PROGRAM

Content = dict[str, Any]


def forge(folder: Path, change: Callable[[Content], object] = lambda content: None) -> None:
    """Change the manifest, and everything in it that would tell of this change or of one to the program."""
    content = json.loads((folder / MANIFEST).read_text())
    del content["checksum"]
    program = describe_file(folder / PROGRAM)
    content["files"][PROGRAM] = {"sha256": program.sha256, "size": program.size}
    change(content)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(canonical.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(content | {"checksum": checksum}))
