"""The scripts in examples/python/ run with the embedded model, and show what they say."""

from __future__ import annotations

import io
import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkout import CHECKOUT
from documents import Document
from picture_files import file_of, noise
from public_folders import LFM2_VL_OPTIONS
from store import demo_folder, exported
from tokenizers import Tokenizer

from hybridge.export.cli.embedded import EMBEDDED
from hybridge.runtime import Session
from hybridge.runtime.text.generate import open_text_model

FOLDER = CHECKOUT / "examples" / "python"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def printed() -> str:
    return str(demo_folder() / "hybridge-demo")


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / f"{name}.py"))


def test_a_drafter_of_ones_own_changes_no_token(printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert example("own_drafter")["main"](printed)
    shown = capsys.readouterr().out
    accepted, proposed, _ = (int(word) for word in shown.splitlines()[-2].split() if word.isdecimal())
    assert 0 < accepted <= proposed


def test_a_search_finds_texts_with_the_scores_that_the_model_gives_them(printed: str) -> None:
    script = example("search")
    beams = script["main"](printed)
    session, tokenizer = Session.load(printed), Tokenizer.from_file(f"{printed}/tokenizer.json")
    prompt = tokenizer.encode(script["PROMPT"]).ids
    assert len({tuple(beam.tokens) for beam in beams}) == script["BEAMS"]
    assert [beam.score for beam in beams] == sorted((beam.score for beam in beams), reverse=True)
    for beam in beams:
        session.reset()
        logits = [session.prefill(prompt), *(session.decode(token) for token in beam.tokens[:-1])]
        scores = torch.from_numpy(np.stack(logits)).log_softmax(-1).gather(-1, torch.tensor(beam.tokens)[:, None])
        assert float(scores.sum()) == pytest.approx(beam.score, abs=1e-3)
    session.reset()
    greedy = list(session.generate(prompt, max_new_tokens=script["STEPS"], eos_ids=()))
    session.reset()
    logits = [session.prefill(prompt), *(session.decode(token) for token in greedy[:-1])]
    alone = torch.from_numpy(np.stack(logits)).log_softmax(-1).gather(-1, torch.tensor(greedy)[:, None])
    assert beams[0].score >= float(alone.sum()) - 1e-3, "a wider search finds nothing worse"


def test_structured_answers_fit_their_schema(printed: str) -> None:
    script = example("structured")
    for answer in script["main"](printed):
        assert list(answer) == ["name", "color", "sides"]
        assert answer["color"] in ("red", "green", "blue")
        assert 3 <= answer["sides"] <= 12


def test_a_batch_of_questions_reads_what_they_share_once(
    printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = [{"question": f"{n} + {n}", "choices": ["int", "zzz"], "answer": 0} for n in range(1, 5)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    script = example("evaluate_choices")
    assert script["main"](printed, str(tmp_path / "questions.jsonl")) == 1.0
    read, asked = (int(word) for word in capsys.readouterr().out.splitlines()[-1].partition(";")[2].split() if word.isdecimal())
    assert read < asked / 2
    scorer, fresh = script["Scorer"](printed), script["Scorer"](printed)
    scorer.score(script["EXAMPLES"] + "1 + 1  # ", "int")
    assert scorer.score(script["EXAMPLES"] + "1 + 2  # ", "int") == fresh.score(script["EXAMPLES"] + "1 + 2  # ", "int")


@pytest.mark.thorough
def test_a_checkpoint_is_exported_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for _ in range(2):  # the second time it is there
        monkeypatch.setattr(sys, "stdin", io.StringIO("/undo\nhello there\n/undo\nhello there\n"))
        example("export_and_chat")["main"](str(EMBEDDED), str(out))
        shown = capsys.readouterr()
        answers = [line for line in shown.out.splitlines() if line.startswith("[")]
        assert len(answers) == 2
        assert "Error: there is no message yet" in shown.err
    assert (out / "model.pte").exists()


def test_the_list_of_examples_is_whole() -> None:
    listed = [code.split()[1] for code in Document.read(FOLDER / "README.md").codes if code.startswith("python ")]
    assert sorted(listed) == sorted(f"examples/python/{path.name}" for path in FOLDER.glob("*.py"))


def test_each_picture_is_encoded_once(pictures_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("one.png", "two.png")]
    for seed, path in enumerate(files):
        path.write_bytes(file_of(noise(20, 20, seed=seed)))
    assert len(example("ask_pictures")["main"](str(pictures_artifact), "What?", *map(str, files))) == 4
    assert capsys.readouterr().out.count("1 parts encoded so far") == 4


SOONER = """
import runpy, sys
import hybridge.export.pinned.stock_operators  # which the example imports in another order, for seconds more
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def test_executorchs_own_runner_answers_about_a_picture(pictures_checkpoint: Path, tmp_path: Path) -> None:
    """As many tokens are read as a Session reads of the same prompt and picture."""
    out = exported(pictures_checkpoint, replace(LFM2_VL_OPTIONS, kernels="llm", snapshot_slots=0, image_tokens=(16,)))
    file = tmp_path / "picture.png"
    file.write_bytes(file_of(noise(50, 20)))
    command = [sys.executable, "-c", SOONER, FOLDER / "multimodal_runner.py", out, "What?", file]
    done = subprocess.run(command, check=True, capture_output=True, timeout=300)
    figures = next(line for line in done.stdout.splitlines() if line.startswith(b"PyTorchObserver"))
    model = open_text_model(out)
    text = "<|startoftext|><|im_start|>user\n<|image_start|><|image_end|>What?<|im_end|>\n<|im_start|>assistant\n"
    rows = sum(each < 0 for each in model.pictures.read(file).ids)
    assert (
        json.loads(figures.split(maxsplit=1)[1])["prompt_tokens"] == len(model.tokenizer.encode(text, around=False).ids) + rows
    )
