"""Assumptions of the runtime about ExecuTorch 1.5.1 and onnxruntime 1.31 beyond their documentation.

``hybridge.export.pinned`` is the same for exports. Nothing here imports a library before it is called.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

EXECUTORCH = "1.5.1"
"""The version that all of this holds for, and that pyproject.toml pins."""

XNNPACK = "XnnpackBackend"
"""The delegate's name in plans; ``native/pte/program.cpp`` has it, and its option ``weight_cache_enabled``."""

SCALAR_TYPES: Mapping[int, str] = {0: "uint8", 1: "int8", 4: "int64", 5: "float16", 6: "float32"}
"""ExecuTorch's scalar types by their number in a program and in a TensorInfo, as far as artifacts have them."""

HEADER_MAGIC = b"eh00"
"""Bytes 8 to 12 of a program with a header; its bytes 16 to 24 are the size of the plans, 24 to 32 where segments begin."""


class FieldNumbers(SimpleNamespace):
    """Numbers of a table's fields in ``schema/program.fbs``; a number never changes its meaning there."""


PROGRAM = FieldNumbers(execution_plan=1, segments=4, constant_segment=5, named_data=7)
PLAN = FieldNumbers(name=0, values=2, inputs=3, outputs=4, chains=5, operators=6, delegates=7)
OPERATOR = FieldNumbers(name=0, overload=1)
DELEGATE = FieldNumbers(id=0, processed=1, compile_specs=2)
PROCESSED = FieldNumbers(index=1)
SEGMENT = FieldNumbers(offset=0, size=1)
CONSTANTS = FieldNumbers(segment_index=0)
NAMED_DATA = FieldNumbers(segment_index=1)
SPEC = FieldNumbers(key=0)
CHAIN = FieldNumbers(instructions=2)
INSTRUCTION = FieldNumbers(instr_args_type=0, instr_args=1)
CALL = FieldNumbers(index=0, args=1)
"""Fields of a kernel's call and of a delegate's."""
VALUE = FieldNumbers(val_type=0, val=1)
LIST = FieldNumbers(items=0)
WHOLE_NUMBER = FieldNumbers(int_val=0)
TENSOR_FIELDS = FieldNumbers(scalar_type=0, sizes=2, data_buffer_idx=5, allocation_info=6, extra_tensor_info=9)
EXTRA_TENSOR_INFO = FieldNumbers(fully_qualified_name=1)

KERNEL_CALL, DELEGATE_CALL = 1, 2
"""Kinds of instructions."""
NULL, INT, BOOL, DOUBLE, TENSOR, STRING, INT_LIST, DOUBLE_LIST, BOOL_LIST, TENSOR_LIST, OPTIONAL_TENSOR_LIST = range(1, 12)
"""Kinds of values."""

Kinds = frozenset[int]
OF_TYPES: Mapping[str, Kinds] = {
    "Tensor": Kinds({TENSOR}), "int": Kinds({INT}), "bool": Kinds({BOOL}), "float": Kinds({DOUBLE}), "str": Kinds({STRING}),
    "number": Kinds({INT, DOUBLE, BOOL}), "List[int]": Kinds({INT_LIST}), "List[float]": Kinds({DOUBLE_LIST}),
    "List[bool]": Kinds({BOOL_LIST}), "List[Tensor]": Kinds({TENSOR_LIST}),
    "List[Optional[Tensor]]": Kinds({OPTIONAL_TENSOR_LIST}),
}  # fmt: skip
"""The kinds of values that a kernel takes for an argument of a type, as torch writes types in schemas."""
STOCK_OPERATORS: Mapping[str, str] = {
    "llama": "extension/llm/custom_ops/libcustom_ops_aot_lib.*",
    "quantized_decomposed": "kernels/quantized/libquantized_ops_aot_lib.*",
}
"""Operators by namespace, and where the wheel has the library that registers them with the runtime when torch loads it."""
OPERATORS_WITHOUT_PYTHON: Mapping[str, str] = {"quantized_decomposed": "executorch_kernels_quantized"}
"""The same for a process that has no Python; of others the wheel has none, and they need libpython and torch."""

