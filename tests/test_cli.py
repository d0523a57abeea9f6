"""The command line: exit codes, where the output goes, and messages that say what is wrong."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from checkpoint_forms import save_adapter
from command_line import exit_code
from forgery import forge
from tiny import save_checkpoint, tiny_config
from transformers import AutoConfig

from hybridge.export.cli import main, prompt
from hybridge.export.cli.common import out
from hybridge.runtime.artifacts import artifact as artifact_module
from hybridge.runtime.artifacts.manifest import MANIFEST, PROGRAM, read_manifest

SCRIPT = Path(sys.executable).parent / "hybridge"
FRAMES = re.compile(r"[\s│╭╮╰╯─┃]+")


@dataclass(frozen=True)
class Outcome:
    """What a command left behind. The texts have no frames and no line breaks."""

    code: int
    out: str
    err: str
    raw: str = ""


Run = Callable[..., Outcome]


def outcome(code: int, out: str, err: str) -> Outcome:
    assert "Traceback" not in out + err
    return Outcome(code, *(FRAMES.sub(" ", text).strip() for text in (out, err)), raw=out)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        return outcome(exit_code(monkeypatch, main, "hybridge", *arguments), *capsys.readouterr())

    return run


def run_script(*arguments: object) -> Outcome:
    """Run a command as a user does."""
    done = subprocess.run([SCRIPT, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=120)
    return outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def copied(artifact: Path, tmp_path: Path) -> Path:
    """An artifact to be spoilt."""
    return Path(shutil.copytree(artifact, tmp_path / "artifact"))


# As a user runs it


@pytest.mark.slow
def test_the_script_explains_itself() -> None:
    done = run_script("--help")
    assert done.code == 0
    assert all(command in done.out for command in ("export", "validate", "run", "inspect", "demo"))


@pytest.mark.slow
def test_the_script_ends_with_1_and_one_sentence_for_failed_work(tmp_path: Path) -> None:
    done = run_script("inspect", tmp_path / "nowhere")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"Error: {tmp_path}/nowhere is not a folder; give the one that 'hybridge export' wrote."


@pytest.mark.slow
def test_the_script_ends_with_2_for_wrong_usage(tmp_path: Path) -> None:
    done = run_script("export", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "Missing option '--output' / '-o'" in done.err


@pytest.mark.slow
def test_the_script_says_nothing_but_what_was_asked_for(artifact: Path) -> None:
    done = run_script("inspect", artifact, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.raw) == read_manifest(artifact).model_dump(mode="json")


def test_the_command_line_gives_sigterm_back(cli: Run, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert cli("inspect", tmp_path / "nowhere").code == 1
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_export_that_is_stopped_leaves_nothing(checkpoint: Path, tmp_path: Path, number: int, code: int) -> None:
    command = [SCRIPT, "export", checkpoint, "-o", tmp_path / "out", "--max-seq-len", "96"]
    # A shell that runs the tests in the background has them ignore Ctrl-C, and their children with them.
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.iterdir()) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
        time.sleep(2)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert outcome(process.returncode, out, err).code == code
    assert not list(tmp_path.iterdir())


STOPPED_IN_A_CALLBACK = """
import os, signal, sys, time, weakref
from pathlib import Path
from hybridge.export.cli import ended
from hybridge.export.output.output_folder import output_folder

class Key:
    pass

def write():
    with output_folder(Path(sys.argv[1]), force=False) as folder:
        (folder / "half").write_text("written")
        key = Key()
        ref = weakref.ref(key, lambda _: os.kill(os.getpid(), int(sys.argv[2])) or time.sleep(0.1))
        del key
    print("went on")

ended(write)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_writer_that_is_stopped_where_python_swallows_exceptions_leaves_nothing(
    tmp_path: Path, number: int, code: int
) -> None:
    """In a weakref's callback, as PyTorch has many while it traces: an exception there is printed and forgotten, or aborts."""
    command = [sys.executable, "-c", STOPPED_IN_A_CALLBACK, str(tmp_path / "out"), str(int(number))]
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=listen)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (code, "", "Interrupted.")
    assert not list(tmp_path.iterdir())


