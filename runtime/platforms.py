"""Differences between Linux and macOS in compiling, linking and loading our C++, and the processor's name.

``exchange`` in files.py alone has another call of Linux's own, and does without it elsewhere.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


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


# What a system calls its processor; light, because benchmarks ask it before they load anything.


def processor_name() -> str:
    """Return what the system calls the processor, or the board that it is on."""
    return next(filter(None, (ask() for ask in (_linux_name, _board_name, _apple_name))), platform.machine())


def _linux_name() -> str:
    fields = (line.partition(":") for line in _read("/proc/cpuinfo").splitlines())
    return next((value.strip() for name, _, value in fields if name.strip() in ("model name", "Hardware")), "")


def _board_name() -> str:
    return _read("/proc/device-tree/model").strip("\0\n ")


def _apple_name() -> str:
    command = shutil.which("sysctl")
    asked = [command or "", "-n", "machdep.cpu.brand_string"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() if command else ""  # noqa: S603


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
