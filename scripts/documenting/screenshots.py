"""Run the commands that write pages over the demo's artifacts, and photograph each page at a fixed size."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from browser import browser

from hybridge.export.cli.embedded import EMBEDDED

OUT = Path(__file__).parents[2] / "docs" / "pages"
WIDTH, HEIGHT = 900, 640
LARGEST = 150_000
"""Bytes of a picture."""
PROMPT = 'def open_file(name, mode="r"):'
COMMANDS = {
    "inspect": ["hybridge-demo"],
    "validate": ["hybridge-demo", "--against", str(EMBEDDED), "--programs", "10"],
    "run": ["hybridge-demo", "--prompt", PROMPT, "--max-new-tokens", "160"],
    "bench": ["hybridge-demo", "--draft", "hybridge-demo-draft", "--tokens", "6000", "--samples", "3000"],
}


def main() -> int:
    """Write the pictures; exit code 1 if one is too large."""
    hybridge, folder, sizes = Path(sys.executable).with_name("hybridge"), Path(sys.argv[1]), {}
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, browser() as window:
        for name, words in COMMANDS.items():
            page = Path(scratch, f"{name}.html")
            subprocess.run([hybridge, name, *words, "--html", page], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            for look in ("light", "dark"):
                window.look(WIDTH, HEIGHT, dark=look == "dark")
                window.open(page.as_uri())
                picture = window.picture()
                (OUT / f"{name}-{look}.png").write_bytes(picture)
                sizes[f"{name}-{look}"] = len(picture)
    print(sizes)
    return max(sizes.values()) > LARGEST


if __name__ == "__main__":
    sys.exit(main())
