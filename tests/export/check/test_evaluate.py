"""``hybridge evaluate``: the figures of a real artifact, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from store import exported
from typer.testing import CliRunner, Result

from hybridge.__main__ import tree
from hybridge.errors import UsageError
from hybridge.runtime.artifact.options import ExportOptions

TEXT = "def add(first, second):\n    return first + second\n" * 30


@pytest.fixture(scope="module")
def checkpoint_and_artifact(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint and what an export without options makes of it, as in test_default_recipes.py."""
    folder = Path(shutil.copytree(checkpoint, tmp_path_factory.mktemp("evaluated") / "checkpoint"))
    (folder.parent / "text.txt").write_text(TEXT)
    (folder.parent / "prompts.txt").write_text("def add(\n\nclass Sum:\n")
    return folder, exported(folder, ExportOptions(quantize="auto"))


def evaluate(checkpoint_and_artifact: tuple[Path, Path], *words: object) -> Result:
    checkpoint, artifact = checkpoint_and_artifact
    return CliRunner().invoke(tree(), ["evaluate", str(artifact), "--against", str(checkpoint), *map(str, words)])


@pytest.mark.slow
def test_a_text_gives_figures_by_position(checkpoint_and_artifact: tuple[Path, Path], tmp_path: Path) -> None:
    folder = checkpoint_and_artifact[0].parent
    done = evaluate(
        checkpoint_and_artifact,
        *("--text", folder / "text.txt", "--window", 80, "--tokens", 240, "--json"),
        *("--report", tmp_path / "r.json", "--plot", tmp_path / "kl.svg"),
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "r.json").read_text())
    picture = (tmp_path / "kl.svg").read_text()
    assert "<svg" in picture
    assert "line2d" in picture
    assert (report["texts"], report["whole"]["positions"]) == (3, 240)
    assert [(each["first"], each["last"]) for each in report["ranges"]] == [(0, 63), (64, 79)]
    assert 1e-6 < report["whole"]["kl"] < 0.1
    assert report["whole"]["perplexity"] == pytest.approx(report["whole"]["original_perplexity"], rel=0.1)


@pytest.mark.slow
def test_layers_are_measured_one_by_one(checkpoint_and_artifact: tuple[Path, Path]) -> None:
    done = evaluate(checkpoint_and_artifact, "--tokens", 60, "--window", 60, "--layers", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    costs = {each["name"]: each for each in report["layers"]}
    assert {"model.embed_tokens", "model.layers.0.mlp.down_proj", "model.layers.1.self_attn.q_proj"} <= set(costs)
    assert costs["model.embed_tokens"]["bits"] == 8
    assert all(each["kl"] > 0 for each in costs.values())
    # Small errors of different weights add up, roughly.
    assert 0.3 < sum(each["kl"] for each in costs.values()) / report["whole"]["kl"] < 3


@pytest.mark.slow
def test_prompts_are_answered_and_shown_as_a_table(checkpoint_and_artifact: tuple[Path, Path]) -> None:
    done = evaluate(
        checkpoint_and_artifact, "--prompts", checkpoint_and_artifact[0].parent / "prompts.txt", "--window", 40, "--layers"
    )
    assert done.exit_code == 0, done.output
    assert "over 2 texts" in done.output
    assert "The weights that cost most" in done.output


@pytest.mark.slow
def test_what_cannot_be_measured_is_refused(checkpoint_and_artifact: tuple[Path, Path], tmp_path: Path) -> None:
    short, binary = tmp_path / "short.txt", tmp_path / "binary.txt"
    short.write_text("too short")
    binary.write_bytes(b"\xff\xfe\x00")
    for words, message in (
        (("--text", short, "--window", 64), "and one window is 64"),
        (("--text", binary), "is not UTF-8 text"),
        (("--plot", tmp_path / "kl.txt"), "has no ending of a picture; expected one of .svg, .png, .pdf"),
        (("--text", tmp_path / "none.txt"), "cannot be read"),
        (("--text", short, "--prompts", short), "two kinds of texts"),
        (("--prompts", short, "--window", 5), "prompt 1 has 9 tokens, expected 1 to 4"),
    ):
        done = evaluate(checkpoint_and_artifact, *words)
        assert isinstance(done.exception, UsageError), (words, done.output)
        assert message in str(done.exception)
