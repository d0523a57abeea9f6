"""The version, which ``hybridge.h`` has: apps compile with it, and CMake and the wheel read it there as well."""

from pathlib import Path

HEADER = Path(__file__).parent / "native/hybridge/hybridge.h"
DEFINITION = "#define HYBRIDGE_VERSION "

__version__ = next(
    line.removeprefix(DEFINITION).strip().strip('"')
    for line in HEADER.read_text(encoding="utf-8").splitlines()
    if line.startswith(DEFINITION)
)
