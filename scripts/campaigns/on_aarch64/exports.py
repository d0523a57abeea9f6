"""A program that exports on this machine: the artifacts of ``hybridge demo``, and two more of the same model."""

from __future__ import annotations

import sys
from pathlib import Path

from hybridge.export.api import export_model
from hybridge.export.cli.embedded import EMBEDDED, export_embedded
from hybridge.runtime import ExportOptions

MORE = {
    "demo-llm": ExportOptions(max_seq_len=1024, kernels="llm"),
    "demo-8da4w": ExportOptions(max_seq_len=1024, kernels="hybridge", quantize="8da4w"),
}


def main(folder: Path) -> None:
    """Export all of them into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    export_embedded(folder / "demo", folder / "demo-draft")
    for name, options in MORE.items():
        export_model(EMBEDDED, folder / name, options, force=True, validate=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
