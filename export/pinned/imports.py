"""torch 2.13 and ExecuTorch 1.5.1: what an export never uses of them, and imports all the same.

ExecuTorch reads its table of operators by a parser in Python, and two modules of ``torch._inductor`` are imported for a
function each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

from torchgen.yaml_utils import YamlLoader  # type: ignore[import-untyped]  # upstream

from hybridge.export.pinned.mutations import put_back


class _Parser:
    """Stands for ``ruamel.yaml.YAML``, which ``executorch.exir.dialects.edge._ops`` makes with ``typ="safe"``."""

    def __init__(self, typ: str) -> None:
        assert typ == "safe"

    def load(self, text: str) -> Any:
        return YamlLoader(text).get_single_data()


def read_by_c() -> AbstractContextManager[object]:
    """Let ``executorch.exir``, if it is imported in here first, read the table with PyYAML's parser in C, as torchgen does."""
    return mock.patch("ruamel.yaml.YAML", _Parser)


def without_rewrites() -> AbstractContextManager[None]:
    """Let ``torch.export``'s pass for calls that write to arguments take ``put_back``, if it is imported in here first."""
    return _instead_of("torch._inductor.fx_passes.post_grad", decompose_auto_functionalized=put_back)


def without_lowerings() -> AbstractContextManager[None]:
    """Let ExecuTorch's operators, if they are imported in here first, register nothing for ``torch.compile``."""
    return _instead_of("torch._inductor.lowering", lowerings={}, register_lowering=lambda operator: lambda function: function)


@contextmanager
def _instead_of(name: str, **contents: object) -> Iterator[None]:
    """Let another module stand for the one of that name inside. Modules that were imported inside keep what they took of it."""
    stand_in, before = ModuleType(name), sys.modules.get(name)
    vars(stand_in).update(contents)
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