# Wrong usage: 2

WRONG_USAGE = {
    "": "[OPTIONS] COMMAND [ARGS]",
    "conjure": "No such command 'conjure'",
    "export {checkpoint}": "Missing option '--output' / '-o'",
    "export {checkpoint} -o {tmp}/out --magic": "No such option: --magic",
    "export {checkpoint} -o {tmp}/out --max-seq-len 0": "Invalid value for '--max-seq-len'",
    "export {checkpoint} -o {tmp}/out --max-seq-len -1": "Invalid value for '--max-seq-len'",
    "export {checkpoint} -o {tmp}/out --max-seq-len many": "Invalid value for '--max-seq-len'",
    "export {checkpoint} -o {tmp}/out --max-seq-len 1000000000000": "max_seq_len is 1000000000000, but must lie between 1 and",
    "export {checkpoint} -o {tmp}/out --prefill-chunk 0": "Invalid value for '--prefill-chunk'",
    "export {checkpoint} -o {tmp}/out --prefill-chunk 1000000": "prefill_chunk is 1000000, but must lie between 1 and",
    "export {checkpoint} -o {tmp}/out --verify-len 0": "Invalid value for '--verify-len'",
    "export {checkpoint} -o {tmp}/out --verify-len 4,many": "'4,many': expected different numbers of 1 or more with commas",
    "export {checkpoint} -o {tmp}/out --verify-len 4,8,": "Invalid value for '--verify-len'",
    "export {checkpoint} -o {tmp}/out --verify-len 8,4,8": "'8,4,8' has a number twice",
    "export {checkpoint} -o {tmp}/out --verify-len 4,1000000": "verify_len is 1000000, but must lie between 1 and",
    "export {checkpoint} -o {tmp}/out --tap-layers all": "'all': expected numbers of layers with commas",
    "export {checkpoint} -o {tmp}/out --tap-layers 1,1": "tap layers [1, 1] name one place twice",
    "export {checkpoint} -o {tmp}/out --tap-layers 3": "tap layer 3 does not exist: the model has 2 layers",
    "export {checkpoint} -o {tmp}/out --tap-layers -4": "tap layer -4 does not exist: the model has 2 layers",
    "export {checkpoint} -o {tmp}/out --mtp --draft-len 65": "draft_len is 65, but must lie between 1 and 64",
    "export {checkpoint} -o {tmp}/out --verify-len 1000000": "verify_len is 1000000, but must lie between 1 and",
    "export {checkpoint} -o {tmp}/out --snapshot-slots -1": "Invalid value for '--snapshot-slots'",
    "export {checkpoint} -o {tmp}/out --backend magic": "Invalid value for '--backend'",
    "export {checkpoint} -o {tmp}/out --dtype int1": "Invalid value for '--dtype'",
    "export {checkpoint} -o {checkpoint}": "exists already; it was kept. Choose another -o, or replace it with --force",
    "export {checkpoint} -o {checkpoint} --force": "is not an artifact (it has no manifest.json), so --force does not",
    "export {huge} -o {tmp}/out": "the state would take",
    "run {artifact}": "there is no text to continue; give --prompt TEXT, --prompt - for stdin, or --prompt-file FILE",
    "run {artifact} --prompt hi --prompt-file {tmp}/x": "--prompt and --prompt-file exclude each other",
    "run {artifact} --prompt-file {tmp}/nowhere": "nowhere cannot be read (No such file or directory); give a text file",
    "run {artifact} --prompt-file {artifact}/model.pte": "model.pte is not UTF-8 text",
    "run {artifact} --prompt hi --chat": "has no chat template",
    "run {artifact} --prompt hi --no-thinking": "has no chat template",
    "run {artifact} --prompt hi --template-arg x": "expected a name, an equals sign and a value",
    "run {artifact} --prompt hi --max-new-tokens 0": "Invalid value for '--max-new-tokens'",
    "run {artifact} --prompt hi --temperature -1": "temperature is -1.0, but must be 0 (greedy) or lie between",
    "run {artifact} --prompt hi --top-p 2": "top_p is 2.0, but must be above 0 and at most 1",
    "run {artifact} --prompt hi --top-k -1": "top_k is -1, but must be 0 (all tokens) or more",
    "run {artifact} --prompt hi --min-p 2": "min_p is 2.0, but must lie between 0 and 1",
    "run {artifact} --prompt hi --repetition-penalty 0": "repetition_penalty is 0.0, but must lie between 1e-06 and 1000000",
    "run {artifact} --prompt hi --prompt-lookup --no-speculation": "exclude each other; give one of them",
    "run {artifact} --prompt hi --mtp": "has no drafter of its own; export it with --drafter FOLDER, or with --mtp",
    "chat {artifact}": "has no chat template",
    "chat {artifact} --mtp": "has no drafter of its own",
    "bench --draft {artifact}": "--draft needs the target's artifact before it",
    "export {checkpoint} -o {tmp}/out --max-seq-len 64 --mtp --draft-len 0": "Invalid value for '--draft-len'",
    "run {artifact} --prompt": "Option '--prompt' requires an argument",
    "validate {artifact}": "Missing option '--against'",
    "validate {artifact} --against {checkpoint} --programs -1": "Invalid value for '--programs'",
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
    """What the commands below name."""
    other, huge, adapter = (tmp_path_factory.mktemp(name) for name in ("other", "huge", "adapter"))
    save_adapter(adapter)
    save_checkpoint(other, tiny_config("qwen3_5_text", num_hidden_layers=2, vocab_size=100))
    tiny_config("llama", head_dim=1 << 22).save_pretrained(huge)
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
    assert done.err.endswith("Error: the prompt is empty; give at least one token.")


def test_a_prompt_that_does_not_fit_is_refused(cli: Run, artifact: Path) -> None:
    done = cli("run", artifact, "--prompt", "x" * 97)
    assert (done.code, done.out) == (2, "")
    assert "97 tokens do not fit: 0 of max_seq_len = 96 are used" in done.err
    assert "export with a larger --max-seq-len" in done.err


def test_text_needs_a_tokenizer(cli: Run, copied: Path) -> None:
    (copied / "tokenizer.json").unlink()
    forge(copied, lambda content: content["files"].pop("tokenizer.json"))
    done = cli("run", copied, "--prompt", "hi")
    assert (done.code, done.out) == (2, "")
    assert f"{copied} has no tokenizer.json" in done.err


# Failed work: 1

FAILED_WORK = {
    "export {tmp}/nowhere -o {tmp}/out": "nowhere is not a folder. Give a local checkpoint",
    "export someone/some-model -o {tmp}/out": "someone/some-model is not a folder",
    "export {tmp} -o {tmp}/out": "has no config.json",
    "export {bert} -o {tmp}/out": "model type 'bert' is not supported",
    "export {bare} -o {tmp}/out": "has no *.safetensors with the weights",
    "export {checkpoint} -o /proc/out": "/proc/out cannot be written",
    "export {checkpoint} -o /sys/out": "no permission to write /sys/out",
    "inspect {tmp}/nowhere": "nowhere is not a folder; give the one that 'hybridge export' wrote",
    "inspect {checkpoint}": "is not an artifact: it has no manifest.json",
    "inspect {tmp}/[/nowhere]": "[/nowhere] is not a folder",
    "inspect {tmp}/[red]nowhere": "[red]nowhere is not a folder",
    "run {checkpoint} --prompt hi": "is not an artifact: it has no manifest.json",
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


@pytest.mark.parametrize("command", ["inspect {}", "run {} --prompt hi", "validate {} --against {checkpoint}"])
@pytest.mark.parametrize("name", [PROGRAM, MANIFEST, "tokenizer.json"])
def test_a_damaged_artifact_is_refused(cli: Run, copied: Path, checkpoint: Path, name: str, command: str) -> None:
    (copied / name).write_bytes((copied / name).read_bytes()[:-9])
    done = cli(*(word.format(copied, checkpoint=checkpoint) for word in command.split()))
    assert (done.code, done.out) == (1, "")
    assert f"Error: {copied / name}" in done.err


def test_an_interruption_is_130(cli: Run, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(artifact_module, "open_artifact", interrupted)
    assert cli("inspect", artifact).code == 130


# Work that is done: 0


def test_inspect_shows_what_is_there(cli: Run, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "width", 160)  # nothing is folded
    done = cli("inspect", artifact)
    assert (done.code, done.err) == (0, "")
    manifest = read_manifest(artifact)
    shown = (*manifest.methods, *(layer.kind for layer in manifest.layers), *manifest.files, *manifest.versions)
    assert [name for name in shown if name not in done.out] == []


def test_inspect_json_is_the_manifest(cli: Run, artifact: Path) -> None:
    done = cli("inspect", artifact, "--json")
    content = json.loads(done.raw)
    assert [layer["kind"] for layer in content["layers"]] == ["gated_delta_net", "full_attention"]
    assert set(content["methods"]) == {"prefill", "decode", "verify", "forward", "commit", "reset", "snapshot", "restore"}
    assert content == read_manifest(artifact).model_dump(mode="json")


def test_run_continues_the_prompt_the_same_way_with_and_without_guessing(cli: Run, artifact: Path) -> None:
    command = ("run", artifact, "--prompt", "abcabcabcabc", "--max-new-tokens", 30)
    guessed, plain = cli(*command), cli(*command, "--no-speculation")
    assert (guessed.code, guessed.err) == (0, "")
    assert guessed.raw.startswith("abcabcabcabc")
    assert guessed.raw == plain.raw


def test_run_json_is_the_text_and_what_it_took(cli: Run, artifact: Path) -> None:
    command = ("run", artifact, "--prompt", "abc", "--max-new-tokens", 7)
    content = json.loads(cli(*command, "--json").raw)
    assert (content["prompt_tokens"], content["new_tokens"]) == (3, 7)
    assert content["prompt"] + content["text"] + "\n" == cli(*command).raw


class Piped:
    """stdin as a pipe gives it."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.mark.parametrize("content", [b"abc", b"abc\n", b"abc\r\n"])
def test_run_reads_its_prompt_from_stdin_or_a_file_without_the_end_of_the_last_line(
    cli: Run, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    expected = cli("run", artifact, "--prompt", "abc", "--max-new-tokens", 7).raw
    (tmp_path / "prompt.txt").write_bytes(content)
    for words in (("--prompt", "-"), ("--prompt-file", "-"), ("--prompt-file", tmp_path / "prompt.txt")):
        monkeypatch.setattr(sys, "stdin", Piped(content))
        assert cli("run", artifact, *words, "--max-new-tokens", 7).raw == expected


def test_a_prompt_that_no_artifact_can_read_is_refused_before_it_is_loaded(
    cli: Run, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt, "LARGEST", 1000)
    monkeypatch.setattr(sys, "stdin", Piped(b"x" * 1001))
    done = cli("run", artifact, "--prompt", "-")
    assert done.code == 2
    assert "give a shorter text" in done.err


def test_run_writes_its_page_beside_the_text(cli: Run, artifact: Path, tmp_path: Path) -> None:
    command = ("run", artifact, "--prompt", "abcabcabc", "--max-new-tokens", 30)
    plain, done = cli(*command), cli(*command, "--html", tmp_path / "page.html")
    assert (done.code, done.raw, done.err) == (0, plain.raw, "")
    page = (tmp_path / "page.html").read_text()
    assert "9 tokens in" in page
    assert "</html>" in page


def test_run_stats_go_to_stderr(cli: Run, artifact: Path) -> None:
    done = cli("run", artifact, "--prompt", "abc", "--max-new-tokens", 7, "--stats")
    for row in ("3 tokens in", "mean accepted length", "verifies", "speed-up over plain decoding"):
        assert row in done.err
        assert row not in done.out


@pytest.mark.slow
def test_run_ends_before_a_stop_string_and_a_stop_string_that_never_comes_changes_nothing(cli: Run, artifact: Path) -> None:
    command = ("run", artifact, "--prompt", "abc", "--max-new-tokens", 30, "--json")
    text = json.loads(cli(*command).raw)["text"]
    never = json.loads(cli(*command, "--stop", "\u00e9\u00e9").raw)["text"]
    stopped = json.loads(cli(*command, "--stop", text[7:9]).raw)["text"]
    assert never == text
    assert stopped == text[: text.find(text[7:9])]
    assert cli(*command, "--stop", "").code == 2


@pytest.mark.slow
def test_run_guesses_with_a_draft_model(cli: Run, artifact: Path) -> None:
    command = ("run", artifact, "--prompt", "abcabc", "--max-new-tokens", 40, "--json")
    plain, guessed = (json.loads(cli(*command, *way).raw) for way in (("--no-speculation",), ("--draft", artifact)))
    assert guessed["text"] == plain["text"]
    assert plain["verifies"] == 0
    assert guessed["speed_up"] > 0


SLOW = """
import time
from hybridge.export.cli import main
from hybridge.runtime.sessions.session import Session
decode = Session.decode
Session.decode = lambda self, token: (time.sleep(0.2), decode(self, token))[1]
main()
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_run_with_what_was_written_and_130(artifact: Path) -> None:
    command = [sys.executable, "-c", SLOW, "run", artifact, "--prompt", "abc", "--no-speculation"]
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen
    ) as process:
        assert process.stdout is not None
        written = process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    assert written.startswith("abc")
    assert rest.endswith("\n")
    assert len(rest) < 40
    assert outcome(process.returncode, "", err).code == 130


def test_run_refuses_a_folder_that_is_no_draft(cli: Run, artifact: Path, checkpoint: Path) -> None:
    done = cli("run", artifact, "--prompt", "abc", "--draft", checkpoint)
    assert done.code == 1
    assert "is not an artifact" in done.err


@pytest.mark.slow
def test_run_draws_the_same_for_the_same_seed(cli: Run, artifact: Path) -> None:
    command = ("run", artifact, "--prompt", "abc", "--max-new-tokens", 40, "--temperature", 1.0, "--seed")
    first, again, other = (cli(*command, seed).raw for seed in (1, 1, 2))
    assert first == again != other


def test_run_stops_where_the_context_is_full(cli: Run, artifact: Path) -> None:
    content = json.loads(cli("run", artifact, "--prompt", "x" * 96, "--json").raw)
    assert (content["prompt_tokens"], content["new_tokens"]) == (96, 1)


# Validation


@pytest.mark.slow
def test_a_validation_that_passes_reports_and_ends_with_0(cli: Run, artifact: Path, checkpoint: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    page = tmp_path / "page.html"
    done = cli("validate", artifact, "--against", checkpoint, "--programs", 2, "--report", report, "--html", page, "--json")
    assert done.code == 0
    assert "Passed" in page.read_text()
    assert "<circle" in page.read_text()
    content = json.loads(done.raw)
    assert content == json.loads(report.read_text())
    assert content["passed"]
    assert content["first_divergence"] is None
    assert sum(content["operations"].values()) == 80


@pytest.mark.slow
def test_a_validation_that_fails_ends_with_1_and_names_the_first_divergence_and_the_seed(
    cli: Run, artifact: Path, checkpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    save_checkpoint(other, AutoConfig.from_pretrained(checkpoint), seed=1)
    done = cli("validate", artifact, "--against", other, "--programs", 1, "--seed", 7)
    assert done.code == 1
    assert "FAILED" in done.out
    assert "First divergence: program 0 of seed 7, at position" in done.out
    assert "Error: the artifact disagrees with the eager model" in done.err
    assert "Repeat with --seed 7" in done.err


@pytest.mark.slow
def test_a_validation_that_fails_is_reported_as_json_too(cli: Run, artifact: Path, checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_checkpoint(other, AutoConfig.from_pretrained(checkpoint), seed=1)
    done = cli("validate", artifact, "--against", other, "--programs", 1, "--json")
    content = json.loads(done.raw)
    assert (done.code, content["passed"]) == (1, False)
    assert content["first_divergence"]["operations"]
