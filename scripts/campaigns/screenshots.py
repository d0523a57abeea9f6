"""Take the pictures of the documents: pages of --html at a fixed size, and terminals as docs/run.svg and docs/chat.svg."""

from __future__ import annotations

import json
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
from campaigns.real_models.models import SMOLLM2, gguf_of
from hybridge.export.cli.embedded import EMBEDDED
from hybridge.runtime.cli.markdown import AnswerMarkdown

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
MESSAGES = ("Write a Python function that reverses a string.", "/undo", "Name three rivers of France, as a list.")
"""Of the recorded chat, which is with a trained model."""


def chat(hybridge: Path, model: Path) -> str:
    """Return a chat as an SVG: the answers of ``hybridge chat``, as it shows them at a terminal."""
    command = [hybridge, "chat", model, "--max-new-tokens", "160", "--json"]
    typed = "".join(f"{each}\n" for each in MESSAGES)
    output = subprocess.run(
        command, input=typed, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout
    answers, decoder = list[str](), json.JSONDecoder()
    while output := output.strip():
        answer, end = decoder.raw_decode(output)
        answers.append(answer["content"])
        output = output[end:]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=80, file=nowhere)
        console.print(f"[bold]$[/] hybridge chat {SMOLLM2.file}", highlight=False)
        console.print("[dim]/help lists the commands[/]", highlight=False)
        for message in MESSAGES:
            console.print(f"[bold]>[/] {message}", highlight=False)
            console.print("[dim]0 exchanges left[/]" if message == "/undo" else AnswerMarkdown(answers.pop(0)), highlight=False)
    return drawn(console, "hybridge chat", "chat")


def terminal(hybridge: Path, folder: Path) -> str:
    """Return the output of a command as an SVG."""
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
    return drawn(console, "hybridge run", "run")


def drawn(console: Console, title: str, name: str) -> str:
    """Return what was printed as an SVG that loads no font from anywhere."""
    return re.sub(r"@font-face \{.*?\}\n", "", console.export_svg(title=title, unique_id=name), flags=re.DOTALL)


def main() -> int:
    """Write the pictures; exit code 1 if one is too large."""
    asked = campaign.parser("screenshots", __doc__)
    asked.add_argument("folder", type=Path, nargs="?", default=ROOT, help="where scripts/demo wrote its artifacts")
    asked.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "hybridge-models", help="for the chat's model"
    )
    given = asked.parse_args()
    hybridge, folder, sizes = Path(sys.executable).with_name("hybridge"), given.folder, {}
    (DOCS / "chat.svg").write_text(chat(hybridge, gguf_of(SMOLLM2, given.work)), encoding="utf-8")
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
