"""``scripts/trust picture-speed``: llama.cpp gets the whole encoder of a checkpoint, and its times are compared with ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
from campaigns.bench import mmproj_file
from campaigns.bench.gguf_file import tensors_of
from campaigns.picture_speed import EAGER, PLAIN, Measured, report


@pytest.mark.parametrize(
    ("fixture", "parts"),
    [("pictures_checkpoint", ("vision_tower", "multi_modal_projector")), ("grid_checkpoint", ("visual",))],
    ids=["lfm2_vl", "qwen3_5"],
)
def test_llama_cpp_gets_every_weight_of_an_encoder(
    fixture: str, parts: Sequence[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    checkpoint = request.getfixturevalue(fixture)
    mmproj_file.main(checkpoint, tmp_path / "mmproj.gguf", "F32", tmp_path / "text.gguf")
    tensors = dict(tensor for path in checkpoint.glob("*.safetensors") for tensor in tensors_of(path))
    weights = [each for name, each in tensors.items() if name.removeprefix("model.").startswith(parts)]
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "mmproj.gguf").tensors}
    assert sum(each.size for each in found.values()) == sum(each.size for each in weights)
    table = next(each for name, each in tensors.items() if "pos" in name and name.removeprefix("model.").startswith(parts))
    np.testing.assert_array_equal(found["v.position_embd.weight"], table)
    assert found["v.patch_embd.weight"].shape[1:] == (3, 4, 4), "a kernel over patches of 4 x 4"


def test_an_engine_that_only_encodes_is_compared_with_ours(capsys: pytest.CaptureFixture[str]) -> None:
    found = {EAGER: Measured(2.0, 1.0, 100), PLAIN: Measured(1.0, 1.0, 50), "llama.cpp F32": Measured(3.0, math.nan, 50)}
    report("a model", found)
    assert "float32        encodes at 3.00 x llama.cpp F32" in capsys.readouterr().out
