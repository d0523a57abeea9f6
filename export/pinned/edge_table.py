"""ExecuTorch 1.5.1: its table of operators is read at import by a parser in Python, a seventh of what an export imports."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import ruamel.yaml
import yaml  # type: ignore[import-untyped]


def read_by_c() -> AbstractContextManager[object]:
    """Let ``executorch.exir``, if it is imported in here first, read the table with PyYAML's parser in C.

    Patches ``ruamel.yaml.YAML``, which ``executorch.exir.dialects.edge._ops`` makes with ``typ="safe"``.
    """
    if not hasattr(yaml, "CSafeLoader"):  # PyYAML was built without it
        return nullcontext()

    class Yaml(ruamel.yaml.YAML):
        def load(self, stream: Any) -> Any:
            return yaml.CSafeLoader(stream).get_single_data() if self.typ == ["safe"] else super().load(stream)

    return mock.patch.object(ruamel.yaml, "YAML", Yaml)
