"""Wrong usage ends with 2, failed work with 1, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_forms import save_adapter
from command_line import Run
from forgery import forge
from tiny import save_checkpoint, tiny_config
from transformers import AutoConfig

from hybridge.runtime.artifact import folder as artifact_module

WRONG_USAGE = {
    "": "[OPTIONS] COMMAND [ARGS]",
    "conjure": "No such command 'conjure'",
    "export {checkpoint}": "Missing option '--output' / '-o'",
    "export {checkpoint} -o {tmp}/out --magic": "No such option: --magic",
    "export {checkpoint} -o {tmp}/out --max-seq-len 0": "Invalid value for '--max-seq-len'",
    "export {checkpoint} -o {tmp}/out --max-seq-len 1000000000000": "max_seq_len is 1000000000000, but must lie between 1 and",
    "export {checkpoint} -o {tmp}/out --prefill-chunk 1000000": "prefill_chunk is 1000000, but must lie between 1 and",
    "export {checkpoint} -o {tmp}/out --verify-len 4,many": "'4,many': expected different numbers of 1 or more with commas",
    "export {checkpoint} -o {tmp}/out --verify-len 8,4,8": "'8,4,8' has a number twice",
    "export {checkpoint} -o {tmp}/out --verify-len 4,1000000": "verify_len is 1000000, but must lie between 1 and",
    "export {checkpoint} -o {tmp}/out --tap-layers all": "'all': expected numbers of layers with commas",
    "export {checkpoint} -o {tmp}/out --tap-layers 1,1": "tap layers [1, 1] name one place twice",
    "export {checkpoint} -o {tmp}/out --tap-layers 3": "tap layer 3 does not exist: the model has 2 layers",
    "export {checkpoint} -o {tmp}/out --mtp --draft-len 65": "draft_len is 65, but must lie between 1 and 64",
    "export {checkpoint} -o {tmp}/out --backend magic": "Invalid value for '--backend'",
    "export {checkpoint} -o {tmp}/out --dtype int1": "Invalid value for '--dtype'",
    "export {checkpoint} -o {checkpoint}": "exists already; it was kept. Choose another -o, or replace it with --force",
    "export {checkpoint} -o {checkpoint} --force": "is not an artifact (it has no manifest.json), so --force does not",
    "export {huge} -o {tmp}/out --max-seq-len 2048": "the state would take",
    "run {artifact}": "there is no text to continue; give --prompt TEXT, --prompt - for stdin, or --prompt-file FILE",
    "run {artifact} --prompt hi --prompt-file {tmp}/x": "--prompt and --prompt-file exclude each other",
    "run {artifact} --prompt-file {tmp}/nowhere": "nowhere cannot be read (No such file or directory); give a text file",
    "run {artifact} --prompt-file {artifact}/model.pte": "model.pte is not UTF-8 text",
    "run {artifact} --prompt hi --chat": "has no chat template",
    "run {artifact} --prompt hi --no-thinking": "has no chat template",
    "run {artifact} --prompt hi --template-arg x": "expected a name, an equals sign and a value",
    "run {artifact} --prompt hi --temperature -1": "temperature is -1.0, but must be 0 (greedy) or lie between",
    "run {artifact} --prompt hi --prompt-lookup --no-speculation": "exclude each other; give one of them",
    "run {artifact} --prompt hi --drafter": "has no drafter of its own; export it with --drafter FOLDER, or with --mtp",
    "chat {artifact}": "has no chat template",
    "chat {artifact} --drafter": "has no drafter of its own",
    "serve {artifact} --chat-template {tmp}/nowhere": "nowhere cannot be read as a chat template: No such file or directory",
    "serve {artifact} --chat-template {other}/bad.jinja": "bad.jinja: the model's chat template is no Jinja template",
    "bench --draft {artifact}": "--draft needs the target before it",
    "run {artifact} --prompt": "Option '--prompt' requires an argument",
    "evaluate {artifact}": "Missing option '--against'",
    "validate {artifact} --against {checkpoint} --report {tmp}": "cannot be written",
    "validate {artifact} --against {checkpoint} --report {tmp}/nowhere/report.json": "cannot be written",
    "export {checkpoint}/config.json -o {tmp}/out": "config.json is a file, not a folder. Give the folder that it is in",
    "export {adapter} -o {tmp}/out": "adapter_config.json is the config of an adapter (LoRA), not of a whole model",
    "export {artifact} -o {tmp}/out": "model.pte is a program for ExecuTorch, such as 'hybridge export' writes",
    "validate {artifact} --against {artifact}": "model.pte is a program for ExecuTorch, such as 'hybridge export' writes",
    "validate {artifact} --against {adapter}": "adapter_config.json is the config of an adapter (LoRA), not of a whole model",
    "validate {artifact} --against {other}": "give the checkpoint that it was exported from",
}


@pytest.fixture
def paths(checkpoint: Path, artifact: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> dict[str, Path]:
    """Return the paths in the commands, by their names there."""
    other, huge, adapter = (tmp_path_factory.mktemp(name) for name in ("other", "huge", "adapter"))
    save_adapter(adapter)
    save_checkpoint(other, tiny_config("qwen3_5_text", num_hidden_layers=2, vocab_size=100))
    (other / "bad.jinja").write_text("{% for message in messages %}")
    tiny_config("llama", head_dim=1 << 20).save_pretrained(huge)
    return {"checkpoint": checkpoint, "artifact": artifact, "other": other, "huge": huge, "adapter": adapter, "tmp": tmp_path}


@pytest.mark.parametrize("command", WRONG_USAGE)
def test_wrong_usage_is_explained_and_writes_nothing(cli: Run, paths: dict[str, Path], command: str) -> None:
    done = cli(*(word.format(**paths) for word in command.split()))
    assert done.code == 2
    assert WRONG_USAGE[command] in (done.err or done.out)
    assert not list(paths["tmp"].iterdir())


@pytest.mark.parametrize("command", ["export {} -o {tmp}/out", "validate {artifact} --against {}"])
def test_an_empty_checkpoint_is_refused(cli: Run, paths: dict[str, Path], command: str) -> None:
    done = cli(*(word.format("", **paths) for word in command.split()))
    assert (done.code, done.out) == (2, "")
    assert "the checkpoint's name is empty" in done.err
    assert not list(paths["tmp"].iterdir())


def test_an_empty_prompt_is_refused(cli: Run, artifact: Path) -> None:
    done = cli("run", artifact, "--prompt", "")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("Error: there are no tokens; give at least one.")


def test_a_prompt_that_does_not_fit_is_refused(cli: Run, artifact: Path) -> None:
    done = cli("run", artifact, "--prompt", "x" * 97)
    assert (done.code, done.out) == (2, "")
    assert "97 tokens do not fit: 0 of max_seq_len = 96 are used" in done.err
    assert "export with a larger --max-seq-len" in done.err


def test_text_needs_a_tokenizer(cli: Run, artifact_copy: Path) -> None:
    (artifact_copy / "tokenizer.json").unlink()
    forge(artifact_copy, lambda content: content["files"].pop("tokenizer.json"))
    done = cli("run", artifact_copy, "--prompt", "hi")
    assert (done.code, done.out) == (2, "")
    assert f"{artifact_copy} has no tokenizer.json" in done.err


# Failed work

FAILED_WORK = {
    "export {tmp}/nowhere -o {tmp}/out": "nowhere is not a folder. Give a local checkpoint",
    "export someone/some-model -o {tmp}/out": "someone/some-model is not a folder",
    "export {tmp} -o {tmp}/out": "has no config.json",
    "export {bert} -o {tmp}/out": "model type 'bert' is not supported",
    "export {bare} -o {tmp}/out": "has no *.safetensors with the weights",
    "export {checkpoint} -o /proc/out": "/proc/out cannot be written",
    "export {checkpoint} -o /sys/out": "no permission to write /sys/out",
    "inspect {tmp}/nowhere": "nowhere is not there. Give an artifact, a GGUF file, a checkpoint's folder, or a model's name on",
    "inspect {tmp}/[/nowhere]": "[/nowhere] is not there",
    "inspect {tmp}/[red]nowhere": "[red]nowhere is not there",
    "run {bare} --prompt hi": "has no *.safetensors with the weights",
    "validate {tmp}/nowhere --against {checkpoint}": "nowhere is not a folder; give the one that 'hybridge export' wrote",
    "validate {checkpoint} --against {checkpoint}": "is not an artifact: it has no manifest.json",
    "validate {artifact} --against {tmp}/nowhere": "nowhere is not a folder. Give a local checkpoint",
}


@pytest.mark.parametrize("command", FAILED_WORK)
def test_failed_work_is_explained_and_writes_nothing(
    cli: Run, paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, command: str
) -> None:
    bert, bare = (tmp_path_factory.mktemp(name) for name in ("bert", "bare"))
    AutoConfig.for_model("bert").save_pretrained(bert)
    tiny_config("llama").save_pretrained(bare)
    done = cli(*(word.format(**paths, bert=bert, bare=bare) for word in command.split()))
    assert (done.code, done.out) == (1, "")
    assert FAILED_WORK[command] in done.err
    assert not list(paths["tmp"].iterdir())


def test_an_interruption_is_130(cli: Run, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(artifact_module, "open_artifact", interrupted)
    assert cli("inspect", artifact).code == 130
