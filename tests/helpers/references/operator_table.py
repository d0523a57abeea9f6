"""Write what every operator takes, by PyTorch's schemas, as runtime/artifact/operators.txt has it.

As a program: ``.venv/bin/python tests/helpers/references/operator_table.py``, after a change of our operators or of
ExecuTorch's version.
"""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from hybridge.export import operators
from hybridge.export.pinned.executorch import extension
from hybridge.imports import quiet
from hybridge.runtime.kernels import library
from hybridge.runtime.pinned import OPERATOR_TABLE, STOCK_OPERATORS, operator_libraries

_WEIGHT = "(Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, int weight_quant_min, int weight_quant_max"
OTHER_SCHEMAS: Mapping[str, str] = {
    "dim_order_ops::_to_dim_order_copy.out": (
        "(Tensor self, *, bool non_blocking=False, int[]? dim_order=None, Tensor(a!) out) -> Tensor(a!)"
    ),
    "dim_order_ops::_empty_dim_order.out": "(int[] size, *, int[]? dim_order=None, Tensor(a!) out) -> Tensor(a!)",
    "quantized_decomposed::embedding_4bit.out": f"{_WEIGHT}, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
    "quantized_decomposed::embedding_byte.out": f"{_WEIGHT}, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
}
"""Of operators that torch knows only once exports are imported; ``functions.yaml`` and ``quantized.yaml`` have them."""


def table() -> str:
    """Return the table of all operators that the runtime has with every library loaded, and whose schemas torch knows."""
    library.load()
    for module in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):  # make ours known to torch
        import_module(module.name)
    import_module("hybridge.export.write.pte")  # and ExecuTorch's exporter some of the stock ones
    for path in operator_libraries(STOCK_OPERATORS):
        torch.ops.load_library(str(path))
    lines = map(line, sorted({*extension()._get_operator_names(), *OTHER_SCHEMAS}))
    return "".join(f"{each}\n" for each in lines if each)


def line(operator: str) -> str:
    """Return an operator's line, nothing for one that torch does not know. Of results that it writes itself none is named."""
    name, _, overload = operator.partition(".")
    try:
        if operator in OTHER_SCHEMAS:
            schema = torch._C.parse_schema(operator + OTHER_SCHEMAS[operator])
        else:
            schema = torch._C._get_schema(name, overload)
    except RuntimeError:
        return ""
    taken = [f"{each.type}{'!' * _is_written(each)}" for each in schema.arguments]
    if not any(each.is_out for each in schema.arguments):
        taken += [f"{each.type}!" for each in schema.returns]
    return " ".join((operator, *taken))


def _is_written(argument: Any) -> bool:
    return bool(argument.is_out or (argument.alias_info is not None and argument.alias_info.is_write))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with quiet():
        Path(OPERATOR_TABLE).write_text(table(), encoding="ascii")
