"""The accelerators that an artifact can be exported for: a table, a row each.

A program names a backend of ExecuTorch; its library's name and folders come from here and from the environment, never from an
artifact.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

DelegateName = Literal["none", "openvino"]
Device = Literal["CPU", "GPU", "NPU"]
Stored = Literal["auto", "float32", "float16", "int8", "int4"]

DELEGATED: Mapping[str, str] = {"delegate_prefill": "prefill"}
"""Methods that a delegate may have, by name, with the CPU's method of the same signature."""


@dataclass(frozen=True, kw_only=True)
class Delegate:
    """A row of the table.

    title: its vendor's name for it. backend: its name in a program. library: that registers it, beside ExecuTorch's others.
    package: that has the vendor's runtime, in its folder ``folder`` the file ``file``, whose path ExecuTorch's backend
    looks for in ``variable``.
    """

    title: str
    backend: str
    library: str
    package: str
    folder: str
    file: str
    variable: str

    def prepare(self) -> None:
        """Tell the backend where its runtime is, unless the environment says it already or it is not installed."""
        if os.environ.get(self.variable):
            return
        spec = find_spec(self.package)
        for parent in spec.submodule_search_locations or () if spec else ():
            if found := sorted((Path(parent) / self.folder).glob(self.file)):
                os.environ[self.variable] = str(found[0])
                return

    @property
    def is_installed(self) -> bool:
        """Return whether the vendor's package, which compiles for it, is installed, without importing it."""
        return find_spec(self.package) is not None

    @property
    def install(self) -> str:
        """Return the line that installs the vendor's package."""
        return f"pip install 'hybridge[{self.package}]'"

    @property
    def missing(self) -> str:
        """Return what to do if the vendor's runtime is not installed; empty if it is."""
        path = os.environ.get(self.variable, "")
        is_there = bool(path) and ("/" not in path or Path(path).is_file())
        return "" if is_there else self.install


DELEGATES: Mapping[str, Delegate] = {
    "openvino": Delegate(
        title="OpenVINO",
        backend="OpenvinoBackend",
        library="executorch_backend_openvino",
        package="openvino",
        folder="libs",
        file="*openvino_c.*",
        variable="OPENVINO_LIB_PATH",
    ),
}
