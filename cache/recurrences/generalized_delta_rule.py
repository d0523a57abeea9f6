r"""The generalized delta rule of RWKV-7: what is forgotten, removed and written is chosen for each channel of a key.

For each token, with state S [K, V] of one head:

    S <- diag(exp(log_decay)) S - (rate * removed) (removed^T S)^T + key value^T
    out = query^T S

Source: Peng et al., "RWKV-7 Goose with Expressive Dynamic State Evolution" (arXiv:2503.14456), equations 15 to 17; queries are
its receptances, ``removed`` its normalized removal keys, ``rate`` its in-context learning rates. The removed value is read
before the decay, unlike in the gated delta rule. **Identity step**: ``log_decay = 0``, ``rate = 0`` and ``key = 0``.

Axes: B batch, T tokens, S staged tokens, H heads, K key dim, V value dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.gated_delta_rule import unit_lower_inverse
from hybridge.cache.recurrences.recurrence import Recurrence, accepted, real, replace, stage


class GeneralizedDeltaInputs(NamedTuple):
    """A block, or what a tentative one staged: value [B, T, H, V], the others [B, T, H, K]; log_decay and rate are float32."""

    log_decay: Tensor
    rate: Tensor
    removed: Tensor
    key: Tensor
    value: Tensor

    def by_head(self) -> GeneralizedDeltaInputs:
        """Return the inputs as [B, H, T, ...]."""
        return GeneralizedDeltaInputs(*(x.transpose(1, 2) for x in self))


class GeneralizedDeltaRule(Recurrence):
    """Run and commit the rule by core operators; state [B, H, K, V]."""

    def run(
        self, query: Tensor, inputs: GeneralizedDeltaInputs, state: Tensor, staged: GeneralizedDeltaInputs, block: Block
    ) -> Tensor:
        """Run a block of query [B, T, H, K] and inputs. Returns [B, T, H, V]."""
        query, *others = real(block, query, *inputs)
        inputs = GeneralizedDeltaInputs(*others)
        stage(block, staged, *inputs)
        out, after = self.rule(query.transpose(1, 2), inputs.by_head(), state)
        if not block.tentative:
            state.copy_(after)
        return out.transpose(1, 2)

    def commit(self, state: Tensor, staged: GeneralizedDeltaInputs, count: Tensor) -> None:
        """Accept the first ``count`` staged tokens."""
        log_decay, rate, key = accepted(count, staged.log_decay, staged.rate, staged.key)
        inputs = GeneralizedDeltaInputs(log_decay, rate, staged.removed, key, staged.value).by_head()
        replace(state, self.rule(inputs.key, inputs, state)[1], count)

    def rule(self, query: Tensor, inputs: GeneralizedDeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the rule; arguments and results are those of ``generalized_delta_rule_naive``."""
        form = generalized_delta_rule_naive if query.shape[2] == 1 else generalized_delta_rule_chunked
        return form(query, inputs, state)


def generalized_delta_rule_naive(query: Tensor, inputs: GeneralizedDeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one token after the other, as the definition has it; the other forms are tested against this.

    query [B, H, T, K] and the inputs by head, state [B, H, K, V], all float32. Returns the outputs [B, H, T, V] and the state
    after the last token.
    """
    outputs = []
    for t in range(query.shape[2]):
        log_decay, rate, removed, key, value = (x[:, :, t] for x in inputs)
        stored = torch.einsum("bhk,bhkv->bhv", removed, state)
        state = state * log_decay.exp().unsqueeze(-1) - (rate * removed).unsqueeze(-1) * stored.unsqueeze(-2)
        state = state + key.unsqueeze(-1) * value.unsqueeze(-2)
        outputs.append(torch.einsum("bhk,bhkv->bhv", query[:, :, t], state))
    return torch.stack(outputs, dim=2), state


def generalized_delta_rule_chunked(query: Tensor, inputs: GeneralizedDeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute all T tokens as one chunk, in a number of operators that does not grow with T (except log2 T in the inverse).

    The same arguments and results as ``generalized_delta_rule_naive``. With u_t the value that token t removes, the state after
    it is a decayed sum of what came before, of ``- rate removed u`` and of ``key value``; so all u solve a triangular system.
    Made of core operators only, so any backend can run it; meant for T up to about 64, because decayed keys take B H T T K
    numbers.
    """
    log_decay, rate, removed, key, value = inputs
    T = query.shape[2]
    at, of = torch.arange(T)[:, None], torch.arange(T)[None, :]
    later = (of < at).unsqueeze(-1)
    steps = torch.where(later, log_decay.unsqueeze(3), 0.0)  # [B, H, T at, T of, K]
    between = steps.cumsum(2)  # sums between two tokens, each made on its own, as in the gated delta rule
    until = torch.where((of <= at).unsqueeze(-1), between.exp(), 0.0)
    before = torch.where(later, (between - steps).exp(), 0.0)  # until the token before, whose state is read
    taken = (rate * removed).unsqueeze(2)
    written = key.unsqueeze(2)
    system = ((before * taken) @ removed.unsqueeze(-1)).squeeze(-1)
    total = log_decay.cumsum(2)
    read = (removed * (total - log_decay).exp()) @ state + ((before * written) @ removed.unsqueeze(-1)).squeeze(-1) @ value
    stored = unit_lower_inverse(system) @ read
    taken, written = until * taken, until * written
    out = (query * total.exp()) @ state
    out = out + (written @ query.unsqueeze(-1)).squeeze(-1) @ value - (taken @ query.unsqueeze(-1)).squeeze(-1) @ stored
    state = state * total[:, :, -1].exp().unsqueeze(-1)
    state = state + written[:, :, -1].transpose(-1, -2) @ value - taken[:, :, -1].transpose(-1, -2) @ stored
    return out, state
