"""ExecuTorch's runtime in Python, as far as checks and profiles use it; what runs an artifact does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def extension() -> Any:
    """Return ExecuTorch's extension module.

    The package's own entry point would import its quantization libraries, which takes seconds.
    """
    from executorch.extension.pybindings import _C

    return _C


def operator_names(runtime: Any) -> frozenset[str]:
    """Return all registered kernels as ``namespace::name.overload``."""
    return frozenset(runtime._get_operator_names())


def load_program(runtime: Any, path: Path) -> Any:
    """Return the program, whose methods share their state if they come from it; it is mapped, not read.

    The default verification accepts flipped bits; this one follows every offset of the file. Raises RuntimeError.
    """
    return runtime._load_program(str(path), program_verification=runtime.Verification.InternalConsistency)


def method_names(program: Any) -> set[str]:
    """Return the names of all methods of a program, constant ones included."""
    return {program.get_method_name(index) for index in range(program.num_methods())}


def call_method(method: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Return a method's outputs where the program has them, until its next call. Raises RuntimeError."""
    outputs: list[Any] = method.call(inputs, clone_outputs=False)
    return outputs


def reset_threads(runtime: Any, count: int) -> None:
    """Replace the process's pool of threads; what was loaded before may still hold the old one and must not run."""
    runtime._unsafe_reset_threadpool(count)
