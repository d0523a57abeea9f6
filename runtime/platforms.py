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
    keep_functions: the linker's flag for a library of which only what begins with ``hybridge_`` can be seen; {folder} has
        ``exports.map``.
    """

    library_suffix: str
    keep_libraries: tuple[str, ...]
    keep_functions: str

    def library(self, name: str) -> str:
        """Return the file name of shared library ``name``."""
        return f"lib{name}{self.library_suffix}"


LINUX = Platform(".so", ("-Wl,--no-as-needed",), "-Wl,--version-script={folder}/exports.map")
MACOS = Platform(".dylib", (), "-Wl,-exported_symbol,_hybridge_*")
HERE = MACOS if platform.system() == "Darwin" else LINUX
