"""The version, which ``hybridge.h`` has: apps compile with it, and CMake and the wheel read it there as well."""

import functools
import hashlib
from pathlib import Path

HEADER = Path(__file__).parent / "native/hybridge/hybridge.h"
DEFINITION = "#define HYBRIDGE_VERSION "

__version__ = next(
    line.removeprefix(DEFINITION).strip().strip('"')
    for line in HEADER.read_text(encoding="utf-8").splitlines()
    if line.startswith(DEFINITION)
)

EXPORTING = ("cache", "export", "runtime/artifact", "runtime/kernels", "runtime/pack")
"""The rooms whose code decides what an export writes."""


@functools.cache
def code_version() -> str:
    """Return a hash of the code that exports, which has hybridge's version in it; that pins those of the libraries."""
    package, digest = Path(__file__).parents[1], hashlib.sha256(__version__.encode())
    for room in EXPORTING:
        for path in sorted((package / room).rglob("*")):
            if path.suffix in (".py", ".h", ".hpp", ".cpp"):
                digest.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
