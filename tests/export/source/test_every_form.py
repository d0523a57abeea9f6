"""Each form of docs/checkpoints.md is exported, validated against what it stands for, and answers a message.

The default run exports a file of llama.cpp's in test_gguf.py and a multimodal folder in test_public_checkpoints.py. How each of
the others is read is in test_quantized_checkpoints.py, test_checkpoint_forms.py and test_adapters.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_forms import hub_entry, save_adapter, save_sharded
from gguf_files import MODELS, TYPES, random_model, save_gguf
from public_folders import save_qwen3_5
from quantized_folders import FORMS, save_mxfp4, save_quantized, save_torchao
from store import exported
from tiny import save_checkpoint, save_tokenizer, tiny_config

from hybridge.export.api import export_model
from hybridge.export.check.oracle import load_oracle
from hybridge.export.check.validate import validate
from hybridge.export.source.checkpoint import CheckpointSource, resolve_checkpoint
from hybridge.runtime import ExportOptions, GenerationStats, Session, open_artifact
from hybridge.runtime.artifact.folder import Artifact
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings

pytestmark = pytest.mark.slow
OPTIONS = ExportOptions(max_seq_len=40, prefill_chunk=5, verify_len=3, snapshot_slots=0, quantize="4w", group_size=8)


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}<end>"
TOKENS = 262
"""Enough for all bytes, and for what a file of llama.cpp's has beside them."""
Save = Callable[[Path], CheckpointSource]
"""Writes into a folder and returns what to export."""


def saved_by(save: Callable[..., object], *arguments: Any, **options: Any) -> Save:
    """Return what writes a checkpoint with this function, then a tokenizer and a chat template."""

    def write(folder: Path) -> CheckpointSource:
        save(folder, *arguments, **options)
        return with_template(folder)

    return write


def gguf_file(folder: Path, architecture: str, kind: TYPES) -> CheckpointSource:
    save_gguf(folder / "model.gguf", architecture, random_model(architecture, vocab_size=TOKENS), kind)
    return resolve_checkpoint(folder / "model.gguf")


def with_adapter(folder: Path) -> CheckpointSource:
    layers = ["linear_attention", "full_attention"]
    save_checkpoint(folder, tiny_config("qwen3_5_text", layer_types=layers, num_hidden_layers=len(layers)))
    save_adapter(folder / "adapter")
    return resolve_checkpoint(with_template(folder).path, (folder / "adapter",))


def multimodal(folder: Path) -> CheckpointSource:
    save_qwen3_5(folder)
    return resolve_checkpoint(folder)


def with_template(folder: Path) -> CheckpointSource:
    save_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return resolve_checkpoint(folder)


EVERY_FORM: dict[str, Save] = {
    "float16": saved_by(save_checkpoint, tiny_config("qwen3"), torch.float16),
    "bfloat16": saved_by(save_checkpoint, tiny_config("qwen3"), torch.bfloat16),
    "shards": saved_by(save_sharded, index=True),
    "shards without an index": saved_by(save_sharded, index=False),
    **{form: saved_by(save_quantized, form, layers=1) for form in FORMS},
    "mxfp4": saved_by(save_mxfp4),
    "torchao": saved_by(save_torchao),
    **{f"gguf {name}": partial(gguf_file, architecture=name, kind=TYPES.Q4_0) for name in MODELS},
    "gguf in 8 bits": partial(gguf_file, architecture="lfm2", kind=TYPES.Q8_0),
    "adapter": with_adapter,
    "multimodal": multimodal,
}


@pytest.mark.thorough
@pytest.mark.parametrize("form", EVERY_FORM)
def test_a_form_exports_validates_and_chats(tmp_path: Path, form: str) -> None:
    (tmp_path / "checkpoint").mkdir()
    source = EVERY_FORM[form](tmp_path / "checkpoint")
    assert_is_the_model(source, exported(source.path, OPTIONS, adapters=source.adapters))


@pytest.mark.thorough
def test_a_model_of_the_hub_does_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "saved", tiny_config("qwen3"))
    hub_entry(tmp_path / "hub", "somebody/a-model", {"0a1b": with_template(tmp_path / "saved").path}, main="0a1b")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    export_model("somebody/a-model", tmp_path / "artifact", OPTIONS)
    assert_is_the_model(resolve_checkpoint("somebody/a-model"), tmp_path / "artifact")
    assert open_artifact(tmp_path / "artifact").manifest.source == "somebody/a-model@0a1b"


def assert_is_the_model(source: CheckpointSource, folder: Path) -> None:
    artifact = open_artifact(folder)
    session = Session.of(artifact)
    oracle = load_oracle(source, artifact.manifest)
    validate(session, oracle, programs=1, prompts=1, new_tokens=4, seed=0, notify=lambda done, total: None).check()
    session.reset()
    assert_chats(artifact, session)


def assert_chats(artifact: Artifact, session: Session) -> None:
    tokenizer = Tokenizer.from_file(artifact.folder / "tokenizer.json")
    conversation = Conversation(session, tokenizer, load_template(artifact), GenerationSettings(max_new_tokens=4))
    stats = GenerationStats()
    said: list[str] = []
    answer = conversation.say("ab", lambda content, reasoning: said.append(reasoning + content), stats)
    assert 1 <= stats.new_tokens <= 4
    asked, answered = conversation.messages
    assert asked == {"role": "user", "content": "ab"}
    assert (answered["role"], answered["content"]) == ("assistant", answer)
    assert answered.get("reasoning_content", "") + answer == "".join(said)
    assert session.tokens == json.loads(conversation.note)["tokens"][: session.length]
