"""Artifacts altered by somebody who knows how their hashes are made."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridge.runtime.artifact.folder import file_entry
from hybridge.runtime.artifact.manifest import MANIFEST, ONNX_COMMIT, ONNX_PROGRAM, ONNX_WEIGHTS, PROGRAM

Content = dict[str, Any]


TOOLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function|tojson }}"
    "</tool_call>{% endfor %}{% endfor %}{{ '' if not tools else tools[0].function.name }}{{ tone }}<assistant>"
)
"""A chat template (``chat_template.jinja``) that knows tools, in Hermes' form, and a variable ``tone``."""


def with_file(artifact: Path, folder: Path, name: str, text: str) -> Path:
    """Copy an artifact to ``folder``, with another text in the file ``name``, which the manifest knows."""
    shutil.copytree(artifact, folder)
    (folder / name).write_text(text, encoding="utf-8")
    entry = file_entry(folder / name)
    forge(folder, lambda content: content["files"][name].update(sha256=entry.sha256, size=entry.size))
    return folder


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
