"""hybridge-cli, the command without Python: the same texts as ``hybridge``, and one file of a program with its libraries."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cross_cli
import pytest
from command_line import SCRIPT, Run
from forgery import TOOLS, with_file
from native_programs import app_links, native_program
from store import demo_folder

import hybridge
from hybridge.runtime.artifact.delegates import Taken
from hybridge.runtime.artifact.drafter import VocabularyDescription
from hybridge.runtime.artifact.manifest import read_manifest
from hybridge.runtime.binding.library import SOURCES
from hybridge.runtime.kernels import compiling
from hybridge.runtime.pinned import library_folder

pytestmark = pytest.mark.slow
PROMPTS = ("def main(", "Tab\t, two  blanks,\na line", "é, ü and 漢字", "<|endoftext|>", "a b a b a b a b a")
OPTIONS: tuple[tuple[str, ...], ...] = (
    (),
    ("--no-speculation",),
    ("--temperature", "0.9", "--top-p", "0.95", "--top-k", "30", "--repetition-penalty", "1.2", "--seed", "11"),
    ("--temperature=1.5", "--min-p=0.05", "--seed=-3"),
    ("--stop", "e", "--stop", "th"),
)


def start(*words: object, given: bytes = b"", program: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    program = native_program("hybridge_cli_sanitized") if program is None else program
    return subprocess.run([program, *map(str, words)], input=given, check=False, capture_output=True, timeout=120)


def output(*words: object, given: bytes = b"") -> str:
    done = start(*words, given=given)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode()


def error(code: int, *words: object, given: bytes = b"") -> str:
    """The message with which a command ends."""
    done = start(*words, given=given)
    said = done.stderr.decode(errors="replace")
    assert done.returncode == code, f"ended with {done.returncode}, not {code}: {said}"
    assert re.fullmatch(r"Error: [^\n]+\.\n", said), said
    assert done.stdout == b""
    return said


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "greedy")
def test_it_gives_the_texts_of_hybridge_run(cli: Run, options: tuple[str, ...]) -> None:
    demo = demo_folder() / "hybridge-demo"
    for prompt in PROMPTS:
        words = ["run", demo, "--prompt", prompt, "--max-new-tokens", 48, *options]
        assert output(*words) == cli(*words).raw, prompt


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["abacus", "bridge"]},
        "n": {"type": "integer"},
    },
    "required": ["name", "kind", "n"],
    "additionalProperties": False,
}


def test_it_follows_grammars_as_hybridge_run_does(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    words = ["run", demo_folder() / "hybridge-demo", "--prompt", "A thing: ", "--max-new-tokens", 90]
    for options in (["--json-schema", tmp_path / "schema.json"], ["--regex", "(yes|no), [a-z]{3,9}!"]):
        for further in ([], ["--no-speculation"], ["--temperature", 1.2, "--seed", 5]):
            assert output(*words, *options, *further) == cli(*words, *options, *further).raw


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (None, "cannot be read"),
        ("[]", "is no JSON schema, which is an object"),
        ('{"type": ', "this JSON schema cannot be followed: no JSON"),
        ('{"uniqueItems": true}', '"uniqueItems" in the schema is not supported'),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(tmp_path: Path, schema: str | None, message: str) -> None:
    if schema is not None:
        (tmp_path / "schema.json").write_text(schema)
    for command in ("run", "chat"):
        words = [command, demo_folder() / "hybridge-demo", *["--prompt", "a"] * (command == "run")]
        assert message in error(2, *words, "--json-schema", tmp_path / "schema.json")
    assert "exclude each other" in error(2, *words, "--json-schema", "a", "--regex", "a")
    assert "a group is not closed" in error(2, *words, "--regex", "(")


def test_a_chat_follows_a_grammar() -> None:
    done = start("chat", demo_folder() / "hybridge-demo", "--regex", "(yes|no)!", given=b"Hello\nAnd now?\n")
    assert re.fullmatch(rb"((yes|no)!\n){2}", done.stdout), done


@pytest.mark.parametrize("drafter", ["--prompt-lookup", "--drafter", "--draft"])
def test_it_drafts_as_hybridge_run_does(cli: Run, drafter: str) -> None:
    demo = demo_folder()
    words: list[object] = ["run", demo / "hybridge-demo", "--prompt", "import ", "--max-new-tokens", 64, "--json", drafter]
    words += [demo / "hybridge-demo-draft"] * (drafter == "--draft")
    mine, other = json.loads(output(*words)), json.loads(cli(*words).raw)
    assert mine["text"] == other["text"]
    assert mine["new_tokens"] == other["new_tokens"] == 64
    assert mine["prompt_tokens"] == other["prompt_tokens"]


def test_a_prompt_comes_from_a_file_or_stdin_without_its_last_line_break(kernels_artifact: Path, tmp_path: Path) -> None:
    wanted = output("run", kernels_artifact, "--prompt", "a b", "--max-new-tokens", 9)
    (tmp_path / "prompt").write_bytes(b"a b\r\n")
    words = ["run", kernels_artifact, "--max-new-tokens", 9]
    assert output(*words, "--prompt-file", tmp_path / "prompt") == wanted
    assert output(*words, "--prompt", "-", given=b"a b\n") == wanted


def test_statistics_go_to_stderr(kernels_artifact: Path) -> None:
    done = start("run", kernels_artifact, "--prompt", "a b", "--max-new-tokens", 9, "--stats")
    assert re.search(rb"prompt +\d+ tokens in [\d.]+ s\nnew +\d+ tokens", done.stderr)
    assert b"tokens in" not in done.stdout


def test_its_options_are_those_of_hybridge(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # names that are too long for a column are cut
    for command in ("run", "chat", "inspect", "bench"):
        mine, theirs = ({*re.findall(r"--[a-z-]+", text)} for text in (output(command, "--help"), cli(command, "--help").out))
        assert mine <= theirs | ({"--stats"} if command == "chat" else set()), mine - theirs
    assert output("--version") == f"hybridge-cli {hybridge.__version__}\n"
    assert all(f"\n  {command} " in output() for command in ("run", "chat", "inspect", "bench"))


def test_inspect_shows_what_the_manifest_says(kernels_artifact: Path, cli: Run) -> None:
    written = json.loads((kernels_artifact / "manifest.json").read_text(encoding="utf-8"))
    assert json.loads(output("inspect", kernels_artifact, "--json")) == written
    first, wanted = output("inspect", kernels_artifact), " ".join(cli("inspect", kernels_artifact).out.split())
    rows = re.findall(r"^(\w+) +(.+)$", first, re.MULTILINE)
    assert [name for name, _ in rows] == ["model", "size", "context", "memory", "drafter", "use"]
    assert [value for _, value in rows if value not in wanted] == []
    shown, wanted = output("inspect", kernels_artifact, "--all"), cli("inspect", kernels_artifact, "--all").out
    for name in ("model type", "max_seq_len", "verify_len", "kernels", "shorter_verify_lens", "bits a weight", "made with"):
        (value,) = re.findall(rf"^{name} +(.+)$", shown, re.MULTILINE)
        assert value in wanted, name


def test_inspect_says_whether_apps_can_chat(kernels_artifact: Path, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    demo = demo_folder() / "hybridge-demo"
    (chats,) = re.findall(r"^chats +(.+)$", output("inspect", demo, "--all"), re.MULTILINE)
    assert chats.startswith("by its chat template (default); ")
    assert chats in cli("inspect", demo, "--all").out
    assert re.search(r"^chats +none: there is no chat template, ", output("inspect", kernels_artifact, "--all"), re.MULTILINE)


def test_inspect_describes_a_draft_vocabulary(tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    folder = Path(shutil.copytree(demo_folder() / "hybridge-demo", tmp_path / "artifact"))
    manifest = read_manifest(folder)
    assert manifest.drafter is not None
    for few in (
        VocabularyDescription(tokens=96, source="self", coverage=0.98765),
        VocabularyDescription(tokens=9, source="first"),
    ):
        described = manifest.model_copy(update={"drafter": dataclasses.replace(manifest.drafter, vocabulary=few)})
        (folder / "manifest.json").write_text(described.to_json(), encoding="utf-8")
        (shown,) = re.findall(r"^drafter +(.+)$", output("inspect", folder, "--all"), re.MULTILINE)[1:]
        assert shown.endswith(f", among {few}")
        assert shown in cli("inspect", folder, "--all").out
    assert str(few) == "9 tokens (the first ones)"


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (("prefill",), "reads prompts from 96 tokens on, in 5 parts of 70.00 MB"),
        (("encode",), "encodes pictures, in 5 parts of 70.00 MB"),
        (("prefill", "encode"), "reads prompts from 96 tokens on and encodes pictures, in 10 parts of 140.00 MB"),
    ],
)
def test_inspect_describes_a_delegate(
    pictures_artifact: Path, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch, taken: tuple[Taken, ...], said: str
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    folder = Path(shutil.copytree(pictures_artifact, tmp_path / "artifact"))
    manifest = read_manifest(folder)
    parts = {"delegates": {"hybridge.OpenvinoBackend": 5}, "delegate_bytes": 70_000_000}
    options = dataclasses.replace(manifest.options, delegate="openvino", delegate_device="NPU", delegate_from=96,
                                  delegate_weights="int8", delegate_methods=taken)  # fmt: skip
    own = {name: manifest.methods[like].model_copy(update=parts) for name, like in options.delegated.items()}
    described = manifest.model_copy(update={"options": options, "methods": manifest.methods | own})
    (folder / "manifest.json").write_text(described.to_json(), encoding="utf-8")
    (shown,) = re.findall(r"^delegate +(.+)$", output("inspect", folder), re.MULTILINE)
    assert shown.startswith(f"openvino:NPU {said}, of ")
    assert shown in " ".join(cli("inspect", folder).out.split())


def test_inspect_finds_an_altered_file(kernels_artifact: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(kernels_artifact, tmp_path / "artifact"))
    content = bytearray((folder / "model.pte").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.pte").write_bytes(content)
    assert "model.pte was altered: its SHA-256 is not the manifest's" in error(1, "inspect", folder)


def test_bench_measures_every_length_of_a_block(kernels_artifact: Path) -> None:
    report = json.loads(output("bench", kernels_artifact, "--context", 8, "--threads", 1, "--json"))
    assert report["threads"] == 1
    assert min(report[name] for name in ("decode_milliseconds", "verify_5_milliseconds", "commit_2_milliseconds")) > 0
    assert report["prefill_tokens_per_second"] > 0
    assert "a context of 95 tokens leaves no room in 96" in error(2, "bench", kernels_artifact, "--context", 95)


LINES = b"""how to read a file
/retry

