"""The fast form of RWKV-7's rule is its definition, and the model is the one that its authors run token by token."""

import pytest
import torch
import torch.nn.functional as F
from tiny import lively, tiny_config, tiny_model
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.generalized_delta_rule import (
    GeneralizedDeltaInputs,
    GeneralizedDeltaRule,
    generalized_delta_rule_chunked,
    generalized_delta_rule_naive,
)
from hybridge.export.check.oracle import uncached


def random_inputs(tokens: int, alike: float = 0.0) -> tuple[Tensor, GeneralizedDeltaInputs, Tensor]:
    """query, inputs by head and state; ``alike`` pulls all removed keys towards one direction."""
    torch.manual_seed(tokens)
    B, H, K, V = 2, 3, 24, 40
    query, key = torch.randn(B, H, tokens, K), torch.randn(B, H, tokens, K) * K**-0.5
    removed = F.normalize(torch.randn(B, H, tokens, K) + alike, dim=-1)
    log_decay, rate = -0.61 * torch.rand(B, H, tokens, K), torch.rand(B, H, tokens, K)
    inputs = GeneralizedDeltaInputs(log_decay, rate, removed, key, torch.randn(B, H, tokens, V))
    return query, inputs, torch.randn(B, H, K, V)


def assert_is_naive(query: Tensor, inputs: GeneralizedDeltaInputs, state: Tensor) -> None:
    for form in (generalized_delta_rule_chunked, GeneralizedDeltaRule().rule):
        for fast, naive in zip(form(query, inputs, state), generalized_delta_rule_naive(query, inputs, state), strict=True):
            torch.testing.assert_close(fast, naive, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("alike", [0.0, 5.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8, 17, 64])
def test_the_fast_form_is_the_naive_one(tokens: int, alike: float) -> None:
    assert_is_naive(*random_inputs(tokens, alike))


@pytest.mark.parametrize("value", [0.0, -28.0, -1e4])
def test_a_decay_may_be_one_nearly_zero_or_zero(value: float) -> None:
    query, inputs, state = random_inputs(17)
    assert_is_naive(query, inputs._replace(log_decay=torch.full_like(inputs.log_decay, value)), state)


@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_steps_after_the_count_change_nothing(count: int) -> None:
    """Padding of a block, and rejected tokens of a staged one; both may be NaN."""
    _, by_head, first = random_inputs(7)
    inputs = GeneralizedDeltaInputs(*(x.transpose(1, 2) for x in by_head))
    want = generalized_delta_rule_naive(
        by_head.key[:, :, :count], GeneralizedDeltaInputs(*(x[:, :, :count] for x in by_head)), first
    )[1] if count else first  # fmt: skip
    staged = GeneralizedDeltaInputs(*(torch.full_like(x, float("nan")) for x in inputs))
    start, counted, rule = torch.zeros(1, dtype=torch.long), torch.tensor([count]), GeneralizedDeltaRule()
    padded = GeneralizedDeltaInputs(*(x.clone().index_fill_(1, torch.arange(count, 7), float("nan")) for x in inputs))
    state = first.clone()
    rule.run(padded.key, padded, state, staged, Block(start=start, count=counted, length=7))
    torch.testing.assert_close(state, want, rtol=3e-5, atol=3e-5)
    tentative = Block(start=start, count=torch.tensor([7]), length=7, tentative=True)
    state = first.clone()
    rule.run(inputs.key, inputs, state, staged, tentative)
    assert state.equal(first)
    rule.commit(state, staged, counted)
    torch.testing.assert_close(state, want, rtol=3e-5, atol=3e-5)
    assert count or state.equal(first)


def by_its_authors(weights: dict[str, Tensor], tokens: list[int], layers: int, heads: int) -> Tensor:
    """Return logits [T, V], one token after the other, by the equations of RWKV-LM's ``rwkv_v7_demo_rnn.py``."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape, weights[f"{name}.weight"], weights.get(f"{name}.bias"), eps=1e-5)

    def low_rank(x: Tensor, name: str) -> Tensor:
        return weights[f"{name}.lora.2.weight"] @ x + weights.get(f"{name}.lora.2.bias", torch.zeros(()))

    width = weights["model.embeddings.weight"].shape[1]
    size = width // heads
    states = [torch.zeros(heads, size, size) for _ in range(layers)]  # [values, keys]
    last = [[torch.zeros(width), torch.zeros(width)] for _ in range(layers)]
    logits = []
    for token in tokens:
        x, first_value = weights["model.embeddings.weight"][token], torch.zeros(width)
        for i in range(layers):
            layer, att = f"model.layers.{i}", f"model.layers.{i}.attn"
            w = {name.removeprefix(f"{att}."): each for name, each in weights.items() if name.startswith(att)}
            x = norm(x, f"{layer}.pre_norm") if f"{layer}.pre_norm.weight" in weights else x
            now = norm(x, f"{layer}.attn_norm")
            xr, xw, xk, xv, xa, xg = (now + (last[i][0] - now) * w[f"x_{name}"].flatten() for name in "rwkvag")
            last[i][0] = now
            r, k, v = w["r_proj.weight"] @ xr, w["k_proj.weight"] @ xk, w["v_proj.weight"] @ xv
            decay = torch.exp(-0.606531 * low_rank(torch.tanh(w["w_lora.lora.0.weight"] @ xw), f"{att}.w_lora").sigmoid())
            a = low_rank(w["a_lora.lora.0.weight"] @ xa, f"{att}.a_lora").sigmoid()
            g = low_rank((w["g_lora.lora.0.weight"] @ xg).sigmoid(), f"{att}.g_lora")
            kk = F.normalize((k * w["k_k"]).view(heads, size), dim=-1).flatten()
            k = k * (1 + (a - 1) * w["k_a"])
            if i == 0:
                first_value = v
            else:
                v = v + (first_value - v) * low_rank(w["v_lora.lora.0.weight"] @ xv, f"{att}.v_lora").sigmoid()
            removal = (-kk).view(heads, size, 1) @ (kk * a).view(heads, 1, size)
            states[i] = states[i] * decay.view(heads, 1, size) + states[i] @ removal
            states[i] = states[i] + v.view(heads, size, 1) @ k.view(heads, 1, size)
            out = (states[i] @ r.view(heads, size, 1)).view(1, width)
            out = F.group_norm(out, heads, w["g_norm.weight"], w["g_norm.bias"], eps=size * 1e-5).flatten()
            out = out + ((r * k * w["r_k"].flatten()).view(heads, size).sum(-1, keepdim=True) * v.view(heads, size)).flatten()
            x = x + w["o_proj.weight"] @ (out * g)
            now = norm(x, f"{layer}.ffn_norm")
            key = weights[f"{layer}.ffn.key.weight"] @ (now + (last[i][1] - now) * weights[f"{layer}.ffn.x_k"])
            last[i][1] = now
            x = x + weights[f"{layer}.ffn.value.weight"] @ key.relu() ** 2
        logits.append(weights["lm_head.weight"] @ norm(x, "model.norm"))
    return torch.stack(logits)


@pytest.mark.parametrize(("variant", "heads"), [(0, 3), (1, 5)])
@torch.no_grad()
def test_the_model_is_the_one_of_its_authors(variant: int, heads: int) -> None:
    model = lively(tiny_model(tiny_config("rwkv7", variant)), variant)
    tokens = [5, 9, 130, 5, 0, 77, 31, 5]
    want = by_its_authors(dict(model.state_dict()), tokens, len(model.model.layers), heads)
    torch.testing.assert_close(uncached(model)(tokens), want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))
