"""Commands in an environment that has what ``pip install hybridge`` brings, and nothing of the extra ``export``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from base_install import WITHOUT_EXPORT

MAIN = "from hybridge.export.cli import main\nmain()\n"
RUNS = [
    "--help", "--version", "doctor --json", "kernels info", "native", "inspect {artifact}", "inspect {artifact} --json",
    "inspect {artifact} --html {tmp}/page.html", "run {artifact} --prompt ab --max-new-tokens 4 --stats",
    "run {artifact} --prompt ab --max-new-tokens 4 --json --no-speculation",
    *(f"{command} --help" for command in ("run", "chat", "serve", "inspect", "bench", "kernels", "export", "validate")),
]  # fmt: skip
"""What has to work: results on stdout and exit code 0."""
NEEDS_EXPORT = [
    "export {tmp} -o {tmp}/out", "validate {artifact} --against {tmp}", "evaluate {artifact} --against {tmp}",
    "demo -o {tmp}/out", "bench",
]  # fmt: skip
SENTENCE = "Error: hybridge {} needs what makes artifacts: pip install 'hybridge[export]'.\n"
MODULES = [
    *("hybridge.export.cli.app", "hybridge.export.cli.chat_template", "hybridge.export.cli.core_model"),
    *("hybridge.export.cli.continuing", "hybridge.export.cli.inspect", "hybridge.export.cli.doctor"),
    *(
        "hybridge.export.cli.serve",
        "hybridge.export.cli.template_args",
        "hybridge.export.cli.device",
        "hybridge.export.cli.figures",
    ),
    *(
        "hybridge.export.cli.embedded",
        "hybridge.export.server.formats",
        "hybridge.export.server.job",
        "hybridge.export.server.prompts",
    ),
    *("hybridge.export.pages.inspect", "hybridge.export.pages.run", "hybridge.runtime.core.library"),
]
"""What the commands are made of, as far as none of it needs the extra."""


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXPORT + code, *words], capture_output=True, text=True, timeout=120, check=False
    )


def command(line: str, artifact: Path, tmp: Path) -> subprocess.CompletedProcess[str]:
    return python(MAIN, *line.format(artifact=artifact, tmp=tmp).split())


@pytest.mark.slow
@pytest.mark.parametrize("line", RUNS)
def test_the_command_runs(line: str, own_artifact: Path, tmp_path: Path) -> None:
    done = command(line, own_artifact, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout or "--html" in line


@pytest.mark.slow
@pytest.mark.parametrize("line", NEEDS_EXPORT)
def test_a_command_that_needs_the_extra_says_how_to_install_it(line: str, own_artifact: Path, tmp_path: Path) -> None:
    done = command(line, own_artifact, tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (2, SENTENCE.format(line.split()[0]), "")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_modules_import() -> None:
    done = python("\n".join(f"import {name}" for name in MODULES))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["export_model", "load", "HybridCache", "eager_session"])
def test_a_name_that_needs_the_extra_says_how_to_install_it(name: str) -> None:
    asked = "hybridge.load('OUT')" if name == "load" else f"hybridge.{name}"
    done = python(f"import hybridge\n{asked}\n")
    assert f"UsageError: hybridge.{name} needs what makes artifacts: pip install 'hybridge[export]'." in done.stderr


@pytest.mark.slow
def test_another_module_that_is_missing_is_no_matter_of_the_extra() -> None:
    done = python("from hybridge.cache.deferred import needs_export\nwith needs_export('x'):\n    import no_such_module\n")
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stderr
