"""What the runtime assumes of ExecuTorch 1.5.1 and onnxruntime 1.31 beyond what they document.

``hybridge.export.pinned`` is the same for exports. Nothing here imports a library before it is called.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

EXECUTORCH = "1.5.1"
"""The version that all of this holds for, and that pyproject.toml pins."""

XNNPACK = "XnnpackBackend"
"""What plans and the runtime call the delegate. ``xnnpack_cache.cpp`` has this name and the option ``weight_cache_enabled``."""

SCALAR_TYPES: Mapping[int, str] = {1: "int8", 4: "int64", 5: "float16", 6: "float32"}
"""ExecuTorch's scalar types by their number in a program and in a TensorInfo, as far as artifacts have them."""

PROGRAM_PLANS, PLAN_NAME, PLAN_VALUES, VALUE_TYPE, VALUE, EXTRA_TENSOR_INFO, FULLY_QUALIFIED_NAME = 1, 0, 2, 0, 1, 9, 1
"""Numbers of fields in a program's tables, as ``schema/program.fbs`` has them; a number never changes its meaning there."""
HEADER_MAGIC = b"eh00"
"""Bytes 8 to 12 of a program with a header, whose bytes 16 to 24 are the size of what stands before the weights."""
TENSOR = 5
"""The kind of a value that is a tensor, in the same file."""

STOCK_OPERATORS: Mapping[str, str] = {
    "llama": "extension/llm/custom_ops/libcustom_ops_aot_lib.*",
    "quantized_decomposed": "kernels/quantized/libquantized_ops_aot_lib.*",
}
"""Operators by namespace, and where the wheel has the library that registers them with the runtime when torch loads it."""
OPERATORS_WITHOUT_PYTHON: Mapping[str, str] = {"quantized_decomposed": "lib/libexecutorch_kernels_quantized.*"}
"""The same for a process that has no Python; of others the wheel has none, and they need libpython and torch."""

MACROS = ("-DC10_USING_CUSTOM_GENERATED_MACROS", "-DET_EVENT_TRACER_ENABLED", "-DET_USE_THREADPOOL")
"""What the wheel's headers must be compiled with, as its CMake package says: its own libraries were.

Without the first they include a file that it lacks; without the others classes have another layout, and loops one thread.
"""

RUNTIME, THREADS = "executorch", "executorch_threadpool"
"""The wheel's shared libraries with the runtime, its registries of kernels and backends, and the process's pool of threads."""
XNNPACK_LIBRARY = "executorch_backend_xnnpack"
OPERATORS_AND_BACKENDS = ("executorch_kernels_optimized", XNNPACK_LIBRARY)
"""Those that register what programs are made of; nothing names a symbol of theirs."""


def extension() -> Any:
    """Return ExecuTorch's extension module.

    The package's own entry point would import its quantization libraries, which takes seconds.
    """
    from executorch.extension.pybindings import _C

    return _C


def operator_names(runtime: Any) -> frozenset[str]:
    """Return all registered kernels as ``namespace::name.overload``."""
    return frozenset(runtime._get_operator_names())


def backend_names(runtime: Any) -> frozenset[str]:
    """Return all registered backends by what plans call them."""
    return frozenset(runtime._get_registered_backend_names())


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


def thread_count(runtime: Any) -> int:
    """Return the number of threads in the process's pool, which the first call makes; else a program does at its own first."""
    return int(runtime._threadpool_get_thread_count())


def reset_threads(runtime: Any, count: int) -> None:
    """Replace the process's pool of threads; what was loaded before may still hold the old one and must not run."""
    runtime._unsafe_reset_threadpool(count)


def executorch() -> Path:
    """Return the installed package's folder, without importing it."""
    spec = find_spec("executorch")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def operator_libraries(namespaces: Collection[str], patterns: Mapping[str, str] = STOCK_OPERATORS) -> list[Path]:
    """Return the wheel's libraries that register the operators of ``namespaces``; none for those that need none."""
    wanted = [pattern for space, pattern in patterns.items() if space in namespaces]
    return [path for pattern in wanted for path in sorted(executorch().glob(pattern))]


def include_folders() -> list[Path]:
    """Return the folders of ExecuTorch's headers, and of the part of c10 that they include by its own name."""
    include = executorch() / "include"
    return [include, include / "executorch/runtime/core/portable_type/c10"]


def library_folder() -> Path:
    """Return the folder of the wheel's shared libraries."""
    return executorch() / "lib"


ONNX_OPTIONS: Mapping[str, str] = {"session.force_spinning_stop": "1"}  # between two calls the processor rests
"""Session options of onnxruntime by name; it takes names that it does not know without a word."""

FATAL = 4
"""onnxruntime's level of logging: what it has to say comes as an exception too."""


def onnx_dtype(name: str) -> str:
    """Return torch's word for onnxruntime's type, such as ``tensor(float)``."""
    return {"tensor(float)": "float32"}.get(name, name.removeprefix("tensor(").removesuffix(")"))


def onnx_message(error: Exception) -> str:
    """Return the first line of what onnxruntime says, without its codes and the path that stands before it already."""
    lines = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .* failed:)?", "", str(error)).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
