"""What the ``pinned`` modules assume of transformers, gguf and torchao as readers of weights is so; see ``test_pins.py``."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from tiny import tiny_config
from transformers import AutoConfig, AutoModelForCausalLM

from hybridge.export.pinned import checkpoints, torchao
from hybridge.export.pinned import transformers as pinned


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0, GGMLQuantizationType.MXFP4])
def test_a_type_of_ggml_has_blocks_and_is_decoded(kind: GGMLQuantizationType) -> None:
    rows = quants.quantize(np.random.default_rng(0).standard_normal((3, 64), dtype=np.float32), kind)
    elements, size = checkpoints.block_of(int(kind)) or (0, 0)
    assert (elements, rows.shape) == (32, (3, 2 * size))
    assert checkpoints.decoded(rows, int(kind)).shape == (3, 64)
    assert checkpoints.name_of(int(kind)) == kind.name


def test_a_type_that_nobody_has_is_none() -> None:
    assert checkpoints.block_of(4000) is None
    assert checkpoints.name_of(4000) == "4000"


def test_a_class_and_its_config_are_found_for_tensors_without_a_file() -> None:
    config = tiny_config("qwen3")
    assert pinned.model_class(AutoModelForCausalLM, config) == (type(AutoModelForCausalLM.from_config(config)), config)
    whole = AutoConfig.for_model("qwen3_5", text_config=tiny_config("qwen3_5_text").to_dict())
    kind, text = pinned.model_class(AutoModelForCausalLM, whole)
    assert kind.__name__ == "Qwen3_5ForCausalLM"
    assert text.model_type == "qwen3_5_text"


def test_a_kind_of_torchaos_that_is_not_stored_is_refused() -> None:
    with pytest.raises(ValueError, match="torchao stores no PerRow"):
        torchao.dequantize_stored(json.dumps({"_type": "PerRow", "_data": {}}), {"qdata": torch.zeros(1)})
