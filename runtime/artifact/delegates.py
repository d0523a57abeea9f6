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

DelegateName = Literal["none", "openvino", "vulkan", "coreml"]
Device = Literal["ALL", "CPU", "GPU", "NPU"]
Stored = Literal["auto", "float32", "float16", "int8", "int4"]
Taken = Literal["prefill", "encode"]

TAKEN: Mapping[Taken, str] = {"prefill": "prefill", "encode": "vision_encoder"}
"""Methods of the CPU that a delegate may have as well, by what it takes; of the encoder of pictures, the longest one."""

DELEGATED: Mapping[str, str] = {f"delegate_{name}": name for name in TAKEN.values()}
"""A delegate's methods, with the CPU's method of the same signature."""


@dataclass(frozen=True, kw_only=True)
class Delegate:
    """A row of the table.

    title: its vendor's name for it. backend: its name in a program: ExecuTorch's after ``hybridge.``, for which the core has a
    backend whose parts sessions share (``native/pte/delegates.cpp``). library: that registers it, beside ExecuTorch's others.
    devices: to compile for; weights: forms of its own copy of them; the first of both is the default.
    package: that compiles for it, or nothing if ExecuTorch does; pip: the name to install it by.
    variable: in which ExecuTorch's backend looks for the path of the vendor's runtime: of ``file`` in the package's folder
    ``folder``. None if the backend has its runtime in it.
    """

    title: str
    backend: str
    library: str
    devices: tuple[Device, ...]
    weights: tuple[Stored, ...]
    package: str = ""
    pip: str = ""
    variable: str = ""
    folder: str = ""
    file: str = ""

    def prepare(self) -> None:
        """Tell the backend where its runtime is, unless the environment says it already or it is not installed."""
        if not self.variable or os.environ.get(self.variable):
            return
        spec = find_spec(self.package)
        for parent in spec.submodule_search_locations or () if spec else ():
            if found := sorted((Path(parent) / self.folder).glob(self.file)):
                os.environ[self.variable] = str(found[0])
                return

    @property
    def is_installed(self) -> bool:
        """Return whether the vendor's package, which compiles for it, is installed, without importing it."""
        return not self.package or find_spec(self.package) is not None

    @property
    def install(self) -> str:
        """Return the line that installs the vendor's package."""
        return f"pip install '{self.pip}'"

    @property
    def missing(self) -> str:
        """Return what to do if the vendor's runtime is not installed; empty if it is, or is a part of the backend."""
        if not self.variable:
            return ""
        path = os.environ.get(self.variable, "")
        is_there = bool(path) and ("/" not in path or Path(path).is_file())
        return "" if is_there else self.install


DELEGATES: Mapping[str, Delegate] = {
    "openvino": Delegate(
        title="OpenVINO",
        backend="hybridge.OpenvinoBackend",
        library="executorch_backend_openvino",
        devices=("CPU", "GPU", "NPU"),
        weights=("float32", "float16", "int8", "int4"),
        package="openvino",
        pip="hybridge[openvino]",
        folder="libs",
        file="*openvino_c.*",
        variable="OPENVINO_LIB_PATH",
    ),
    "vulkan": Delegate(
        title="Vulkan",
        backend="hybridge.VulkanBackend",
        library="vulkan_backend",
        devices=("GPU",),
        weights=("float32", "float16"),
    ),
    "coreml": Delegate(
        title="Core ML",
        backend="hybridge.CoreMLBackend",
        library="coremldelegate",
        devices=("ALL", "CPU", "GPU", "NPU"),
        weights=("float16", "float32", "int8", "int4"),
        package="coremltools",
        pip="hybridge[coreml]",
    ),
}
"""OpenVINO's CPU plugin was run; the others were lowered and not run (docs/accelerators.md)."""
