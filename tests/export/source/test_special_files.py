"""A pipe, a socket or a device in the place of a checkpoint's file is refused, and never waited for."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_forms import save_adapter
from tiny import save_checkpoint, save_tokenizer, tiny_config

from hybridge.errors import HybridgeError
from hybridge.export.drafters.folder import open_drafter
from hybridge.export.source.checkpoint import resolve_checkpoint

FILES = (
    *("config.json", "model.safetensors", "model.safetensors.index.json", "generation_config.json", "hf_quant_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("chat_template.jinja", "additional_chat_templates/tools.jinja", "preprocessor_config.json", "adapter_config.json"),
)
SECONDS = 60
"""Far more than a refusal takes; a pipe would be waited for without an end."""


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as each:
        place = os.open(path.parent, os.O_RDONLY)  # a socket's name has 107 bytes at most
        each.bind(f"/proc/self/fd/{place}/{path.name}")
        os.close(place)


def put(make: Callable[[Path], None], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    make(path)


def refused(load: Callable[[], object]) -> str:
    """Return "accepted" or the error of ``load``, which runs in a process of its own with a time limit."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def run() -> None:
        try:
            load()
            theirs.send("accepted")
        except HybridgeError as error:
            theirs.send(str(error))
        except BaseException as error:
            theirs.send(repr(error))

    child = context.Process(target=run)
    child.start()
    try:
        assert ours.poll(SECONDS), "it is waited for"
        return str(ours.recv())
    finally:
        child.kill()
        child.join()


SAYS = "is a pipe, a socket or a device, not a file"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "checkpoint", tiny_config("qwen3"))
    save_tokenizer(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_any_file_of_a_checkpoint(folder: Path) -> None:
    for i, name in enumerate(FILES):
        kept = folder / name
        before = kept.read_bytes() if kept.is_file() else None
        put((pipe, device, listener)[i % 3], kept)
        assert f"{kept} {SAYS}" in refused(lambda: resolve_checkpoint(folder)), name
        kept.unlink()
        if before is not None:
            kept.write_bytes(before)
    resolve_checkpoint(folder)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_file_of_an_adapter(folder: Path, name: str) -> None:
    save_adapter(folder.parent / "adapter")
    put(pipe, folder.parent / "adapter" / name)
    assert SAYS in refused(lambda: resolve_checkpoint(folder, [folder.parent / "adapter"]))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_of_a_drafter(folder: Path, name: str) -> None:
    put(pipe, folder / name)
    assert SAYS in refused(lambda: open_drafter(folder))


def test_another_tokenizer(folder: Path) -> None:
    save_tokenizer(folder.parent)
    put(pipe, folder.parent / "tokenizer.json")
    assert SAYS in refused(lambda: resolve_checkpoint(folder, (), folder.parent))


@pytest.mark.parametrize("name", ["model.gguf", "model.bin"])
def test_the_checkpoint_itself(tmp_path: Path, name: str) -> None:
    put(pipe, tmp_path / name)
    assert SAYS in refused(lambda: resolve_checkpoint(tmp_path / name))
