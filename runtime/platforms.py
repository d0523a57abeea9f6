"""What differs between Linux and macOS where our C++ is compiled, linked and loaded: nobody else asks for the platform.

``backends/zero_pages.py`` alone has a call of Linux's own, and does nothing elsewhere.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Platform:
    """A system's names and flags.

    library_suffix: of a shared library's file.
    keep_libraries: the linker's flags, in front of libraries, that keep those of which nothing names a symbol: operators and
        backends register themselves when they are loaded. macOS's linker keeps all.
    """

    library_suffix: str
    keep_libraries: tuple[str, ...]

    def library(self, name: str) -> str:
        """Return the file name of shared library ``name``."""
        return f"lib{name}{self.library_suffix}"


LINUX = Platform(".so", ("-Wl,--no-as-needed",))
MACOS = Platform(".dylib", ())
HERE = MACOS if platform.system() == "Darwin" else LINUX
