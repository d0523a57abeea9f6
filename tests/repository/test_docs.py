"""The documents: what they mention exists, and their commands and Python examples run as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from checkout import CHECKOUT
from documents import Document, command_faults
from store import demo_folder
from tiny import save_checkpoint, save_tokenizer, tiny_config

from hybridge.cache.families import FAMILIES
from hybridge.export.cli.embedded import EMBEDDED

README, TUTORIAL = CHECKOUT / "README.md", CHECKOUT / "docs" / "tutorial.md"
DOCUMENTS = [
    README,
    CHECKOUT / "CONTRIBUTING.md",
    *sorted(CHECKOUT.glob("examples/*/README.md")),
    *sorted(CHECKOUT.glob("docs/*.md")),
]
ELSEWHERE = ("scripts/demo", "source ", "hf download", "python3 -m venv", "pip install", "cmake", "build/talk")
"""Beginnings of commands that these tests do not run; tests/runtime/apps/test_native_package.py builds the app."""
WRONG = """`cache/recurrent.py`, `Session.undone_twice`, `hybridge::Cursor`, `--quantise 8w`, `hybridge train`,
`hybridge run OUT --against X`

```sh
hybridge inspect OUT --brief
scripts/deploy
```
"""
RIGHT = """`Session.save`, `hybridge.load("OUT").generate(…)`, `cache/*.py`, `hybridge::Session`, `--quantize 8da4w|4w`,
`scripts/bench --rounds 3`, `hybridge kernels build --force`, `hf download X --local-dir Y`
"""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_what_a_document_mentions_exists(path: Path) -> None:
    assert Document.read(path).faults() == []


def test_each_kind_of_fault_is_found_and_no_other() -> None:
    assert len(Document.parse(WRONG).faults()) == 8
    assert Document.parse(RIGHT).faults() == []


COMMANDS = re.compile(r"\bhybridge (?:bench|chat|demo|doctor|evaluate|export|inspect|run|serve|validate)(?: [^\s;`\"|\\)]+)*")


def test_commands_in_comments_and_messages_exist() -> None:
    """examples/native/CMakeLists.txt named an option of ``hybridge demo`` that there is not."""
    folders = [CHECKOUT / name for name in ("cache", "examples", "export", "runtime", "scripts")]
    files = [path for folder in folders for kind in ("h", "kt", "py", "swift", "txt") for path in folder.rglob(f"*.{kind}")]
    commands = {command for path in files for command in COMMANDS.findall(path.read_text(encoding="utf-8")) if "--" in command}
    assert len(commands) > 20
    assert [fault for command in sorted(commands) for fault in command_faults(command)] == []


def test_every_model_type_is_listed() -> None:
    lines = (CHECKOUT / "docs" / "models.md").read_text(encoding="utf-8").splitlines()
    listed = {name for line in lines if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert listed == {name.removesuffix("_text") for name in FAMILIES}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artifacts of scripts/demo and a small checkpoint in place of Qwen3.5-0.8B."""
    folder, made = tmp_path_factory.mktemp("documents"), demo_folder()
    for name in ("hybridge-demo", "hybridge-demo-draft", "hybridge-demo-dspark"):
        (folder / name).symlink_to(made / name)
    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    save_checkpoint(folder / "Qwen3.5-0.8B", tiny_config("qwen3_5_text", **layers, hidden_size=64, intermediate_size=96))
    save_tokenizer(folder / "Qwen3.5-0.8B")
    (folder / "Qwen3.5-0.8B" / "chat_template.jinja").write_bytes((EMBEDDED / "chat_template.jinja").read_bytes())
    return folder


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("path", [README, TUTORIAL], ids=lambda path: path.name)
def test_the_commands_of_a_document_run_as_written(path: Path, workplace: Path) -> None:
    for block in Document.read(path).blocks("sh", "console"):
        prompt = "$ " if block.startswith("$ ") else ""  # a block with prompts also shows output
        commands = [line.removeprefix(prompt) for line in block.splitlines() if line.startswith(prompt)]
        shown = "".join(run(command.partition("  #")[0].strip(), workplace) for command in commands)
        is_timed = any(command.startswith("hybridge run") for command in commands)
        for output in (line for line in block.splitlines() if not line.startswith(prompt)):
            found = [line for line in shown.splitlines() if words(output) in words(line)]
            assert found, output
            assert is_timed or any(map(partial(has_numbers, output), found)), found


def test_numbers_of_an_output_are_compared() -> None:
    shown = "│ all │ 512 │ 0.00734 ± 0.00066 │ 95.51% │ 9 methods in 1,024 bytes │"
    assert has_numbers("│ all │ 512 │ 0.0074 ± 0.0007 │ 95.1% │ 9 methods in 1,000 bytes │", shown)
    assert not has_numbers("│ all │ 512 │ 0.01236 ± 0.00129 │ 95.12% │ 9 methods in 1,024 bytes │", shown)
    assert not has_numbers("│ all │ 512 │ 0.00734 ± 0.00066 │ 95.51% │ 8 methods in 1,024 bytes │", shown)


def words(text: str) -> str:
    """Return a text without numbers and frames."""
    return " ".join(re.findall(r"[^\W\d_]+", text))


def has_numbers(output: str, shown: str) -> bool:
    """Return whether two lines with the same words have about the same numbers, which another processor may change a little."""
    given, found = (
        [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", line)] for line in (output, shown)
    )
    return given == pytest.approx(found, rel=0.1)


def run(command: str, folder: Path) -> str:
    if not command or command.startswith(ELSEWHERE):
        return ""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HF_HUB_OFFLINE": "1", "COLUMNS": "140"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return f"{done.stdout}\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/python.md", "docs/structured.md", "docs/speculation.md"])
def test_the_python_of_a_document_runs_as_written(name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    namespace: dict[str, Any] = {}
    for block in Document.read(CHECKOUT / name).blocks("python"):
        exec(compile(block, name, "exec"), namespace)
    assert namespace
