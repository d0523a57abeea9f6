"""Clients that run as programs of their own: ``programs/``, each by the protocol of ``programs/protocol.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tokenizers import Tokenizer

from campaigns.clients import compiled
from campaigns.clients.client import Client, ClientError, Functions, Row
from campaigns.clients.environments import python_of
from hybridge.runtime.artifacts.artifact import open_artifact
from hybridge.runtime.kernels import library
from hybridge.runtime.pinned import EXECUTORCH

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
        name = f"`TextLLMRunner` of {EXECUTORCH} in {{}}, `--kernels {kind}`"
        yield Row(name.format("Python"), lambda stack, at=folder / kind: of_runner(stack, Path(sys.executable), at))
        yield Row(name.format("C++"), lambda stack, at=folder / kind: of_runner_in_cpp(stack, Path(sys.executable), at))
    stock, old = folder / "llm", f"executorch-{OLD}"
    name = f"`TextLLMRunner` of {OLD} in {{}}, `--kernels llm`"
    yield Row(name.format("Python"), lambda stack: of_runner(stack, python_of(old), stock))
    yield Row(name.format("C++"), lambda stack: of_runner_in_cpp(stack, python_of(old), stock))
    yield Row("optimum-executorch's `ExecuTorchModelForCausalLM`", lambda stack: of_optimum(stack, stock), turns=None)


def of_c(stack: ExitStack, artifact: Path, how: str) -> Client:
    """``hybridge.h``, called from C11."""
    program = compiled.c_api(PROGRAMS / "c_api.c", temporary(stack))
    return started(stack, [program, artifact / "model.pte", how])


def of_runner(stack: ExitStack, python: Path, artifact: Path) -> Client:
    """ExecuTorch's runner as the environment of ``python`` has it."""
    program = [python, PROGRAMS / "text_llm_runner.py", artifact / "model.pte", artifact / "tokenizer.json"]
    return in_text(started(stack, [*program, *kernels(artifact)]), artifact)


def of_runner_in_cpp(stack: ExitStack, python: Path, artifact: Path) -> Client:
    """The same runner, called from C++."""
    wheel = compiled.Wheel.of(python)
    program = compiled.text_llm_runner(PROGRAMS / "text_llm_runner.cpp", temporary(stack), wheel)
    files = [artifact / "model.pte", artifact / "tokenizer.json"]
    return in_text(started(stack, [program, *files, wheel.operators, *kernels(artifact)]), artifact)


def of_optimum(stack: ExitStack, artifact: Path) -> Client:
    """transformers' interface of optimum-executorch over an artifact's folder."""
    return started(stack, [python_of("optimum-executorch-1.1.0"), PROGRAMS / "optimum_executorch.py", artifact])


def kernels(artifact: Path) -> list[Path]:
    """Return the library with our kernels, where the artifact calls them."""
    return [library.build()] if open_artifact(artifact).manifest.needs_kernels else []


def in_text(client: Client, artifact: Path) -> Client:
    """A client whose numbers are bytes of text, as one of tokens."""
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