RUNTIME, THREADS = "executorch", "executorch_threadpool"
"""The wheel's shared libraries with the runtime, its registries of kernels and backends, and the process's pool of threads."""
XNNPACK_LIBRARY = "executorch_backend_xnnpack"
OPERATORS_AND_BACKENDS = ("executorch_kernels_optimized", XNNPACK_LIBRARY)
"""Those that register what programs are made of; nothing names a symbol of theirs."""
COPIED = (RUNTIME, THREADS, *OPERATORS_AND_BACKENDS, *OPERATORS_WITHOUT_PYTHON.values())
"""Libraries that our wheel has copies of, for an environment without ExecuTorch's own wheel, which needs PyTorch."""
COPIES = Path(__file__).parent / "kernels" / "prebuilt"
"""The folder of the copies, beside our own compiled libraries."""


class Argument(NamedTuple):
    """An argument of a kernel: the kinds that it may have, and whether the kernel writes into it."""

    kinds: Kinds
    is_written: bool = False


OPERATOR_TABLE = Path(__file__).parent / "artifact" / "operators.txt"
"""The argument types of each operator's schema, which tests/helpers/references/operator_table.py writes: that needs torch."""


def arguments_of(operator: str) -> list[Argument] | None:
    """Return a kernel's arguments, and its results unless they are among those; None for an operator outside the table.

    operator: ``namespace::name.overload``.
    """
    return _arguments().get(operator)


@cache
def _arguments() -> Mapping[str, list[Argument]]:
    lines = (line.split() for line in OPERATOR_TABLE.read_text(encoding="ascii").splitlines())
    return {name: [Argument(_kinds(each.removesuffix("!")), each.endswith("!")) for each in types] for name, *types in lines}


def _kinds(written: str) -> Kinds:
    """Return the kinds of a type; all kinds for one that no program of ours has."""
    if written.startswith("Optional["):
        return _kinds(written.removeprefix("Optional[").removesuffix("]")) | {NULL}
    return OF_TYPES.get(written, Kinds(range(256)))


def executorch() -> Path:
    """Return the installed package's folder, without importing it. Raises ModuleNotFoundError without it."""
    spec = find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'executorch'", name="executorch")
    return Path(next(iter(spec.submodule_search_locations)))


def executorch_version() -> str | None:
    """Return the version of the ExecuTorch whose libraries this process uses; None without any."""
    return EXECUTORCH if uses_copies() else _installed()


def uses_copies() -> bool:
    """Return whether ExecuTorch's libraries are our copies: its own wheel is not here, or not in the pinned version."""
    return _installed() != EXECUTORCH and any(COPIES.glob(f"*{RUNTIME}.*"))


def _installed() -> str | None:
    try:
        return version("executorch")
    except PackageNotFoundError:
        return None


def library_folder() -> Path:
    """Return the folder of ExecuTorch's shared libraries.

    Where its wheel is installed it is the wheel's, so that a process which imports the extension module has them once.
    """
    return COPIES if uses_copies() else executorch() / "lib"


def operator_libraries(namespaces: Collection[str]) -> list[Path]:
    """Return the wheel's libraries that register the operators of ``namespaces``; none for those that need none."""
    wanted = [pattern for space, pattern in STOCK_OPERATORS.items() if space in namespaces]
    return [path for pattern in wanted for path in sorted(executorch().glob(pattern))]


def operator_libraries_without_python(namespaces: Collection[str]) -> list[Path]:
    """Return the same for a process without Python; none for operators that the wheel has for Python alone."""
    wanted = [name for space, name in OPERATORS_WITHOUT_PYTHON.items() if space in namespaces]
    return [path for name in wanted for path in sorted(library_folder().glob(f"lib{name}.*"))]


ONNX_OPTIONS: Mapping[str, str] = {"session.force_spinning_stop": "1"}  # between two calls the processor rests
"""Session options of onnxruntime by name; it takes names that it does not know without a word."""

FATAL = 4
"""onnxruntime's level of logging: what it has to say comes as an exception too."""


def onnx_dtype(name: str) -> str:
    """Return torch's word for onnxruntime's type, such as ``tensor(float)``."""
    return {"tensor(float)": "float32"}.get(name, name.removeprefix("tensor(").removesuffix(")"))


def onnx_message(error: Exception) -> str:
    """Return the first line of what onnxruntime says, without its codes and the path, which the caller names."""
    lines = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .* failed:)?", "", str(error)).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
