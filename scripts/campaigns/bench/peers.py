"""The peers' own environment: llama-cpp-python compiled for this machine, and gguf."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGES = ("llama-cpp-python==0.3.36", "gguf==0.19.0", "safetensors>=0.8,<0.9")
_AVX2 = ("-DGGML_NATIVE=OFF", *(f"-DGGML_{name}=ON" for name in ("AVX", "AVX2", "FMA", "F16C", "BMI2")))
INSTRUCTION_SETS = {
    "": ("-DGGML_NATIVE=ON",),
    "avx2": _AVX2,
    "avxvnni": (*_AVX2, "-DGGML_AVX_VNNI=ON"),
    "avx512vnni": (*_AVX2, *(f"-DGGML_{name}=ON" for name in ("AVX512", "AVX512_VNNI", "AVX512_VBMI"))),
}
"""Options by which llama.cpp uses the instructions of our kernels with $HYBRIDGE_ISA; without one, those of the machine."""


def how(isa: str = "") -> str:
    """Return why there is nothing of the environment, and what to do."""
    return f"not installed; run scripts/bench --install-peers{f' --isa {isa}' if isa else ''}"


def python_of(work: Path, isa: str = "") -> Path:
    """Return the interpreter of the environment, whether it is there or not."""
    return _folder(work, isa) / "bin" / "python"


def installed(work: Path, isa: str = "") -> bool:
    """Return whether ``install`` has finished."""
    return (_folder(work, isa) / "installed").exists()


def install(work: Path, isa: str = "") -> None:
    """Make the environment; llama.cpp takes minutes to compile. Raises CalledProcessError where a step fails."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(_folder(work, isa))], check=True)
    options = {"CMAKE_ARGS": " ".join(INSTRUCTION_SETS[isa]), "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)}
    pip = [str(python_of(work, isa)), "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir"]
    subprocess.run([*pip, "--no-binary", "llama-cpp-python", *PACKAGES], check=True, env=os.environ | options)
    (_folder(work, isa) / "installed").write_text("\n".join(PACKAGES))


def _folder(work: Path, isa: str) -> Path:
    return work / (f"peers-{isa}" if isa else "peers")