open a socket
/undo
write to a file
/reset
how to read a file
/continue
/system Be brief.
/set temperature 0.5
/set seed 3
\"\"\"
one line
/and another
\"\"\"
/retry
/tokens
/set heat 1
/walk
"""


def test_a_chat_gives_the_answers_of_hybridge_chat() -> None:
    words = ("chat", demo_folder() / "hybridge-demo", "--max-new-tokens", 40)
    mine, theirs = start(*words, given=LINES), start(*words, given=LINES, program=SCRIPT)
    assert mine.stdout == theirs.stdout
    assert mine.returncode == theirs.returncode == 0
    answers = mine.stdout.splitlines()
    assert len(answers) >= 5
    assert answers.count(answers[0]) == 2, "anew, but not again"
    assert b"1 exchange left" in mine.stderr
    assert b"(ended after 40 tokens; /continue goes on)" in mine.stderr
    assert b"Error: there is no option --heat" in mine.stderr
    assert b"Error: there is no command /walk; /help lists them." in mine.stderr


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = r'<tool_call>\{"name": "weather", "arguments": \{"city": "Oslo"\}\}</tool_call>'
"""The pattern of a call."""


@pytest.fixture(scope="module")
def tools_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools") / "demo"
    return with_file(demo_folder() / "hybridge-demo", folder, "chat_template.jinja", TOOLS)


@pytest.mark.parametrize(
    "options",
    [
        ("--chat",),
        ("--system", "Be brief: <|endoftext|>"),
        ("--template-arg", "tone=loud", "--stop", "e"),
        ("--template-arg", f"tools={json.dumps([WEATHER])}", "--regex", CALL + "[a-z]{5}", "--json"),
    ],
    ids=str,
)
def test_it_answers_messages_as_hybridge_run_does(cli: Run, tools_artifact: Path, options: tuple[str, ...]) -> None:
    words = ["run", tools_artifact, "--prompt", "how to read a file", "--max-new-tokens", 90, *options]
    mine, theirs = output(*words), cli(*words).raw
    if "--json" not in options:
        assert mine == theirs
        return
    said, wanted = json.loads(mine), json.loads(theirs)
    assert said["text"] == wanted["text"]
    calls = [[call["function"] for call in each["tool_calls"]] for each in (said, wanted)]
    assert calls[0] == calls[1] == [{"name": "weather", "arguments": '{"city": "Oslo"}'}]


def test_a_chat_takes_the_results_of_tools(tools_artifact: Path) -> None:
    """A grammar makes the model call a tool twice in each answer."""
    options = ("--template-arg", f"tools={json.dumps([WEATHER])}", "--regex", f"(ab)?{2 * CALL}")
    lines = b"/result no\nHow is it?\n/result rain\n/result sun\n/undo\n/result x\n"
    words = ("chat", tools_artifact, *options)
    done, theirs = start(*words, given=lines), start(*words, given=lines, program=SCRIPT)
    assert done.stdout == theirs.stdout
    for said in (done.stderr.decode(), theirs.stderr.decode()):
        assert said.count('[weather {"city": "Oslo"}]') == 4
        assert said.count("/result TEXT answers a call; 2 wait") == 2
        assert "1 more results" in said
        assert said.count("calls no tool") == 2
        assert "0 exchanges left" in said


def test_a_chat_is_saved_and_gone_on_with(tmp_path: Path) -> None:
    words = ("chat", demo_folder() / "hybridge-demo", "--max-new-tokens", 40, "--temperature", 0.7, "--seed", 5)
    kept, first = tmp_path / "talk", b"how to read a file\n"
    together = output(*words, given=first + b"open a socket\n")
    begun = output(*words, given=first + b"/save %b\n" % bytes(kept))
    assert together == begun + output(*words, "--load", kept, given=b"open a socket\n")
    assert together == begun + output(*words, given=b"/load %b\nopen a socket\n" % bytes(kept))
    (tmp_path / "other").write_bytes(b"no state")
    said = start(*words, given=b"/load %b\n/save\n" % bytes(tmp_path / "other")).stderr.decode()
    assert f"Error: {tmp_path / 'other'} cannot be gone on with" in said
    assert "Error: /save needs the name of a file" in said


@pytest.mark.parametrize(("own", "warning"), [({"fields": {"content": {}}}, ""), ({"fields": 5}, "it has no fields; ans")])
def test_a_response_template_that_is_not_followed_is_named(tmp_path: Path, own: Any, warning: str) -> None:
    demo, name = demo_folder() / "hybridge-demo", "tokenizer_config.json"
    config = {**json.loads((demo / name).read_text(encoding="utf-8")), "response_template": own}
    folder = with_file(demo, tmp_path / "artifact", name, json.dumps(config))
    for words in (("chat", folder), ("run", folder, "--chat", "--prompt", "a")):
        done = start(*words, "--max-new-tokens", 5, given=b"a\n")
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        assert (b"Warning: the tokenizer's response_template cannot be followed: " in done.stderr) == bool(warning)
        assert warning in done.stderr.decode()


def test_ctrl_c_stops_an_answer_and_then_the_chat() -> None:
    words = [native_program("hybridge_cli_sanitized"), "chat", demo_folder() / "hybridge-demo", "--max-new-tokens", "1500"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        assert chat.stderr is not None
        chat.stdin.write(b"how to read a file\n")
        chat.stdin.flush()
        assert os.read(chat.stdout.fileno(), 1)
        chat.send_signal(signal.SIGINT)
        while b"(stopped)" not in (said := chat.stderr.readline()):
            assert said
        chat.send_signal(signal.SIGINT)
        assert chat.wait(60) == 130
        assert b"Interrupted." in chat.stderr.read()


def test_an_artifact_without_a_chat_template_says_why(kernels_artifact: Path) -> None:
    said = error(1, "chat", kernels_artifact)
    assert "there is no chat template, so the model was not made to chat" in said
    assert "exclude each other" in error(2, "chat", kernels_artifact, "--thinking", "--no-thinking")
    demo = demo_folder() / "hybridge-demo"
    assert "the chat cannot begin" in error(2, "chat", demo, "--no-thinking")
    assert "a stop string is empty" in error(2, "chat", demo, "--stop=")


REFUSED: tuple[tuple[int, str, str], ...] = (
    (2, "walk", "there is no command 'walk'"),
    (2, "run", "the argument ARTIFACT is missing"),
    (2, "run OUT", "there is no text to continue"),
    (2, "run OUT more --prompt x", "'more' is one argument too many"),
    (2, "run OUT --prompt x --prompt-file y", "exclude each other"),
    (2, "run OUT --prompt", "--prompt needs a value"),
    (2, "run OUT --prompt x --walk", "there is no option --walk"),
    (2, "run OUT --prompt x --json=3", "--json takes no value"),
    (2, "run OUT --prompt x --max-new-tokens 0", "a whole number from 1"),
    (2, "run OUT --prompt x --max-new-tokens 9x", "not '9x'"),
    (2, "run OUT --prompt x --seed 99999999999999999999", "at most 64 bits"),
    (2, "run OUT --prompt x --temperature nan", "not 'nan'"),
    (2, "run OUT --prompt x --temperature -1", "not '-1'"),
    (2, "run OUT --prompt x --top-p 0", "above 0 and at most 1"),
    (2, "run OUT --prompt x --stop=", "a stop string is empty"),
    (2, "run OUT --prompt x --drafter --no-speculation", "exclude each other"),
    (2, "run OUT --prompt=", "the prompt is empty"),
    (2, "run OUT --prompt x --thinking --no-thinking", "exclude each other"),
    (2, "chat OUT --template-arg tools", "takes a name, an equals sign and a value"),
    (2, "chat OUT --template-arg 1a=2", "takes a name, an equals sign and a value"),
    (2, "chat OUT --template-arg a=1 --template-arg a=2", "a is given twice"),
    (2, "run OUT --prompt-file /nowhere", "/nowhere cannot be read"),
    (1, "run OUT --prompt x --drafter", "has no drafter of its own"),
    (1, "run OUT --prompt x --draft /nowhere", "/nowhere is not a folder"),
    (1, "run / --prompt x", "has no manifest.json"),
)  # fmt: skip


@pytest.mark.parametrize(("code", "words", "message"), REFUSED, ids=[words for _, words, _ in REFUSED])
def test_wrong_usage_is_refused_in_a_sentence(kernels_artifact: Path, code: int, words: str, message: str) -> None:
    assert message in error(code, *(kernels_artifact if word == "OUT" else word for word in words.split()))


def test_a_prompt_that_cannot_be_read_is_refused(kernels_artifact: Path) -> None:
    assert "stdin is not UTF-8 text" in error(2, "run", kernels_artifact, "--prompt", "-", given=b"a\xff")
    assert "the context has 96" in error(1, "run", kernels_artifact, "--prompt", "a b " * 200)


def test_a_draft_model_of_another_vocabulary_is_refused(kernels_artifact: Path, tmp_path: Path) -> None:
    """The other tokenizer is the same but for two tokens, which have each other's ids."""
    draft = Path(shutil.copytree(kernels_artifact, tmp_path / "draft"))
    tokenizer = json.loads((draft / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    first, second = sorted(vocab, key=vocab.get)[10:12]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    rewrite(draft, "tokenizer.json", json.dumps(tokenizer).encode())
    message = error(1, "run", kernels_artifact, "--prompt", "x", "--draft", draft)
    assert "the draft model's tokenizer is another one: token" in message


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of an artifact, and say so in its manifest."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"][name] = {"size": len(content), "sha256": "0" * 64}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_it_replays_golden_steps(kernels_artifact: Path, tmp_path: Path) -> None:
    assert "all right" in (shown := output("validate", kernels_artifact))
    assert "bit-identical to those where it was exported" in shown
    steps = json.loads((kernels_artifact / "golden.json").read_text())
    steps["steps"][2]["rows"][0][0] += steps["largest"]
    folder = with_file(kernels_artifact, tmp_path / "artifact", "golden.json", json.dumps(steps))
    assert "golden steps (" in error(1, "validate", folder)


def with_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        change(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")

    return spoil


def with_fifo(folder: Path) -> None:
    (folder / "model.pte").unlink()
    os.mkfifo(folder / "model.pte")


HOSTILE: dict[str, Callable[[Path], object]] = {
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "no JSON": lambda folder: (folder / "manifest.json").write_bytes(b'{"format_version": 5, \xff'),
    "deep nesting": lambda folder: (folder / "manifest.json").write_bytes(b'{"a":' * 100_000),
    "a folder in its place": lambda folder: ((folder / "manifest.json").unlink(), (folder / "manifest.json").mkdir()),
    "too large": lambda folder: os.truncate(folder / "manifest.json", 9 << 20),
    "another format": with_manifest(lambda manifest: manifest.update(format_version=4)),
    "no files": with_manifest(lambda manifest: manifest.pop("files")),
    "no program": with_manifest(lambda manifest: manifest["files"].pop("model.pte")),
    "a path": with_manifest(lambda manifest: manifest["files"].update({"../model.pte": manifest["files"]["model.pte"]})),
    "a name with a zero": with_manifest(lambda manifest: manifest["files"].update({"model\0.pte": {"size": 1}})),
    "a huge size": with_manifest(lambda manifest: manifest["files"]["model.pte"].update(size=1 << 60)),
    "a file is shorter": lambda folder: os.truncate(folder / "model.pte", 1000),
    "a file is missing": lambda folder: (folder / "tokenizer.json").unlink(),
    "a pipe": with_fifo,
    "a loop of links": lambda folder: ((folder / "model.pte").unlink(), (folder / "model.pte").symlink_to("model.pte")),
    "an empty program": lambda folder: rewrite(folder, "model.pte", b""),
    "half a program": lambda folder: rewrite(folder, "model.pte", (folder / "model.pte").read_bytes()[: 1 << 16]),
    "no tokenizer": lambda folder: rewrite(folder, "tokenizer.json", b"{}"),
}


@pytest.mark.parametrize("spoil", HOSTILE.values(), ids=HOSTILE)
def test_a_spoilt_folder_ends_in_a_sentence(kernels_artifact: Path, tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    folder = Path(shutil.copytree(kernels_artifact, tmp_path / "artifact"))
    spoil(folder)
    error(1, "run", folder, "--prompt", "x")
    done = start("inspect", folder)
    assert done.returncode in (0, 1)
    assert b"Sanitizer" not in done.stderr
    assert b"runtime error" not in done.stderr


def test_a_manifest_with_any_value_of_another_type_ends_nothing_else(kernels_artifact: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(kernels_artifact, tmp_path / "artifact"))
    wanted = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    chosen = random.Random(5)
    for _ in range(25):
        manifest = json.loads(json.dumps(wanted))
        at: Any = manifest
        while True:
            keys = list(at) if isinstance(at, dict) else range(len(at))
            key = chosen.choice(list(keys))
            if not isinstance(at[key], (dict, list)) or not at[key] or chosen.random() < 0.3:
                break
            at = at[key]
        at[key] = chosen.choice([None, -1, 1e300, 2**63, "", "x" * 3000, [], [[1]], {}, {"a": None}, True])
        (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        done = start("inspect", folder)
        assert done.returncode in (0, 1), (manifest, done.stderr)
        assert b"Sanitizer" not in done.stderr
        assert done.returncode == 0 or re.fullmatch(rb"Error: [^\n]+\.\n", done.stderr), done.stderr


# One file


PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <hybridge/hybridge.h>

int main(int count, char** words) {
  std::thread([] { std::puts("a thread"); }).join();
  try {
    throw std::runtime_error("an exception");
  } catch (const std::exception& error) {
    std::puts(error.what());
  }
  for (int i = 0; i < count; i++) std::printf("%s|", words[i]);
  std::printf("\\n%s %s\\n", std::getenv("MINE"), std::getenv("LD_PRELOAD") == nullptr ? "alone" : "preloaded");
  return 7;
}
"""


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program over ExecuTorch's libraries, in one file with them."""
    folder = tmp_path_factory.mktemp("one-file")
    (folder / "main.cpp").write_text(PROGRAM, encoding="utf-8")
    links = [flag for flag in app_links() if "hybridge_kernels" not in flag]
    compile_ = [compiling.compiler(), "-std=c++20", f"-I{SOURCES}", folder / "main.cpp", "-o", folder / "program", *links]
    subprocess.run(list(map(str, compile_)), check=True)
    target = cross_cli.target_of(f"{platform.machine()}-linux")
    return cross_cli.bundle(target, folder / "program", [library_folder()], folder / "one-file")


def test_one_file_starts_with_the_libraries_that_it_carries(one_file: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copy(one_file, tmp_path / "moved"))
    environment = {"MINE": "a value", "LD_PRELOAD": "/nowhere.so", "LD_LIBRARY_PATH": "/nowhere"}
    done = subprocess.run([moved, "a b", ""], env=environment, check=False, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["a thread", "an exception", f"{moved}|a b||", "a value alone"]
    assert done.returncode == 7


def test_one_file_needs_nothing_of_the_system(one_file: Path) -> None:
    """It names no loader, and what is mapped when it runs is from memory and itself."""
    headers = subprocess.run(["readelf", "-lW", one_file], check=True, capture_output=True, text=True).stdout
    assert "INTERP" not in headers
    assert "DYNAMIC" not in headers
    traced = subprocess.run([one_file], env={"LD_DEBUG": "all", "MINE": ""}, check=False, capture_output=True, text=True)
    assert traced.stderr == ""
    without = ["unshare", "--map-root-user", f"--root={one_file.parent}", f"/{one_file.name}"]
    if shutil.which("unshare") and not subprocess.run([*without[:2], "true"], check=False).returncode:
        said = subprocess.run(without, check=False, capture_output=True, text=True)
        assert said.returncode == 1
        assert said.stderr.endswith("there is no /proc here; mount -t proc proc /proc\n")


def test_a_library_that_is_missing_is_named(tmp_path: Path) -> None:
    target = cross_cli.target_of(f"{platform.machine()}-linux")
    library = tmp_path / "libmissing.so"
    subprocess.run(["gcc", "-shared", "-x", "c", "-o", library, "/dev/null", "-Wl,-soname,libmissing.so"], check=True)
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    links = ["-Wl,--no-as-needed", library]
    subprocess.run(["gcc", tmp_path / "main.c", *links, "-o", tmp_path / "program"], check=True)
    assert cross_cli.libraries_of(target, tmp_path / "program", [tmp_path])["libmissing.so"] == library
    with pytest.raises(cross_cli.BuildError, match=r"libmissing\.so is missing"):
        cross_cli.libraries_of(target, tmp_path / "program", [])


def test_a_compiler_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(cross_cli.BuildError, match=r"install Debian's package g\+\+-riscv64-linux-gnu"):
        cross_cli.target_of("riscv64-linux")


@pytest.mark.thorough
def test_the_script_builds_one_file_that_runs_an_artifact(kernels_artifact: Path, tmp_path: Path) -> None:
    script = Path(cross_cli.__file__).with_name("cross-cli")
    done = subprocess.run([script, "-o", tmp_path], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "hybridge-cli"
    assert made.stat().st_size <= 25e6
    words = ("run", kernels_artifact, "--prompt", "a b", "--max-new-tokens", 20)
    assert start(*words, program=made).stdout == start(*words).stdout
