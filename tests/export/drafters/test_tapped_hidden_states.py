"""Tapped hidden states against those that transformers itself gives of the uncached model."""

import copy

import numpy as np
import pytest
import torch
from tiny import lively, tiny_config, tiny_model

from hybridge.errors import UnsupportedModelError, UsageError
from hybridge.export.program.build import build_cache
from hybridge.export.program.eager import eager_session
from hybridge.export.program.methods import build_methods
from hybridge.export.program.state import State
from hybridge.runtime import ExportOptions

TOKENS = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
FAMILIES = ["qwen3_5_text", "llama", "falcon_h1", "lfm2", "gemma3_text"]


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_decode_and_verify_put_out_what_transformers_does(family: str) -> None:
    model = lively(tiny_model(tiny_config(family)))
    with torch.no_grad():
        states = model(torch.tensor([TOKENS]), use_cache=False, output_hidden_states=True).hidden_states
    taps = (1, -1, 0)
    want = torch.cat([states[i][0] for i in taps], dim=-1)
    options = ExportOptions(max_seq_len=37, prefill_chunk=4, verify_len=3, shorter_verify_lens=(2,), tap_layers=taps)
    session = eager_session(copy.deepcopy(model), options)
    parts = []
    session.prefill(TOKENS[:5])
    parts.append(session.hidden)
    session.decode(TOKENS[5])
    parts.append(session.hidden)
    for start, count in ((6, 2), (8, 3)):
        session.verify(TOKENS[start : start + count])
        parts.append(session.hidden)
        session.commit(count)
    torch.testing.assert_close(torch.from_numpy(np.concatenate(parts)), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["glm5_next_text", "qwen4_exp_text"])
def test_several_residual_streams_have_only_the_last(family: str) -> None:
    model = tiny_model(tiny_config(family))
    sizes = {"max_seq_len": 37, "prefill_chunk": 4, "verify_len": 3}
    assert np.isfinite(eager_session(model, ExportOptions(**sizes, tap_layers=(-1,))).decode(1)).all()
    with pytest.raises(UnsupportedModelError, match="several residual streams"):
        eager_session(model, ExportOptions(**sizes, tap_layers=(1, -1))).decode(1)


@pytest.mark.slow
def test_taps_can_be_exported() -> None:
    model = tiny_model(tiny_config("qwen3_5_text"))
    options = ExportOptions(max_seq_len=37, prefill_chunk=5, verify_len=3, tap_layers=(1, -1))
    state = State(model, build_cache(model.config, options), options.tap_layers)
    shapes = {}
    for name, (method, inputs) in build_methods(state).items():
        if name in ("prefill", "decode", "verify"):
            with torch.no_grad():
                outputs = torch.export.export(method, inputs, strict=False).graph_module.graph.output_node().args[0]
            shapes[name] = list(outputs[-1].meta["val"].shape)  # type: ignore[union-attr, index]
    width = 2 * model.config.hidden_size
    assert shapes == {"prefill": [1, 5, width], "decode": [1, 1, width], "verify": [1, 3, width]}


@pytest.mark.parametrize(("taps", "says"), [((9,), "tap layer 9 does not exist"), ((-9,), "-9"), ((1, 1), "twice")])
def test_layers_that_are_not_there_are_refused(taps: tuple[int, ...], says: str) -> None:
    config = tiny_config("qwen3_5_text")
    with pytest.raises(UsageError, match=says):
        build_cache(config, ExportOptions(max_seq_len=37, tap_layers=taps))
