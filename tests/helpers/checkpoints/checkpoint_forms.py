"""The forms that people have checkpoints in, whole or not, made of a good one; and what is said of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import save_checkpoint, tiny_config
from transformers import PreTrainedModel

from hybridge.errors import CheckpointError, HybridgeError
from hybridge.export.source.checkpoint import load_checkpoint


def lfs_pointer(path: Path) -> None:
    """Put in the place of a file what 'git clone' leaves there without git-lfs."""
    content = path.read_bytes()
    path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256(content).hexdigest()}\nsize {len(content)}\n"
    )


def save_adapter(folder: Path, base: str | None = "Qwen/Qwen3.5-0.8B") -> None:
    """What peft's ``save_pretrained`` writes into a folder, for one layer."""
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.1.self_attn.q_proj"
    weights = {f"{name}.lora_A.weight": torch.ones(4, 48), f"{name}.lora_B.weight": torch.ones(128, 4)}
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def save_sharded(folder: Path, *, index: bool) -> list[Path]:
    """A checkpoint of several files; returns them in order."""
    save_checkpoint(folder, tiny_config("qwen3"), max_shard_size="60KB")
    if not index:
        (folder / "model.safetensors.index.json").unlink()
    return sorted(folder.glob("*.safetensors"))


def rewritten(path: Path, metadata: dict[str, str]) -> None:
    """The same weights with other metadata."""
    save_file(load_file(path), path, metadata=metadata)


def hub_entry(cache: Path, model_id: str, snapshots: dict[str, Path], main: str | None = None) -> Path:
    """The entry of the hub's cache with a snapshot of links to blobs for each of the checkpoints by revision."""
    entry = cache / f"models--{model_id.replace('/', '--')}"
    (entry / "blobs").mkdir(parents=True)
    for revision, checkpoint in snapshots.items():
        snapshot = entry / "snapshots" / revision
        snapshot.mkdir(parents=True)
        for path in checkpoint.iterdir():
            blob = entry / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
            shutil.copyfile(path, blob)
            (snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")
    if main is not None:
        (entry / "refs").mkdir()
        (entry / "refs" / "main").write_text(main)
    return entry


@contextmanager
def without_permission(path: Path) -> Iterator[None]:
    """Nobody may read ``path``, not even root, for whom files have no permissions: it is someone else for a while."""
    before, user = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    try:
        if user == 0:
            os.seteuid(65534)
        yield
    finally:
        if user == 0:
            os.seteuid(0)
        path.chmod(before)


def refusal(named: str | Path, kind: type[HybridgeError] = CheckpointError) -> str:
    """What is said when the checkpoint is loaded; it must be of this very kind of error."""
    with pytest.raises(kind) as error:
        load_checkpoint(named)
    assert error.type is kind
    return str(error.value)


def edit_json(path: Path, **fields: Any) -> None:
    """Change fields of a JSON object in a file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def assert_same_weights(model: PreTrainedModel, folder: Path) -> None:
    """The model has every weight of the folder."""
    saved = load_file(folder / "model.safetensors")
    ours = model.state_dict()
    assert saved.keys() <= ours.keys()
    assert all(ours[name].equal(weight) for name, weight in saved.items())
