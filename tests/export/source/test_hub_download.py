"""A model that is not in the hub's cache is downloaded: the files that are read, at one commit, which the manifest records."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from checkpoint_forms import hub_entry
from huggingface_hub.errors import OfflineModeIsEnabled

from hybridge.errors import CheckpointError, NotACheckpointError
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.export.source.locate import find_checkpoint
from hybridge.runtime.pack.gguf import hub_origin

ID, COMMIT = "LiquidAI/LFM2-1.2B", "0a1b2c"
FILES = [
    ".gitattributes", "LICENSE", "README.md", "adapter_config.json", "chat_template.jinja", "config.json",
    "consolidated.safetensors", "generation_config.json", "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors", "model.safetensors.index.json", "onnx/model_q4.onnx", "original/params.json",
    "preprocessor_config.json", "pytorch_model.bin", "tokenizer.json", "tokenizer_config.json",
]  # fmt: skip


class Hub:
    """Stands for the network: what was asked of it, and a cache that fills."""

    def __init__(self, cache: Path, checkpoint: Path, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache, self.checkpoint, self.files = cache, checkpoint, files
        self.asked: list[Any] = []
        monkeypatch.setenv("HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(model_info=self.info))
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot)

    def info(self, name: str, revision: str) -> SimpleNamespace:
        self.asked.append((name, revision))
        return SimpleNamespace(sha=COMMIT, siblings=[SimpleNamespace(rfilename=each) for each in self.files])

    def snapshot(self, name: str, revision: str, allow_patterns: list[str], cache_dir: Path) -> str:
        self.asked.append((name, revision, allow_patterns, cache_dir))
        folder = hub_entry(cache_dir, name, {revision: self.checkpoint}, main=revision) / "snapshots" / revision
        for file in allow_patterns if allow_patterns[0].endswith(".gguf") else ():
            (folder / file).touch()
        return str(folder)


@pytest.fixture
def hub(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(tmp_path / "hub", checkpoint, FILES, monkeypatch)


def test_the_files_that_are_read_are_downloaded_and_no_others(hub: Hub) -> None:
    found = find_checkpoint(ID)
    assert found == hub.cache / "models--LiquidAI--LFM2-1.2B" / "snapshots" / COMMIT
    asked, (name, revision, files, _) = hub.asked
    assert asked == (ID, "main")
    assert (name, revision) == (ID, COMMIT)
    assert files == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_what_is_in_the_cache_needs_no_network(hub: Hub) -> None:
    first, second = find_checkpoint(ID), find_checkpoint(ID)
    assert first == second
    assert len(hub.asked) == 2


def test_the_commit_is_recorded(hub: Hub) -> None:
    assert load_checkpoint(ID).source.origin == f"{ID}@{COMMIT}"
    assert hub_origin(hub.checkpoint) is None


def test_a_revision_is_asked_for(hub: Hub) -> None:
    find_checkpoint(f"{ID}@v2.5")
    assert hub.asked[0] == (ID, "v2.5")
    assert find_checkpoint(f"{ID}@{COMMIT}").name == COMMIT
    assert len(hub.asked) == 2


def test_a_file_of_a_model_is_downloaded_alone(hub: Hub) -> None:
    hub.files.append("LFM2-1.2B-Q4_0.gguf")
    assert find_checkpoint(f"{ID}/LFM2-1.2B-Q4_0.gguf").name == "LFM2-1.2B-Q4_0.gguf"
    assert hub.asked[1][2] == ["LFM2-1.2B-Q4_0.gguf"]
    with pytest.raises(NotACheckpointError, match=r"has no file other\.gguf. It has: LFM2-1.2B-Q4_0\.gguf\."):
        find_checkpoint(f"{ID}/other.gguf")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["config.json", "a-Q4_0.gguf", "a-Q8_0.gguf"], rf"has GGUF files\. Give one:\n{ID}/a-Q4_0\.gguf\n{ID}/a-Q8_0\.gguf"),
        (["config.json", "pytorch_model.bin"], r"has no \*\.safetensors with weights; take a checkpoint that has them"),
    ],
)
def test_a_model_without_weights_that_are_read_is_told(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], message: str
) -> None:
    Hub(tmp_path / "hub", checkpoint, files, monkeypatch)
    with pytest.raises(NotACheckpointError, match=message):
        find_checkpoint(ID)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OfflineModeIsEnabled("offline"), "the environment says HF_HUB_OFFLINE"),
        (ConnectionError("Name or service not known"), "the hub cannot be reached: Name or service not known"),
    ],
)
def test_without_a_network_the_reason_is_told(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(hub, "info", fail)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(model_info=fail))
    with pytest.raises(CheckpointError, match=message) as refused:
        find_checkpoint(ID)
    assert f"Give the folder that it is in, or run 'hf download {ID}'" in str(refused.value)
