"""ExecuTorch 1.5.1: its table of operators is read at import by a parser in Python, a seventh of what an export imports."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from torchgen.yaml_utils import YamlLoader  # type: ignore[import-untyped]  # upstream


class _Parser:
    """Stands for ``ruamel.yaml.YAML``, which ``executorch.exir.dialects.edge._ops`` makes with ``typ="safe"``."""

    def __init__(self, typ: str) -> None:
        assert typ == "safe"

    def load(self, text: str) -> Any:
        return YamlLoader(text).get_single_data()


def read_by_c() -> AbstractContextManager[object]:
    """Let ``executorch.exir``, if it is imported in here first, read the table with PyYAML's parser in C, as torchgen does."""
    return mock.patch("ruamel.yaml.YAML", _Parser)
