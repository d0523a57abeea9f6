"""The tree of commands: what is listed, in which order, with examples that are right; answered without loading a library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from documents import command_faults
from typer.testing import CliRunner

import hybridge
from hybridge.__main__ import COMMANDS, tree
from hybridge.export.cli.choices import ExportChoices
from hybridge.runtime.artifact.options import ExportOptions

SLOW_LIBRARIES = ("torch", "transformers", "executorch", "onnxruntime", "numpy", "tokenizers")
ASK = """
import sys
from hybridge.__main__ import main
for words in {commands}:
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as exit:
        assert exit.code == {code}, (words, exit.code)
    loaded = [name for name in {libraries} if name in sys.modules]
    assert not loaded, (words, loaded)
"""
ORDER = [
    "doctor",
    "demo",
    "export",
    "inspect",
    "validate",
    "evaluate",
    "run",
    "chat",
    "serve",
    "cache",
    "bench",
    "native",
    "bundle",
    "kernels",
]


def shown(*words: str) -> str:
    done = CliRunner().invoke(tree(), list(words), env={"COLUMNS": "160"})
    assert done.exit_code == 0
    return done.stdout


def examples() -> Iterator[str]:
    for commands in COMMANDS.values():
        for each in commands:
            yield from each.shown_examples()


def asked(code: int, commands: list[str]) -> str:
    """Run command lines in one other process, which fails at the first that loads a library that takes long to start."""
    script = ASK.format(code=code, commands=[each.split() for each in commands], libraries=SLOW_LIBRARIES)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_help_loads_no_library() -> None:
    commands = ["--help", *(f"{name} --help" for name in (*ORDER, "kernels build"))]
    assert asked(0, commands).count("Usage: ") == len(commands)


@pytest.mark.slow
def test_wrong_usage_is_answered_without_loading_a_library() -> None:
    asked(2, ["export", "run", "bench OUT --profile --device", "bench --draft OUT", "evaluate OUT"])


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_one_line(option: str) -> None:
    assert shown(option) == f"hybridge {hybridge.__version__}\n"


def test_commands_are_listed_in_the_order_of_use() -> None:
    listed = re.findall(r"^│ (\w+)  ", shown("--help"), flags=re.MULTILINE)
    assert [name for name in listed if name in ORDER] == ORDER


def test_a_command_imports_no_other() -> None:
    script = "import sys; from hybridge.__main__ import tree; tree(['run']); print('hybridge.runtime.cli.chat' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"


def test_h_is_help() -> None:
    assert shown("run", "-h") == shown("run", "--help")


def test_each_command_shows_its_examples_as_they_are_typed() -> None:
    for commands in COMMANDS.values():
        for each in commands:
            help_text = shown(each.name, "--help")
            assert each.shown_examples() or not each.examples  # a group's commands have none
            assert [line for line in each.shown_examples() if f"$ {line}\n" not in re.sub(" +\n", "\n", help_text)] == []


def test_the_examples_name_commands_and_options_that_exist() -> None:
    assert [fault for line in examples() for fault in command_faults(line)] == []
    assert all(line.startswith("hybridge ") for line in examples())


@pytest.mark.slow
def test_a_shell_completes_commands_and_options() -> None:
    def completed(typed: str) -> list[str]:
        environment = os.environ | {
            "_HYBRIDGE_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - (not typed.endswith(" "))),
        }
        script = "import sys; sys.argv[0] = 'hybridge'; from hybridge.__main__ import main; main()"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
        return done.stdout.split()

    assert completed("hybridge ex") == ["export"]
    assert "--verify-len" in completed("hybridge export --v")


def test_the_command_line_has_every_option_of_an_export_with_its_values_and_its_default() -> None:
    parts = {"shorter_verify_lens", "delegate_device"}  # of --verify-len and --delegate
    written = {each.name for each in fields(ExportOptions)} - parts
    choices, options = get_type_hints(ExportChoices), get_type_hints(ExportOptions)
    assert choices.keys() - written == {"drafter", "draft_vocab"}
    assert written <= choices.keys()
    for name in written:
        if get_origin(options[name]) is Literal and name not in ("calibrate", "mtp", "delegate"):
            [values] = [each for each in (choices[name], *get_args(choices[name])) if get_origin(each) is Literal]
            assert get_args(values) == get_args(options[name]), name
    decided: dict[str, Any] = {"quantize": "auto", "mtp": "auto", "rounding": "blocks", "shorter_verify_lens": (4,)}
    assert ExportChoices().options() == ExportOptions(**decided)
    assert ExportChoices(format="onnx").options() == ExportOptions(**decided | {"format": "onnx", "rounding": "search"})
