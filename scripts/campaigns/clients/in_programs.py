"""Clients that run as programs of their own: ``programs/``, each by the protocol of ``programs/protocol.py``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from compiler_flags import link_flags
from filelock import FileLock

from campaigns.clients.conversations import Client, ClientError, Functions, Row
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.binding import library as core
from hybridge.runtime.binding.library import SOURCES
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.kernels import compiling, library
from hybridge.runtime.kernels.compiling import cache_folder
from hybridge.runtime.pinned import EXECUTORCH, OPERATORS_AND_BACKENDS

REQUIREMENTS = Path(__file__).parent / "requirements"
"""A file for each environment, with every package in it pinned."""


def python_of(name: str) -> Path:
    """Return the interpreter of the environment ``name``, making it at first use. Raises ClientError where that fails."""
    requirements = REQUIREMENTS / f"{name}.txt"
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:8]
    folder = cache_folder("clients") / f"{name}-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "installed").exists():
            _make(folder, requirements)
    return folder / "bin" / "python"


def _make(folder: Path, requirements: Path) -> None:
    """All of it or nothing."""
    print(f"Setting up {folder} (once)", file=sys.stderr)
    _run(folder, [sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)])
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    _run(folder, [*pip, "--disable-pip-version-check", "--requirement", str(requirements)])
    (folder / "installed").touch()


def _run(folder: Path, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:]
        raise ClientError(f"{folder.name} cannot be installed: {' '.join(said)[-300:] or 'no reason given'}")


STRICT = ("-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


def c_api(source: Path, folder: Path) -> Path:
    """Compile a C11 program over ``hybridge.h``, linked to the core and our kernels; returns it."""
    compile_with("gcc", "-std=c11", *STRICT, f"-I{SOURCES}", "-c", source, "-o", folder / "main.o")
    built = [core.build(), library.build()]
    rpaths = [f"-Wl,-rpath,{each.parent}" for each in built]
    links = ["-Wl,--no-as-needed", *link_flags(*OPERATORS_AND_BACKENDS), *built, *rpaths]
    return compile_with(cpp(), folder / "main.o", "-o", folder / "program", *links)


def cpp() -> str:
    """Return the C++ compiler. Raises ClientError."""
    if (found := compiling.compiler()) is None:
        raise ClientError("there is no C++ compiler here: install g++ or clang++, or set CXX")
    return found


def compile_with(*command: object) -> Path:
    """Run a compiler; returns what follows ``-o``. Raises ClientError."""
    words: Sequence[str] = list(map(str, command))
    made = Path(words[words.index("-o") + 1])
    if errors := compiling.errors_of(words, made.parent):
        raise ClientError(f"it does not compile {errors[-300:]}")
    return made


PROGRAMS = Path(__file__).parent / "programs"
OLD = "1.4.1"
"""The ExecuTorch before ours, which apps still have."""


def rows(folder: Path) -> Iterator[Row]:
    """Yield a row for each client of the artifacts in ``folder``."""
    own = folder / "hybridge"
    for how in ("plain", "lookup"):
        name = "C API" if how == "plain" else "C API, prompt lookup"
        yield Row(f"{name}, `--kernels hybridge`", lambda stack, how=how: of_c(stack, own, how))
    for kind in ("llm", "hybridge"):
        name = f"`TextLLMRunner` of {EXECUTORCH}, `--kernels {kind}`"
        yield Row(name, lambda stack, at=folder / kind: of_runner(stack, Path(sys.executable), at))
    stock = folder / "llm"
    name = f"`TextLLMRunner` of {OLD}, `--kernels llm`"
    yield Row(name, lambda stack: of_runner(stack, python_of(f"executorch-{OLD}"), stock))
    yield Row("optimum-executorch's `ExecuTorchModelForCausalLM`", lambda stack: of_optimum(stack, stock), turns=None)


def of_c(stack: ExitStack, artifact: Path, how: str) -> Client:
    """``hybridge.h``, called from C11."""
    program = c_api(PROGRAMS / "c_api.c", temporary(stack))
    return started(stack, [program, artifact / "model.pte", how])


def of_runner(stack: ExitStack, python: Path, artifact: Path) -> Client:
    """ExecuTorch's runner as the environment of ``python`` has it."""
    program = [python, PROGRAMS / "text_llm_runner.py", artifact / "model.pte", artifact / "tokenizer.json"]
    return in_text(started(stack, [*program, *kernels(artifact)]), artifact)


def of_optimum(stack: ExitStack, artifact: Path) -> Client:
    """Return transformers' interface of optimum-executorch over an artifact's folder."""
    return started(stack, [python_of("optimum-executorch-1.1.0"), PROGRAMS / "optimum_executorch.py", artifact])


def kernels(artifact: Path) -> list[Path]:
    """Return the library with our kernels, where the artifact calls them."""
    return [library.build()] if open_artifact(artifact).manifest.needs_kernels else []


def in_text(client: Client, artifact: Path) -> Client:
    """Return a client whose numbers are bytes of text, as one of tokens."""
    tokenizer = Tokenizer.from_file(str(artifact / "tokenizer.json"))

    def generate(tokens: list[int], count: int) -> list[int]:
        text = tokenizer.decode(tokens, skip_special_tokens=False)
        return tokenizer.encode(bytes(client.generate(list(text.encode()), count)).decode(errors="replace")).ids

    return Functions(generate, client.reset)


def temporary(stack: ExitStack) -> Path:
    """Return a folder that goes with the stack."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory()))


def started(stack: ExitStack, words: Sequence[object]) -> Client:
    """Start a program, which ends with the stack."""
    errors = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))  # noqa: SIM115  with the stack
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
    process = subprocess.Popen(list(map(str, words)), text=True, env=environment, **pipes)
    stack.callback(process.communicate)

    def ended() -> ClientError:
        process.communicate()
        errors.seek(0)
        said = errors.read().strip().splitlines()[-1:]
        return ClientError(f"it ended with {process.returncode}: {' '.join(said)[-300:]}")

    def ask(tokens: list[int], count: int) -> list[int]:
        try:
            print(json.dumps([count, tokens]), file=process.stdin, flush=True)
            return list(json.loads(process.stdout.readline()))
        except (BrokenPipeError, ValueError):
            raise ended() from None

    return Functions(ask, lambda: ask([], 0))
