"""A checkpoint's name is that of a folder, or of a model in the hub's local cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkpoint_forms import assert_same_weights, hub_entry, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.errors import NotACheckpointError, UsageError
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.export.source.locate import find_checkpoint, hub_model

ID = "Qwen/Qwen3.5-0.8B"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's local cache, empty."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize("named", ["", " "])
def test_an_empty_name_is_wrong_usage(named: str) -> None:
    assert refusal(named, UsageError).startswith("the checkpoint's name is empty. Give a local checkpoint: a folder with")


def test_a_tilde_is_the_home_folder(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    assert find_checkpoint(f"~/{checkpoint.name}") == checkpoint


def test_a_user_who_does_not_exist_is_named() -> None:
    assert "there is no user ~nobody-of-this-name." in refusal("~nobody-of-this-name/checkpoint")


def test_a_folder_that_is_really_called_tilde_is_taken(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(checkpoint, tmp_path / "~" / "checkpoint")
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("~/checkpoint") == Path("~/checkpoint")


def test_a_model_that_was_not_downloaded_says_how_to(hub_cache: Path) -> None:
    message = refusal(ID)
    assert f"{ID} is not a folder, and the hub's cache {hub_cache} has no such model" in message
    assert "cannot be downloaded (the environment says HF_HUB_OFFLINE" in message
    assert f"or run 'hf download {ID}'" in message


@pytest.mark.parametrize("named", [ID, f"https://hub.example/{ID}", f"https://hub.example/{ID}/tree/main"])
def test_a_model_in_the_hubs_cache_is_found_by_its_id(hub_cache: Path, checkpoint: Path, named: str) -> None:
    entry = hub_entry(hub_cache, ID, {"0a1b": checkpoint}, main="0a1b")
    assert find_checkpoint(named) == entry / "snapshots" / "0a1b"
    assert_same_weights(load_checkpoint(named).model, checkpoint)


@pytest.mark.parametrize(
    ("variable", "value", "place"),
    [("HF_HOME", "{}", "hub"), ("XDG_CACHE_HOME", "{}", "huggingface/hub"), ("HOME", "{}", ".cache/huggingface/hub")],
)
def test_the_cache_is_where_the_hubs_tools_have_it(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, place: str
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value.format(tmp_path))
    entry = hub_entry(tmp_path / place, "gpt", {"0a1b": checkpoint})
    assert find_checkpoint("gpt") == entry / "snapshots" / "0a1b"


def test_a_folder_comes_before_a_model_of_the_same_name(
    hub_cache: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_entry(hub_cache, ID, {"0a1b": checkpoint})
    shutil.copytree(checkpoint, tmp_path / ID)
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint(ID) == Path(ID)


@pytest.mark.slow
@settings(deadline=None)
@given(*[st.text("aZ09_.-", min_size=1, max_size=9).map("m{}".format)] * 2)
def test_an_id_is_known_by_its_form(publisher: str, name: str) -> None:
    named = f"{publisher}/{name}"
    for form in (named, f"https://hub.example/{named}", f"https://hub.example/{named}/tree/v1", f"{named}@v1"):
        model = hub_model(form)
        assert model
        assert (model.id, model.revision) == (named, "v1" if "v1" in form else "main")
    assert hub_model(f"/{named}") is hub_model(f"./{named}") is hub_model(f"~/{named}") is hub_model(f"{named}/x") is None


# The hub's cache


def test_an_entry_of_the_hubs_cache_means_the_snapshot_of_main(checkpoint: Path, tmp_path: Path) -> None:
    entry = hub_entry(tmp_path, ID, {"0a1b": checkpoint, "2c3d": checkpoint}, main="2c3d")
    assert load_checkpoint(entry).source.folder == entry / "snapshots" / "2c3d"


@pytest.mark.parametrize("main", [None, "gone"])
def test_an_only_snapshot_needs_no_main(checkpoint: Path, tmp_path: Path, main: str | None) -> None:
    entry = hub_entry(tmp_path, ID, {"0a1b": checkpoint}, main=main)
    assert find_checkpoint(entry) == entry / "snapshots" / "0a1b"


def test_several_snapshots_without_main_are_listed(checkpoint: Path, tmp_path: Path) -> None:
    entry = hub_entry(tmp_path, ID, {"0a1b": checkpoint, "2c3d": checkpoint})
    message = refusal(entry, NotACheckpointError)
    assert "has 2 snapshots, and refs/main names none of them. Give one:" in message
    assert message.splitlines()[1:] == [f"{entry}/snapshots/0a1b", f"{entry}/snapshots/2c3d"]


def test_an_entry_without_snapshots_says_how_to_download_it(tmp_path: Path) -> None:
    (tmp_path / "models--Qwen--Qwen3.5-0.8B" / "snapshots").mkdir(parents=True)
    assert refusal(tmp_path / "models--Qwen--Qwen3.5-0.8B").endswith(
        f"has no snapshot: download it again with 'hf download {ID}'."
    )


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_without_its_blob_is_named(checkpoint: Path, tmp_path: Path, name: str) -> None:
    link = hub_entry(tmp_path, ID, {"0a1b": checkpoint}) / "snapshots" / "0a1b" / name
    link.resolve().unlink()
    message = refusal(link.parent)
    assert f"{link} is a link to ../../blobs/" in message
    assert f"which does not exist; download it again with 'hf download {ID}'" in message


def test_a_snapshot_without_its_weights_says_how_to_download_it(checkpoint: Path, tmp_path: Path) -> None:
    folder = hub_entry(tmp_path, ID, {"0a1b": checkpoint}) / "snapshots" / "0a1b"
    (folder / "model.safetensors").unlink()
    assert refusal(folder).endswith(
        f"with the weights; the checkpoint is incomplete: download it again with 'hf download {ID}'."
    )
