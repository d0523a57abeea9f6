"""The gated delta rule as the trainings run it, with gradients that are fast on a CPU."""

import math
from contextlib import AbstractContextManager
from unittest import mock

import torch
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5

CHUNK = 32


def fast_delta_rule() -> AbstractContextManager[object]:
    """Within it, transformers' layers run `delta_rule`; lengths must divide by CHUNK."""
    return mock.patch.object(modeling_qwen3_5, "torch_chunk_gated_delta_rule", delta_rule)


def chunks(x: Tensor) -> Tensor:
    """[batch, length, heads, ...] -> float32 [batch, heads, length / CHUNK, CHUNK, ...]."""
    heads_first = x.float().transpose(1, 2)
    return heads_first.reshape(*heads_first.shape[:2], -1, CHUNK, *heads_first.shape[3:])


def unit(x: Tensor) -> Tensor:
    """L2-normalised along the last dimension."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def delta_rule(query: Tensor, key: Tensor, value: Tensor, *, g: Tensor, beta: Tensor, **_: object) -> tuple[Tensor, None]:
    """The library's chunked gated delta rule without in-place writes, whose gradients are slow on a CPU.

    query, key, value: [batch, length, heads, dim]; g (log decay), beta: [batch, length, heads].
    """
    q, k, v = unit(chunks(query)) * key.shape[-1] ** -0.5, unit(chunks(key)), chunks(value)
    rate, decay = chunks(beta)[..., None], chunks(g).cumsum(-1)
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool).triu(1)
    pairs = (decay[..., :, None] - decay[..., None, :]).masked_fill(future, -math.inf).exp()
    since, until = decay.exp()[..., None], (decay[..., -1:] - decay).exp()[..., None]
    rows = torch.cat([v * rate, k * rate * since], -1)
    system = (k * rate) @ k.mT * pairs
    u, w = torch.linalg.solve_triangular(system, rows, upper=False, unitriangular=True).tensor_split([v.shape[-1]], -1)
    out = scan(q * since, (k * until).mT, u, w, q @ k.mT * pairs, since[..., -1:, :])
    return out.flatten(2, 3).transpose(1, 2).to(query.dtype), None


def scan(q: Tensor, k: Tensor, u: Tensor, w: Tensor, near: Tensor, decay: Tensor) -> Tensor:
    """Carry the state [batch, heads, key dim, value dim] over the chunks -> [batch, heads, chunks, CHUNK, dim]."""
    state, outputs = torch.zeros(()).expand(*q.shape[:2], q.shape[-1], u.shape[-1]), []
    for qi, ki, ui, wi, ni, di in zip(*(x.unbind(2) for x in (q, k, u, w, near, decay)), strict=True):
        new = ui - wi @ state
        outputs.append(qi @ state + ni @ new)
        state = state * di + ki @ new
    return torch.stack(outputs, 2)
