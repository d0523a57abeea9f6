"""The documents: whatever they name exists, and the commands of README.md and the tutorial and all Python run as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from document_faults import Checker
from documents import Document
from source_names import ROOT
from store import demo_folder
from tiny import save_checkpoint, save_tokenizer, tiny_config

from hybridge.cache.families import FAMILIES
from hybridge.export.cli.embedded import EMBEDDED

README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", ROOT / "examples/python/README.md", *sorted((ROOT / "docs").glob("*.md"))]

ELSEWHERE = {
    "scripts/demo": "makes a .venv by the network, then runs 'hybridge demo', which made the folder that these tests run in",
    "source .venv/bin/activate": "the environment is the tests' own",
    "hf download Qwen/Qwen3.5-0.8B --local-dir Qwen3.5-0.8B": "by the network; the tests have a small model of that type there",
    "python3 -m venv talk": "the environment is the tests' own",
    "source talk/bin/activate": "the same",
    'pip install "$(ls hybridge-*.whl)[export]"': "tests/test_packaging.py builds and installs the wheel",
    "pip install cmake": "the tests have it",
    'cmake -S app -B build -DCMAKE_PREFIX_PATH="$(hybridge native --cmake-prefix)"': "tests/test_native_package.py does it",
    "cmake --build build --parallel": "the same",
    "build/talk phone/model.pte 'def open_file(name, mode=\"r\"):'": "it compiles and runs this program without cmake",
}
"""Commands of README.md and the tutorial that these tests do not run, and why."""

WRONG = """
# Wrong

`RecurrentLayer`, `cache/recurrent.py`, `Session.undo`, `hybridge.runtime.guess`, `hybridge::Cursor`, `grown_state`, lost.py,
`--kernels fast`, `--quantise 8w`, `hybridge train`, `hybridge run OUT --against X`, `scripts/deploy`,
`scripts/bench --turns 3`, [a](nowhere.md), [b](artifact.md#no-such-heading), [c](#not-here)

```sh
hybridge inspect OUT --brief
```
"""
FAULTS = {
    "nothing is called RecurrentLayer",
    "there is no cache/recurrent.py",
    "nothing is called Session.undo",
    "nothing is called hybridge.runtime.guess",
    "there is no C++ class, operator or target of CMake hybridge::Cursor",
    "nothing is called grown_state",
    "there is no file lost.py",
    "--kernels does not take fast",
    "there is no option --quantise",
    "there is no command hybridge train",
    "there is no option --against",
    "there is no script scripts/deploy",
    "there is no scripts/deploy",
    "there is no option --turns",
    "there is no option --brief",
    "the link nowhere.md leads nowhere",
    "the link artifact.md#no-such-heading has no such heading",
    "the link #not-here has no such heading",
}
RIGHT = """
# Right here

`Session.save`, `hybridge.load("OUT").generate(…)`, `CacheLayer`, `cache/layers/layer.py`, `cache/*.py`, `hybridge::Session`,
`staged_conv`, `--quantize 8da4w|4w`, `--max-seq-len 96`, `hybridge kernels build --force`, `scripts/bench --rounds 3`,
`hf download X --local-dir Y`, [a](artifact.md#the-state), [b](#right-here)
"""


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_exists(path: Path, checker: Checker) -> None:
    assert checker.faults(Document.read(path)) == []


def test_the_checker_finds_each_kind_of_fault_and_no_other(checker: Checker) -> None:
    assert set(checker.faults(Document.parse(ROOT / "docs" / "wrong.md", WRONG))) == FAULTS
    assert checker.faults(Document.parse(ROOT / "docs" / "right.md", RIGHT)) == []


def test_every_model_type_is_listed() -> None:
    table = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {name.removesuffix("_text") for name in FAMILIES}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What README's reader has: the folders of scripts/demo, and a checkpoint, whose sizes are small here."""
    folder, made = tmp_path_factory.mktemp("documents"), demo_folder()
    for name in ("hybridge-demo", "hybridge-demo-draft", "hybridge-demo-dspark"):
        (folder / name).symlink_to(made / name)
    checkpoint = folder / "Qwen3.5-0.8B"
    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    save_checkpoint(checkpoint, tiny_config("qwen3_5_text", **layers, hidden_size=64, intermediate_size=96))
    save_tokenizer(checkpoint)
    (checkpoint / "chat_template.jinja").write_bytes((EMBEDDED / "chat_template.jinja").read_bytes())
    return folder


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("path", [README, TUTORIAL], ids=lambda path: path.name)
def test_the_commands_of_a_document_run_as_written(path: Path, workplace: Path) -> None:
    blocks = Document.read(path).blocks("sh", "console")
    assert len(blocks) >= 3
    for block in blocks:
        commands = [line.removeprefix("$ ") for line in block.splitlines() if is_command(line, block)]
        shown = "".join(run(command, workplace) for command in commands)
        for pasted in (line for line in block.splitlines() if not is_command(line, block)):
            assert words(pasted) in words(shown), pasted


def is_command(line: str, block: str) -> bool:
    """A block with prompts shows answers too; one without has nothing but commands."""
    return line.startswith("$ ") or not block.startswith("$ ")


def words(text: str) -> str:
    """Text without numbers, which differ from run to run, and without frames, which depend on them."""
    return " ".join(re.findall(r"[^\W\d_]+", text))


def run(line: str, folder: Path) -> str:
    """What a command writes; nothing where it is one that runs elsewhere."""
    command = line.partition("  #")[0].strip()
    if not command or command in ELSEWHERE:
        return ""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return f"{done.stdout}\n{done.stderr}\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/python.md", "docs/structured.md", "docs/writing-a-drafter.md"])
def test_the_python_of_a_document_runs_as_written(name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, namespace = Document.read(ROOT / name).blocks("python"), dict[str, Any]()
    assert blocks
    monkeypatch.chdir(workplace)
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)


def test_the_demo_script_runs_what_these_tests_have_run() -> None:
    assert (ROOT / "scripts" / "demo").read_text().rstrip().endswith('exec .venv/bin/hybridge demo "$@"')
