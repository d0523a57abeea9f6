"""Put the compiled kernels and ExecuTorch's libraries into a wheel, for the platform that it is built on.

So its users need neither a compiler nor ExecuTorch's own wheel, which wants 800 MB of others: THIRD_PARTY_LICENSES has the
libraries' licenses. Without a compiler or CMake, or with ``HYBRIDGE_PREBUILT=0``, all of it is left out: the wheel is for every
platform then, and what it needs is compiled at first use, against an installed ExecuTorch.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PREBUILT = "hybridge/runtime/kernels/prebuilt"


class PrebuiltKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling for each wheel."""

    def dependencies(self) -> list[str]:
        """Return what is compiled against, in the version that our users install."""
        if not wanted():
            return []
        with (Path(self.root) / "pyproject.toml").open("rb") as file:
            extras = tomllib.load(file)["project"]["optional-dependencies"]
        return [name for name in extras["export"] if name.startswith(("cmake", "executorch"))]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the libraries, or take them from the cache, and name the platform that they are for."""
        if not wanted() or version == "editable":
            return
        sys.path.insert(0, f"{self.root}/src")
        import hybridge

        hybridge.__path__.append(self.root)  # an archive of the sources has no links in src/
        from hybridge.runtime.kernels.compiling import missing_tool

        if missing := missing_tool():
            self.app.display_warning(f"The wheel is without compiled kernels: {missing}.")
            return
        libraries = compiled()
        build_data["force_include"].update({str(path): f"{PREBUILT}/{path.name}" for path in libraries})
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(libraries)}"


def wanted() -> bool:
    """Return whether the wheel is to have compiled libraries."""
    return os.environ.get("HYBRIDGE_PREBUILT") != "0"


def compiled() -> list[Path]:
    """Return our libraries, compiled or from the cache, and ExecuTorch's below them. Raises KernelsError if compiling fails."""
    from hybridge.runtime.binding import bundle

    return [*bundle.libraries()]


def platform_tag(libraries: list[Path]) -> str:
    """Return the platform of a wheel with these libraries: on Linux the oldest C library that they run with (PEP 600)."""
    platform = re.sub(r"\W", "_", sysconfig.get_platform())
    if not platform.startswith("linux"):
        return platform
    versions = [int(minor) for path in libraries for minor in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes())]
    return platform.replace("linux", f"manylinux_2_{max(versions)}")
