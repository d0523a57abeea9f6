"""The main job, as a new user runs it: the embedded model, exported, validated, generating."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import Run
from stock_runner import answers
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import hybridge
from hybridge.cache import HybridCache
from hybridge.export.check.validate import validate_session
from hybridge.export.cli.bench import Artifacts, load
from hybridge.export.cli.embedded import EMBEDDED
from hybridge.export.cli.figures import Subject
from hybridge.export.progress import ExportProgress
from hybridge.export.source.checkpoint import resolve_checkpoint
from hybridge.runtime import Sampling, Session
from hybridge.runtime.artifact.manifest import read_manifest
from hybridge.runtime.measure import PLAIN, contest, sampling_p_value

SCRIPT = Path(sys.executable).parent / "hybridge"
PROMPTS = ["class Point:\n    def __init__(self", "def main(", "The first argument is the name of"]


def run(*arguments: object) -> str:
    done = subprocess.run([SCRIPT, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_shows_text_gain_and_undo(demo: Path, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridge.export.cli.embedded.export_embedded", lambda *_: None)
    monkeypatch.setattr("hybridge.export.cli.demo.CODE_PROMPTS", 1)
    assert_shown(cli("demo", "-o", demo).raw)


@pytest.mark.thorough
def test_the_command_goes_the_whole_way(tmp_path: Path) -> None:
    assert_shown(run("demo", "-o", tmp_path / "demo"))
    assert {path.name for path in tmp_path.iterdir()} == {"demo", "demo-draft"}


def assert_shown(shown: str) -> None:
    assert "def open_file(name" in shown
    assert "bit for bit" in shown
    assert shown.count("the same") == 5, "plain decoding and four ways to draft"
    assert "another one" not in shown


@pytest.mark.thorough
def test_the_artifact_reaches_its_figures(demo: Path) -> None:
    manifest = read_manifest(demo)
    report = validate_session(demo, resolve_checkpoint(EMBEDDED), ExportProgress(), programs=8, seed=0)
    report.check()
    assert report.worst_relative <= 1e-5
    assert report.generation.speculative_matches == report.generation.prompts
    assert manifest.files["model.pte"].size <= manifest.weight_bytes * 1.1 + 1e6
    assert "aten::embedding.out" not in manifest.methods["commit"].operators
    state, rollback = (sum(getattr(layer, f"{use}_bytes") for layer in manifest.layers) for use in ("state", "rollback"))
    assert rollback <= 0.15 * state


@pytest.fixture(scope="module")
def subject(demo: Path) -> Subject:
    """The target and its drafters, all of them trained."""
    return load(Artifacts(demo, *(demo.with_name(f"{demo.name}-{name}") for name in ("draft", "dspark"))))


WAYS = ["prompt lookup", "draft model", "multi-token prediction", "DSpark", "auto"]


@pytest.mark.parametrize("block", [None, pytest.param(4, marks=pytest.mark.thorough), 16])
def test_greedy_text_is_the_same_with_every_drafter(subject: Subject, block: int | None) -> None:
    longest = min(each.verify_len for each in (subject.session, *subject.sessions.values()))
    outcomes = contest(
        subject.session,
        {PLAIN: None} | {way: subject.ways[way] for way in WAYS},
        subject.prompts[:4],
        new_tokens=150,
        sampling=Sampling(),
        block_length=block and min(block, longest),
        sessions=subject.sessions,
    )
    for way in WAYS:
        assert outcomes[way].differing == 0, way
        if block is not None:
            assert outcomes[way].total.accepted > 30, f"trained drafters are right now and then: {way}"
            assert outcomes[way].total.rollbacks > 3, way


@pytest.mark.parametrize("way", WAYS)
def test_text_of_a_seed_is_the_same_with_every_drafter(subject: Subject, way: str, tmp_path: Path) -> None:
    """Whatever the block; and after a state that was saved in the middle."""
    drafter, session = subject.ways[way], subject.sessions.get(way, subject.session)
    sampling, prompt = Sampling(temperature=0.6, top_k=20, seed=5), list(PROMPTS[0].encode())
    subject.session.reset()
    plain = list(subject.session.generate(prompt, max_new_tokens=120, sampling=sampling, drafter=None))
    for block in (2, 4, None):
        session.reset()
        new = session.generate(prompt, max_new_tokens=120, drafter=drafter, sampling=sampling, block_length=block)
        assert list(new) == plain
    session.reset()
    half = list(session.generate(prompt, max_new_tokens=50, drafter=drafter, sampling=sampling))
    session.save(tmp_path / "state")
    session.reset()
    session.load_state(tmp_path / "state")
    rest = list(session.generate(half[-1:], max_new_tokens=70, drafter=drafter, sampling=sampling))
    assert half + rest == plain


@pytest.mark.thorough
def test_the_trained_draft_keeps_the_sampling_distribution(demo: Path) -> None:
    target, draft = (Session.load(folder) for folder in (demo, demo.with_name(f"{demo.name}-draft")))
    p, acceptance = sampling_p_value(target, draft, list(PROMPTS[0].encode()), Sampling(temperature=1.0, top_k=6), 12_000)
    assert p > 0.01
    assert 0.2 < acceptance < 1.0


def test_the_bench_prints_its_figures(demo: Path, cli: Run) -> None:
    done = cli("bench", demo, "--draft", f"{demo}-draft", "--tokens", 350, "--samples", 500, "--json")
    report = json.loads(done.raw)
    assert report["lossless"]
    assert set(report["texts"]["Code, greedy"]) == {PLAIN, *WAYS} - {"DSpark"}  # of one artifact
    assert len(report["figures"]) == 8


def test_load_generates_what_the_checkpoint_does(demo: Path) -> None:
    model, tokenizer = hybridge.load(demo), AutoTokenizer.from_pretrained(demo)
    eager = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32)
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        wanted = eager.generate(**inputs, max_new_tokens=24, do_sample=False, use_cache=False)
        cached = eager.generate(
            **inputs, max_new_tokens=24, do_sample=False, past_key_values=HybridCache.from_config(eager.config, max_seq_len=128)
        )
        assert model.generate(**inputs, max_new_tokens=24).tolist() == cached.tolist() == wanted.tolist()


def test_the_stock_runner_generates_the_same_text(demo: Path) -> None:
    """Whatever the kernels: it finds hybridge's where they are loaded, as an app has them linked."""
    session, tokenizer = Session.load(demo), Tokenizer.from_file(str(demo / "tokenizer.json"))
    steps = [step for prompt in PROMPTS for step in (("reset",), ("generate", prompt, 24))]
    said = answers(demo / "model.pte", demo / "tokenizer.json", {"": steps})[""][1::2]
    for prompt, text in zip(PROMPTS, said, strict=True):
        session.reset()
        tokens = list(session.generate(tokenizer.encode(prompt).ids, max_new_tokens=24))
        assert text == tokenizer.decode(tokens, skip_special_tokens=False)
