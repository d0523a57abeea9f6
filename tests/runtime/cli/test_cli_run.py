"""``hybridge run`` on a real artifact."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from command_line import WITHOUT_TORCH, Run, outcome

from hybridge.runtime.artifact.folder import file_entry
from hybridge.runtime.artifact.manifest import read_manifest
from hybridge.runtime.binding.drafters import PromptLookup
from hybridge.runtime.binding.statistics import GenerationStats
from hybridge.runtime.cli import run as command
from hybridge.runtime.text.generate import GenerationSettings


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
    monkeypatch.setattr(command, "LARGEST_PROMPT", 1000)
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


def test_run_stats_go_to_stderr(cli: Run, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LEAST_SECONDS", 0)
    done = cli("run", artifact, "--prompt", "abc", "--max-new-tokens", 80, "--stats")
    for row in ("3 tokens in", "mean accepted length", "verifies", "speed-up over plain decoding"):
        assert row in done.err
        assert row not in done.out


@pytest.mark.parametrize(("tokens", "more", "least"), [(10, (), 0), (80, ("--no-speculation",), 0), (80, (), 1000)])
def test_run_says_no_speed_up_where_there_is_none_to_say(
    cli: Run, artifact: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, more: tuple[str, ...], least: int
) -> None:
    monkeypatch.setattr("hybridge.runtime.cli.run.LEAST_SECONDS", least)
    command = ("run", artifact, "--prompt", "abc", "--max-new-tokens", tokens, *more)
    done = cli(*command, "--stats")
    assert f"{tokens} tokens, " in done.err
    assert "speed-up" not in done.err
    assert json.loads(cli(*command, "--json").raw)["speed_up"] is None


class SteadySession:
    """A session in which a decode takes a millisecond for each token before it, twice that in every second call.

    A drafter halves the time.
    """

    length = calls = 0

    def reset(self) -> None:
        self.length = 0

    def prefill(self, tokens: list[int]) -> None:
        self.length += len(tokens)

    def checkpoint(self) -> int:
        return self.length

    def resume(self, checkpoint: int) -> None:
        self.length = checkpoint

    def generate(
        self,
        tokens: list[int],
        *,
        max_new_tokens: int,
        eos_ids: tuple[int, ...],
        stats: GenerationStats,
        drafter: object = None,
        sampling: object = None,
    ) -> Iterator[int]:
        self.length += len(tokens)
        self.calls += 1
        for position in range(self.length, self.length + max_new_tokens):
            stats.new_tokens += 1
            seconds = 1e-3 * position * (1 + self.calls % 2) / (1 if drafter is None else 2)
            stats.new_seconds += seconds if stats.new_tokens > 1 else 0
            yield 0


@pytest.mark.parametrize("new", [command.LEAST_TOKENS, 100, 1000])
@pytest.mark.parametrize(("drafter", "gain"), [(None, 1), (PromptLookup(), 2)])
def test_a_speed_up_is_measured_in_turns_at_the_same_positions(new: int, drafter: PromptLookup | None, gain: int) -> None:
    """Plain decoding was timed after the text, on 16 tokens, which gave 0.09 to 3.35 in runs of short texts."""
    prompt, session, stats = [0] * 50, SteadySession(), GenerationStats(verifies=1)
    text = [*prompt, *session.generate(prompt, max_new_tokens=new, eos_ids=(), stats=stats)]
    found = command.compared_with_plain(session, text, stats, GenerationSettings(drafter=drafter))  # type: ignore[arg-type]
    assert found is not None
    assert found.speed_up == pytest.approx(gain, rel=1e-6)


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
def test_run_guesses_with_a_draft_model(cli: Run, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LEAST_SECONDS", 0)
    words = ("run", artifact, "--prompt", "abcabc", "--max-new-tokens", 80, "--json")
    plain, guessed = (json.loads(cli(*words, *way).raw) for way in (("--no-speculation",), ("--draft", artifact)))
    assert guessed["text"] == plain["text"]
    assert plain["verifies"] == 0
    assert (guessed["speed_up"] is None) == (guessed["verifies"] == 0)


SLOW = """
import time
from hybridge.__main__ import main
from hybridge.runtime.binding.session import Session
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


def test_run_refuses_a_folder_that_is_no_draft(cli: Run, artifact: Path, tmp_path: Path) -> None:
    done = cli("run", artifact, "--prompt", "abc", "--draft", tmp_path)
    assert done.code == 1
    assert f"{tmp_path} has no config.json" in done.err


@pytest.mark.slow
def test_run_draws_the_same_for_the_same_seed(cli: Run, artifact: Path) -> None:
    command = ("run", artifact, "--prompt", "abc", "--max-new-tokens", 40, "--temperature", 1.0, "--seed")
    first, again, other = (cli(*command, seed).raw for seed in (1, 1, 2))
    assert first == again != other
    for drafter in ("--no-speculation", "--prompt-lookup"):
        assert cli(*command, 1, drafter).raw == first


def test_a_text_is_sampled_as_the_model_is_meant_to_be(cli: Run, artifact: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(artifact, own)
    (own / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 1.5, "top_k": 7}))
    manifest = read_manifest(own)
    files = {**manifest.files, "generation_config.json": file_entry(own / "generation_config.json")}
    (own / "manifest.json").write_text(manifest.model_copy(update={"files": files}).to_json())
    words = ("--prompt", "abc", "--max-new-tokens", 30, "--seed", 2)
    as_meant, greedy = cli("run", own, *words).raw, cli("run", artifact, *words).raw
    assert as_meant == cli("run", artifact, *words, "--temperature", "1.5", "--top-k", "7").raw != greedy
    for option in (("--greedy",), ("--temperature", "0")):
        assert cli("run", own, *words, *option).raw == greedy
    assert "temperature 1.5, top_k 7" in cli("inspect", own, "--all").out


@pytest.mark.parametrize("options", [("--presence-penalty", "3"), ("--logit-bias", "x"), ("--logit-bias", "4=200")], ids=str)
def test_run_refuses_options_that_make_no_distribution(cli: Run, artifact: Path, options: tuple[str, ...]) -> None:
    done = cli("run", artifact, "--prompt", "abc", *options)
    assert done.code == 2
    assert options[0].lstrip("-").replace("-", "_").split("_")[0] in done.err


def test_run_stops_where_the_context_is_full(cli: Run, artifact: Path) -> None:
    content = json.loads(cli("run", artifact, "--prompt", "x" * 96, "--json").raw)
    assert (content["prompt_tokens"], content["new_tokens"]) == (96, 1)


DRAFTERS = [[], ["--no-speculation"], ["--temperature", "0.8", "--seed", "5"], ["--stop", "b"]]


@pytest.mark.slow
@pytest.mark.parametrize("words", DRAFTERS, ids=" ".join)
def test_a_text_goes_on_without_pytorch_as_with_it(cli: Run, kernels_artifact: Path, tmp_path: Path, words: list[str]) -> None:
    """The engine in Python, which a page is made by, says the same."""
    command = ["run", kernels_artifact, "--prompt", "abcabcabcabc", "--max-new-tokens", "30", *words]
    without = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *map(str, command)], capture_output=True, text=True, check=True, timeout=120
    )
    assert without.stderr == ""
    assert without.stdout == cli(*command, "--html", tmp_path / "page.html").raw
