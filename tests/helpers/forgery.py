"""Artifacts altered by somebody who knows how their hashes are made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridge.runtime.artifacts.artifact import file_entry
from hybridge.runtime.artifacts.manifest import MANIFEST, ONNX_COMMIT, ONNX_PROGRAM, ONNX_WEIGHTS, PROGRAM

Content = dict[str, Any]


def forge(folder: Path, change: Callable[[Content], object] = lambda content: None) -> None:
    """Change the manifest, and everything in it that would tell of this change or of one to the program."""
    content = json.loads((folder / MANIFEST).read_text())
    del content["checksum"]
    for name in {PROGRAM, ONNX_PROGRAM, ONNX_WEIGHTS, ONNX_COMMIT} & content["files"].keys():
        file = file_entry(folder / name)
        content["files"][name] = {"sha256": file.sha256, "size": file.size}
    change(content)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(canonical.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(content | {"checksum": checksum}))
