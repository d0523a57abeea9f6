"""Take the pictures of the documents: pages of --html at a fixed size, and a terminal of ``hybridge run`` as docs/run.svg."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from browser import browser
from rich.console import Console
from rich.text import Text

from campaigns import ROOT, campaign
from hybridge.export.cli.embedded import EMBEDDED

DOCS = ROOT / "docs"
WIDTH, HEIGHT, COLUMNS = 900, 640, 104
LARGEST = 150_000
"""Bytes of a picture."""
PROMPT = 'def open_file(name, mode="r"):'
COMMANDS = {
    "inspect": ["hybridge-demo"],
    "validate": ["hybridge-demo", "--against", str(EMBEDDED), "--programs", "10"],
    "run": ["hybridge-demo", "--prompt", PROMPT, "--max-new-tokens", "160"],
    "bench": ["hybridge-demo", "--draft", "hybridge-demo-draft", "--tokens", "6000", "--samples", "3000"],
}
SHOWN = ["run", "hybridge-demo", "--prompt", PROMPT, "--max-new-tokens", "256", "--stats"]


def terminal(hybridge: Path, folder: Path) -> str:
    """Return the output of a command as an SVG that loads no font from anywhere."""
    environment = os.environ | {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
    output = subprocess.run(
        [hybridge, *SHOWN], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ).stdout
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(
            f"[bold]$[/] hybridge run hybridge-demo --prompt '{PROMPT}' --max-new-tokens 256 --stats", highlight=False
        )
        console.print(Text.from_ansi(output))
    return re.sub(r"@font-face \{.*?\}\n", "", console.export_svg(title="hybridge run", unique_id="run"), flags=re.DOTALL)


def main() -> int:
    """Write the pictures; exit code 1 if one is too large."""
    asked = campaign.parser("screenshots", __doc__)
    asked.add_argument("folder", type=Path, nargs="?", default=ROOT, help="where scripts/demo wrote its artifacts")
    hybridge, folder, sizes = Path(sys.executable).with_name("hybridge"), asked.parse_args().folder, {}
    (DOCS / "run.svg").write_text(terminal(hybridge, folder), encoding="utf-8")
    (DOCS / "pages").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, browser() as window:
        for name, words in COMMANDS.items():
            page = Path(scratch, f"{name}.html")
            subprocess.run([hybridge, name, *words, "--html", page], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            for look in ("light", "dark"):
                window.look(WIDTH, HEIGHT, dark=look == "dark")
                window.open(page.as_uri())
                picture = window.picture()
                (DOCS / "pages" / f"{name}-{look}.png").write_bytes(picture)
                sizes[f"{name}-{look}"] = len(picture)
    print(sizes)
    return max(sizes.values()) > LARGEST


if __name__ == "__main__":
    sys.exit(main())
