"""ExecuTorch's own MultimodalRunner over an artifact with pictures: the C++ of its wheel, and texts as a Session's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_files import noise
from public_folders import LFM2_VL_OPTIONS, LFM3_VL_OPTIONS, save_lfm2_vl, save_lfm3_vl
from stock_runner import MULTIMODAL, answers, ids_of_words, save_words
from store import exported

from hybridge.runtime import Session
from hybridge.runtime.artifact.manifest import Manifest, read_manifest
from hybridge.runtime.artifact.pictures import StockSizes
from hybridge.runtime.binding.pictures import Picture

pytestmark = pytest.mark.thorough
"""test_examples.py has the runner about one picture."""

NEW = 12
FORMS: dict[str, tuple[Callable[[Path], None], Any]] = {
    "lfm2_vl": (save_lfm2_vl, LFM2_VL_OPTIONS),
    "lfm3_vl": (save_lfm3_vl, LFM3_VL_OPTIONS),
}
SQUARES = {"square": (4, 4), "low": (2, 3), "one": (1, 1), "a line": (1, 8), "high": (7, 2), "small": (2, 1), "longer": (1, 9)}
"""Squares of 8 x 8 pixels down and across."""
TOO_LARGE = {"too many tokens": (5, 5), "too many pixels": (9, 14)}
"""Pictures that the encoder refuses, and the runtime before it. A picture may be longer than the export was asked for."""


@pytest.fixture(scope="module", params=["lfm2_vl", "lfm3_vl"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for the runner."""
    save, options = FORMS[request.param]
    checkpoint = tmp_path_factory.mktemp(request.param)
    save(checkpoint)
    return exported(checkpoint, replace(options, kernels="llm"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A picture of each size, of which one has sides between two sizes."""
    folder = tmp_path_factory.mktemp("pictures")
    pixels = {name: np.asarray(noise(8 * across, 8 * down)) for name, (down, across) in (SQUARES | TOO_LARGE).items()}
    pixels["uneven"] = np.asarray(noise(20, 16))
    for name, each in pixels.items():
        np.save(folder / f"{name}.npy", each)
    return {name: str(folder / f"{name}.npy") for name in pixels}


@pytest.fixture(scope="module")
def texts(folder: Path, files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return what the runner answered to each step; ids in the place of a text."""
    tokenizer = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    save_words(tokenizer, read_manifest(folder).vocab_size)

    def generate(*parts: Any, new: int = NEW) -> tuple[str, list[Any], int]:
        return "generate", [files.get(each, each) if isinstance(each, str) else each for each in parts], new

    scenarios = {name: [generate([11, 12, 13], name, [40, 41])] for name in SQUARES}
    scenarios["picture first"] = [generate("low", [5])]
    scenarios["turns"] = [
        generate([11, 12], "square", [40], "low", [41, 42]),
        generate([50, 51, 52]),
        ("prefill", [files["one"]]),
        generate([60]),
        ("reset",),
        generate([11, 12], "low"),
    ]
    scenarios |= {name: [generate([11, 12]), generate(name), generate([13, 14])] for name in (*TOO_LARGE, "uneven")}
    scenarios["too long a text"] = [generate([11, 12]), generate([7] * 158), generate([7] * 400), generate([13, 14])]
    return {
        name: [ids_of_words(each) if isinstance(each, str) else each for each in found]
        for name, found in answers(folder / "model.pte", tokenizer, scenarios, MULTIMODAL).items()
    }


class Ours:
    """The same steps by the Session."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.session, self.files, self.open = Session.load(folder), files, list[Picture]()
        self.eos: Sequence[int] = read_manifest(folder).eos_ids

    def text(self, *parts: Any, new: int = NEW) -> list[int]:
        tokens = [token for part in parts for token in self.ids(part)]
        return list(self.session.generate(tokens, max_new_tokens=new, eos_ids=self.eos))

    def ids(self, part: Any) -> Sequence[int]:
        if not isinstance(part, str):
            return list(part)
        self.open.append(Picture(self.session.model, np.load(self.files[part]), prepared=True))
        return self.open[-1].ids

    def fresh(self, *parts: Any) -> list[int]:
        self.session.reset()
        return self.text(*parts)


@pytest.fixture(scope="module")
def ours(folder: Path, files: dict[str, str]) -> Ours:
    return Ours(folder, files)


@pytest.mark.parametrize("name", SQUARES)
def test_greedy_text_about_a_picture_is_the_sessions(texts: dict[str, list[Any]], ours: Ours, name: str) -> None:
    assert texts[name] == [ours.fresh([11, 12, 13], name, [40, 41])]


def test_texts_depend_on_the_pictures(texts: dict[str, list[Any]]) -> None:
    assert len({tuple(texts[name][0]) for name in SQUARES}) >= 3


def test_turns_go_on_from_the_state(texts: dict[str, list[Any]], ours: Ours) -> None:
    first, second, nothing, third, _, again = texts["turns"]
    assert (first, second) == (ours.fresh([11, 12], "square", [40], "low", [41, 42]), ours.text([50, 51, 52]))
    assert (nothing, third) == ([], ours.text("one", [60]))
    assert again == ours.fresh([11, 12], "low")
    assert texts["picture first"] == [ours.fresh("low", [5])]


@pytest.mark.parametrize("name", [*TOO_LARGE, "uneven"])
def test_a_picture_of_another_size_is_refused_and_the_state_stays(texts: dict[str, list[Any]], ours: Ours, name: str) -> None:
    first, refused, second = texts[name]
    assert "error" in refused
    assert (first, second) == (ours.fresh([11, 12]), ours.text([13, 14]))


def test_a_text_that_does_not_fit_is_refused_and_the_state_stays(texts: dict[str, list[Any]], ours: Ours) -> None:
    """Of the two that do not fit, one is longer than any call."""
    first, *refused, second = texts["too long a text"]
    assert all("error" in each for each in refused)
    assert (first, second) == (ours.fresh([11, 12]), ours.text([13, 14]))


EMBEDDINGS = """
import sys
import numpy as np, torch
from executorch.extension.llm.custom_ops import custom_ops
from executorch.runtime import Runtime

method = Runtime.get().load_program(sys.argv[1]).load_method("vision_encoder")
for name in sys.argv[2:]:
    image = torch.from_numpy(np.load(name)).permute(2, 0, 1).contiguous()
    np.save(name + ".rows.npy", method.execute([image])[0].numpy())
"""


def test_a_picture_has_the_sessions_embeddings(folder: Path, files: dict[str, str], ours: Ours) -> None:
    names = [files[name] for name in SQUARES]
    subprocess.run(
        [sys.executable, "-c", EMBEDDINGS, folder / "model.pte", *names], check=True, capture_output=True, timeout=300
    )
    for name in SQUARES:
        ours.fresh(name)
        wanted, found = ours.open[-1].part(0).embeddings, np.load(files[name] + ".rows.npy")
        assert wanted is not None
        np.testing.assert_allclose(found, wanted[None], atol=2e-6)


def test_weights_lie_in_the_file_once(folder: Path) -> None:
    """The methods add instructions, less than a hundredth of the smallest published model's file."""
    manifest = read_manifest(folder)
    assert {"stock_vision_encoder", "token_embedding", "text_decoder"} <= set(manifest.methods)
    weights = 4 * (manifest.parameters or 0)
    assert (folder / "model.pte").stat().st_size < weights + (1 << 20)


@pytest.mark.parametrize("model_type", ["qwen3_5", "gemma4"])
def test_models_that_need_more_than_the_runner_gives_have_no_such_methods(folder: Path, model_type: str) -> None:
    """Rope on three axes, one more embedding of each token, or rows that see each other."""
    manifest: Manifest = read_manifest(folder)
    assert manifest.pictures is not None
    assert StockSizes.of(manifest.options, manifest.pictures) is not None
    assert StockSizes.of(manifest.options, replace(manifest.pictures, model_type=model_type)) is None
    assert StockSizes.of(replace(manifest.options, kernels="hybridge"), manifest.pictures) is None
    assert StockSizes.of(manifest.options, None) is None
    assert json.loads((folder / "manifest.json").read_text())["options"]["kernels"] == "llm"
