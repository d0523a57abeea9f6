"""``hybridge evaluate --image-prompts``: what rounding does to answers about pictures, and to the encoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from picture_files import file_of, noise
from public_folders import LFM2_VL_OPTIONS, QWEN_OPTIONS
from store import exported
from typer.testing import CliRunner, Result

from hybridge.__main__ import tree
from hybridge.errors import HybridgeError
from hybridge.export.check.oracle import load_original, picture_features
from hybridge.export.check.picture_prompts import embedding_errors
from hybridge.export.source.checkpoint import resolve_checkpoint
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.text.generate import open_text_model

OPTIONS = {"lfm2_vl": ("pictures_checkpoint", LFM2_VL_OPTIONS), "qwen3_5": ("grid_checkpoint", QWEN_OPTIONS)}
WINDOW = 88


def evaluate(artifact: Path, checkpoint: Path, *words: object) -> Result:
    return CliRunner().invoke(tree(), ["evaluate", str(artifact), "--against", str(checkpoint), *map(str, words)])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two prompts, of which the second one has two pictures; the larger one is cut into tiles by LFM2-VL."""
    (tmp_path / "small.png").write_bytes(file_of(noise(20, 20)))
    (tmp_path / "large.jpg").write_bytes(file_of(noise(100, 50, seed=1), "JPEG"))
    lines = [{"prompt": "What?", "images": ["small.png"]}, {"prompt": "Where?", "images": ["small.png", "large.jpg"]}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n\n" for line in lines))
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["lfm2_vl", "qwen3_5"])
def test_rounding_costs_what_float32_does_not(request: pytest.FixtureRequest, family: str, prompts: Path) -> None:
    fixture, options = OPTIONS[family]
    checkpoint: Path = request.getfixturevalue(fixture)
    reports = []
    for changes in ({}, {"quantize": "8da4w", "group_size": 8}):
        artifact = exported(checkpoint, replace(options, **changes))
        done = evaluate(artifact, checkpoint, "--image-prompts", prompts, "--window", WINDOW, "--json")
        assert done.exit_code == 0, (done.output, done.exception)
        reports.append(json.loads(done.stdout))
    plain, rounded = reports
    assert plain["texts"] == rounded["texts"] == 2
    assert plain["encoder"]["pictures"] == 3
    assert plain["encoder"]["parts"] >= 3
    assert plain["encoder"]["largest_error"] < 1e-5
    assert plain["whole"]["kl"] < 1e-6
    assert plain["whole"]["top1_agreement"] == 1
    assert 1e-4 < rounded["encoder"]["error"] <= rounded["encoder"]["largest_error"] < 0.2
    assert rounded["whole"]["kl"] > 1e-5
    assert 0 < rounded["whole"]["positions"] == plain["whole"]["positions"]


@pytest.mark.slow
def test_a_table_says_how_far_the_embeddings_are(pictures_artifact: Path, pictures_checkpoint: Path, prompts: Path) -> None:
    done = evaluate(pictures_artifact, pictures_checkpoint, "--image-prompts", prompts, "--window", WINDOW)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "rows of 3 pictures in " in done.output
    assert "parts: relative error " in done.output


def test_a_wrong_encoder_is_seen(pictures_artifact: Path, pictures_checkpoint: Path) -> None:
    """The features of another picture are as far away as random ones."""
    model = open_text_model(pictures_artifact, plain=True)
    original = load_original(resolve_checkpoint(pictures_checkpoint), open_artifact(pictures_artifact).manifest)
    parts = []
    for seed in range(2):
        picture = model.pictures.prepare(file_of(noise(20, 20, seed=seed)))
        assert picture.part(0).embeddings is None
        model.session.prefill_image(picture)
        parts.append(picture.part(0))
    features = picture_features(original, [part.rgb for part in parts])
    assert max(embedding_errors(parts, features)) < 1e-5
    assert min(embedding_errors(parts, features[::-1])) > 0.01


BAD_LINES: Sequence[tuple[str, str]] = (
    ("", "has no prompt; it has one a line"),
    ("hello\n", "line 1 is no prompt with pictures"),
    ('{"prompt": "a"}', "line 1 is no prompt with pictures"),
    ('{"prompt": "a", "images": []}', "line 1 is no prompt with pictures"),
    ('\n{"prompt": 1, "images": ["small.png"]}', "line 2 is no prompt with pictures"),
    ('{"prompt": "a", "images": ["none.png"]}', "none.png cannot be read"),
    ('{"prompt": "a", "images": ["prompts.jsonl"]}', "this is no picture"),
    (json.dumps({"prompt": "a" * 90, "images": ["small.png"]}), "tokens with its pictures, expected at most 87; see --window"),
)


@pytest.mark.parametrize(("lines", "message"), BAD_LINES)
def test_prompts_that_cannot_be_used_are_refused(
    pictures_artifact: Path, pictures_checkpoint: Path, prompts: Path, lines: str, message: str
) -> None:
    prompts.write_text(lines)
    done = evaluate(pictures_artifact, pictures_checkpoint, "--image-prompts", prompts, "--window", WINDOW)
    assert isinstance(done.exception, HybridgeError), done.output
    assert message in str(done.exception)


@pytest.mark.slow
def test_other_texts_and_other_models_are_refused(
    pictures_artifact: Path, kernels_artifact: Path, pictures_checkpoint: Path, prompts: Path
) -> None:
    for artifact, words, message in (
        (kernels_artifact, (), "takes no pictures"),
        (pictures_artifact, ("--layers",), "leave --text, --prompts and --layers out"),
        (pictures_artifact, ("--text", prompts), "leave --text, --prompts and --layers out"),
    ):
        done = evaluate(artifact, pictures_checkpoint, "--image-prompts", prompts, *words)
        assert isinstance(done.exception, HybridgeError), done.output
        assert message in str(done.exception)
