"""Every family, without lowering it: random operations against the uncached model, and graphs that can be exported."""

import pytest
from tiny import count_nodes, lively, tiny_config, tiny_model
from transformers import PreTrainedModel
from zoo import KINDS, VARIANTS, by_kind

from hybridge.cache.families import FAMILIES
from hybridge.export.check.oracle import uncached
from hybridge.export.check.validate import validate
from hybridge.export.model.families import ADAPTATIONS
from hybridge.export.program.build import build_cache
from hybridge.export.program.eager import eager_session
from hybridge.export.program.methods import build_methods
from hybridge.export.program.state import State
from hybridge.runtime.artifact.options import ExportOptions

MOST_NODES = 120
"""Of decode, for each layer; what embedding, head and bookkeeping need comes on top."""

OWN_NODES = {
    "gemma3n_text": 170,
    "glm5_next_text": 200,
    "inkling2_text": 215,
    "inkling_text": 130,
    "qwen4_exp_text": 235,
    "zaya": 135,
}
"""Families that compute more in a layer themselves: several residual streams, attention across blocks, routers with a state."""


def options(kernels: str) -> ExportOptions:
    return ExportOptions(max_seq_len=67, prefill_chunk=17, verify_len=5, kernels=kernels)  # type: ignore[arg-type]


def model(family: str, variant: int) -> PreTrainedModel:
    return lively(tiny_model(tiny_config(family, variant), seed=variant), variant)


def test_every_family_has_its_layers_its_mixers_and_two_configs() -> None:
    assert set(FAMILIES) == set(ADAPTATIONS) == set(VARIANTS)
    assert all(first != second for first, second in VARIANTS.values())


@pytest.mark.parametrize("family", sorted(VARIANTS))
def test_random_operations_agree_with_the_uncached_model(family: str) -> None:
    """All rollback: refused and partly accepted blocks, slots, resets; every position of a block is compared.

    A family whose kinds of layers another one has runs one program.
    """
    compare(family, 1, "hybridge", programs=2 if family in KINDS else 1)


@pytest.mark.parametrize("family", by_kind())
def test_other_kernels_agree_with_the_uncached_model(family: str) -> None:
    compare(family, 0, "llm", programs=1)


@pytest.mark.thorough
@pytest.mark.parametrize(("variant", "kernels"), [(1, "aten"), (0, "hybridge")])
@pytest.mark.parametrize("family", sorted(VARIANTS))
def test_all_variants_agree_with_the_uncached_model(family: str, variant: int, kernels: str) -> None:
    compare(family, variant, kernels)


def compare(family: str, variant: int, kernels: str, programs: int = 2) -> None:
    tiny = model(family, variant)
    session = eager_session(tiny, options(kernels))
    report = validate(
        session, uncached(tiny), programs=programs, prompts=1, new_tokens=12, seed=0, notify=lambda *_: None, same_bits=None
    )
    report.check()
    assert report.operations["commit"] > 2 * programs


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(VARIANTS))
def test_graphs_export_with_static_shapes_and_few_nodes(family: str) -> None:
    tiny = model(family, 0)
    state = State(tiny, build_cache(tiny.config.get_text_config(), options("llm")))
    methods = build_methods(state)
    nodes = {name: count_nodes(*methods[name]) for name in ("prefill", "decode", "commit")}
    layers = len(state.cache.cache_layers())
    assert nodes["decode"] <= OWN_NODES.get(family, MOST_NODES) * layers + 60, nodes
    assert nodes["commit"] <= nodes["decode"]
