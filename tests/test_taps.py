"""Hidden states beside the logits, against the uncached model's own ``output_hidden_states``."""

import copy

import pytest
import torch
from tiny import lively, tiny_config, tiny_model
from torch import Tensor
from transformers import PreTrainedModel

from hybridge.cache.errors import UnsupportedModelError, UsageError
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.kernels import CoreKernels
from hybridge.export.exporter import build_cache
from hybridge.export.llm_kernels import LlmKernels
from hybridge.export.methods import State, build_methods
from hybridge.runtime.manifest import ExportOptions

KERNELS = {"core": CoreKernels, "llm": LlmKernels}
FAMILIES = ["qwen3_5_text", "llama", "falcon_h1", "mamba2", "gemma3_text", "zamba2", "lfm2"]
TAPS = (-1, 1, 0, -2)
PROMPT, TOKEN, BLOCK = [3, 1, 4, 1, 5, 9, 2], 6, [5, 3]


def tapped(model: PreTrainedModel, text: list[int]) -> Tensor:
    """[T, taps * hidden] of the uncached model."""
    with torch.no_grad():
        states = model(torch.tensor([text]), use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([states[tap] for tap in TAPS], dim=-1)[0]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_taps_are_the_uncached_models_hidden_states(family: str, kernels: str) -> None:
    oracle = lively(tiny_model(tiny_config(family)))
    sizes = {"max_seq_len": 37, "prefill_chunk": 11, "verify_len": 5, "snapshot_slots": 1}
    cache = HybridCache.from_config(oracle.config, kernels=KERNELS[kernels](), **sizes)  # type: ignore[arg-type]
    methods = build_methods(State(copy.deepcopy(oracle), cache, TAPS), [2])
    calls = {
        "prefill": (PROMPT + [0] * 4, len(PROMPT)),
        "decode": ([TOKEN],),
        "verify_2": (BLOCK,),
        "verify": (BLOCK + [0] * 3,),
    }
    text: list[int] = []
    for name, inputs in calls.items():
        count = 2 if "verify" in name else 1 if name == "decode" else len(PROMPT)
        text = text + inputs[0][:count]  # type: ignore[index]
        with torch.no_grad():
            _, got = methods[name][0](*(torch.tensor([each]) for each in inputs))
        want = tapped(oracle, text)[-count:]
        assert got.dtype == torch.float32
        torch.testing.assert_close(got[0, :count], want, rtol=1e-4, atol=1e-4)
        text = text[:-count] if name == "verify_2" else text


def test_the_methods_with_taps_can_be_traced() -> None:
    config = tiny_config("qwen3_5_text")
    cache = HybridCache.from_config(config, max_seq_len=37, prefill_chunk=11, verify_len=5, kernels=LlmKernels())
    for name, (method, example) in build_methods(State(tiny_model(config), cache, TAPS)).items():
        with torch.no_grad():
            program = torch.export.export(method, example, strict=False)
        outputs = program.graph_signature.user_outputs
        assert len(outputs) == (2 if name in ("prefill", "decode", "verify") else 1), name


@pytest.mark.parametrize("tap", [5, -6, 10**6])
def test_a_tap_that_does_not_exist_is_refused(tap: int) -> None:
    config = tiny_config("llama", num_hidden_layers=4)
    with pytest.raises(UsageError, match=f"tap layer {tap} does not exist: this model has 4 layers, so a tap is 0"):
        build_cache(config, ExportOptions(max_seq_len=8, tap_layers=(0, tap)))


def test_several_residual_streams_have_no_states_inside() -> None:
    config = tiny_config("qwen4_exp_text")
    cache = HybridCache.from_config(config, max_seq_len=37, prefill_chunk=11, verify_len=5)
    decode, example = build_methods(State(tiny_model(config), cache, (1,)))["decode"]
    with pytest.raises(UnsupportedModelError, match="several residual streams"):
        decode(*example)
