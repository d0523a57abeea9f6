import copy

import pytest
import torch
from tiny import tiny_config, tiny_model

from hybridge.cache import HybridCache
from hybridge.export.write.methods import State, build_methods


@pytest.mark.parametrize("hidden_act", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("model_type", ["qwen3_5_text", "qwen3_next"])
@torch.no_grad()
def test_the_conv_has_the_activation_of_the_config(model_type: str, hidden_act: str) -> None:
    oracle = tiny_model(tiny_config(model_type, num_hidden_layers=2, hidden_act=hidden_act))
    cache = HybridCache.from_config(oracle.config, max_seq_len=32, prefill_chunk=9, verify_len=3)
    prefill, _ = build_methods(State(copy.deepcopy(oracle), cache))["prefill"]
    text = torch.arange(9)[None]
    got = prefill(text, torch.tensor([9]))[0, 0]
    torch.testing.assert_close(got, oracle(text, use_cache=False).logits[0, -1], rtol=1e-4, atol=1e-5)
