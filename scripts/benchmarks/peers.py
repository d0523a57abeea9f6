"""The peers' own environment: llama-cpp-python compiled for this machine, gguf, and matplotlib for the plots."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGES = ("llama-cpp-python==0.3.36", "gguf==0.19.0", "safetensors>=0.8,<0.9", "matplotlib>=3.10,<4")
HOW = "not installed; run scripts/bench --install-peers"


def python_of(work: Path) -> Path:
    """The interpreter of the environment, whether it is there or not."""
    return work / "peers" / "bin" / "python"


def installed(work: Path) -> bool:
    """Return whether ``install`` has finished."""
    return (work / "peers" / "installed").exists()


def install(work: Path) -> None:
    """Make the environment; llama.cpp takes minutes to compile. Raises CalledProcessError where a step fails."""
    folder = work / "peers"
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    options = {"CMAKE_ARGS": "-DGGML_NATIVE=ON", "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)}
    pip = [str(python_of(work)), "-m", "pip", "install", "--disable-pip-version-check", "--no-binary", "llama-cpp-python"]
    subprocess.run([*pip, *PACKAGES], check=True, env=os.environ | options)
    (folder / "installed").write_text("\n".join(PACKAGES))
