"""Differences between Linux and macOS in the names of libraries, and the processor's name.

``exchange`` in files.py alone has another call of Linux's own, and does without it elsewhere.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path


def library_file(name: str) -> str:
    """Return the file name of shared library ``name``."""
    return f"lib{name}{'.dylib' if platform.system() == 'Darwin' else '.so'}"


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
