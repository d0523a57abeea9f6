"""Commands in an environment that has what ``pip install hybridge`` brings, and nothing of the extra ``export``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from base_install import WITHOUT_EXPORT

MAIN = "from hybridge.__main__ import main\nmain()\n"
TAKES_INPUT = ["run {artifact} --chat --prompt - --no-speculation", "chat {artifact} --no-history --max-new-tokens 4 --json"]
RUNS = [
    "--help", "--version", "doctor --json", "kernels info", "native", "inspect {artifact}", "inspect {artifact} --json",
    "inspect {artifact} --html {tmp}/page.html", "run {artifact} --prompt ab --max-new-tokens 4 --stats",
    "run {artifact} --prompt ab --max-new-tokens 4 --json --drafter", "run {artifact} --prompt ab --html {tmp}/page.html",
    "run {artifact} --prompt ab --draft {artifact}-draft", "run {artifact} --prompt ab --regex [0-9]{{3}}",
    *(f"{command} --help" for command in ("run", "export", "chat", "serve", "inspect", "bench", "kernels", "validate")),
]  # fmt: skip
"""What has to work: results on stdout and exit code 0."""
SLOWER = "bench {artifact} --tokens 3000 --samples 300 --json"
NEEDS_EXPORT = [
    "export {tmp} -o {tmp}/out", "validate {artifact} --against {tmp}", "evaluate {artifact} --against {tmp}",
    "demo -o {tmp}/out", "bench", "bench {artifact} --device", "bench {artifact} --profile",
]  # fmt: skip
SENTENCE = "Error: hybridge {} needs what makes artifacts: pip install 'hybridge[export]'.\n"
MODULES = [
    *(f"export.cli.{name}" for name in ("bench", "check", "demo", "embedded", "export", "figures", "progress")),
    *(f"models.{name}" for name in ("cli", "describe", "find")),
    *(f"runtime.cli.{name}" for name in ("chat", "console", "doctor", "inspect", "options", "run", "serve", "tools")),
    *(f"runtime.text.{name}" for name in ("answers", "chat_template", "conversation", "generate", "grammars")),
    "runtime.server.app",
]
"""Modules that import without the extra."""


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXPORT + code, *words],
        input="hi\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


EACH = """
from hybridge.__main__ import main
for line in sys.argv[1:]:
    sys.argv[1:] = line.split()
    try:
        main()
    except SystemExit as exit:
        print(f"ended with {exit.code or 0}")
"""
"""Runs commands one after the other."""


@pytest.mark.slow
@pytest.mark.parametrize("line", [*TAKES_INPUT, pytest.param(SLOWER, marks=pytest.mark.thorough)])
def test_the_command_runs(line: str, demo: Path) -> None:
    done = python(MAIN, *line.format(artifact=demo).split())
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.slow
def test_each_command_runs(demo: Path, tmp_path: Path) -> None:
    done = python(EACH, *(line.format(artifact=demo, tmp=tmp_path) for line in RUNS))
    assert done.returncode == 0, done.stderr
    shown = re.split(r"^ended with 0\n", done.stdout, flags=re.MULTILINE)
    assert shown.pop() == "", done.stderr
    assert all(output or "--html" in line for line, output in zip(RUNS, shown, strict=True))


@pytest.mark.slow
def test_a_command_that_needs_the_extra_says_how_to_install_it(demo: Path, tmp_path: Path) -> None:
    done = python(EACH, *(line.format(artifact=demo, tmp=tmp_path) for line in NEEDS_EXPORT))
    assert (done.returncode, done.stdout) == (0, "ended with 2\n" * len(NEEDS_EXPORT)), done.stderr
    told = [line for line in done.stderr.splitlines(keepends=True) if line.startswith("Error: ")]
    assert told == [SENTENCE.format(line.split()[0]) for line in NEEDS_EXPORT]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_it_serves(demo: Path) -> None:
    words = ["serve", str(demo), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_EXPORT + MAIN, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stderr is not None
            found = re.search(r"http://[^\s;]+", server.stderr.readline())
            assert found
            asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
            request = Request(f"{found[0]}/chat/completions", json.dumps(asked).encode(), {"content-type": "application/json"})
            with urlopen(request, timeout=60) as answer:
                assert json.load(answer)["usage"]["completion_tokens"] == 3
        finally:
            server.terminate()


@pytest.mark.slow
def test_the_modules_import() -> None:
    done = python("\n".join(f"import hybridge.{name}" for name in MODULES))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_name_that_needs_the_extra_says_how_to_install_it() -> None:
    """Another module that is missing is no matter of the extra."""
    names = ["export_model", "load('OUT')", "HybridCache", "eager_session"]
    code = "import hybridge\nfrom hybridge.errors import UsageError\nfrom hybridge.imports import needs_export\n"
    for name in names:
        code += f"try:\n    hybridge.{name}\nexcept UsageError as error:\n    print(error)\n"
    done = python(code + "with needs_export('x'):\n    import no_such_module\n")
    needed = "hybridge.{} needs what makes artifacts: pip install 'hybridge[export]'."
    assert done.stdout.splitlines() == [needed.format(name.partition("(")[0]) for name in names]
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stderr
