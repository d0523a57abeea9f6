"""The exported methods: each is a module over the one ``State``, because shared buffers are matched by qualified name.

Signatures are those of the artifact (docs/artifact.md). A method that refuses answers -1, or NaN logits, and leaves the state
as it was; by arithmetic, because lowering drops every assertion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.block import Block
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.export.adaptation.adapt import AdaptedModel
from hybridge.export.drafters.drafter import ArtifactDrafter, Target
from hybridge.export.quantization.quantizable import table_factor
from hybridge.runtime.artifacts.options import shorter_verify

Outputs = Tensor | tuple[Tensor, ...]


class State(nn.Module):
    """The model and its cache, the one holder that every method wraps."""

    def __init__(
        self, model: PreTrainedModel, cache: HybridCache, tap_layers: Sequence[int] = (), drafter: ArtifactDrafter | None = None
    ) -> None:
        super().__init__()
        embedding = model.get_input_embeddings()
        self.model = AdaptedModel(model, cache, tap_layers)
        self.cache = cache
        self.drafter = drafter
        self._shared = Shared(embedding, model.get_output_embeddings()) if drafter else None
        self.requires_grad_(False)

    def hidden(self, tokens: Tensor, block: Block) -> Tensor:
        """Run tokens [1, T] as ``block``; hidden states [1, T, hidden]."""
        self.cache.block = block
        hidden = self.model.hidden(tokens)
        self.cache.close(block)
        return hidden

    def extend(self, tokens: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Commit the first ``count`` of tokens [1, T]: the last one's logits [1, 1, V], NaN if they do not fit; all hidden."""
        block = self.cache.extend(tokens.shape[1], count)
        hidden = self.hidden(tokens, block)
        last = hidden.index_select(1, (block.count - 1).clamp(min=0))
        # Before the head and not behind it: the vocabulary is hundreds of times wider.
        return self.model.logits(torch.where(block.count > 0, last, float("nan"))), hidden

    @property
    def target(self) -> Target:
        """Return what the drafter shares with the model."""
        shared = self._shared
        assert shared is not None
        return Target(decoder=self.model.decoder, logits=self.model.logits, embed=shared.embed, head=shared.head)

    def tapped(self, logits: Tensor, hidden: Tensor) -> Outputs:
        """Return logits, and the tapped hidden states of the run that ended with ``hidden`` if there are taps."""
        return (logits, self.model.taps.collect(hidden)) if self.model.taps.places else logits


class Shared:
    """The embedding's rows as they are stored, and the head."""

    def __init__(self, embedding: Any, head: Any) -> None:
        self.embedding, self.head = embedding, head
        self.factor = getattr(embedding, "factor", None) or table_factor(embedding)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return rows [1, T, H] of tokens [1, T]."""
        if self.factor is None:  # more than a table (Inkling's norm), which is then never packed
            return F.embedding(tokens, self.embedding.weight)
        rows: Tensor = self.embedding(tokens)
        return rows if self.factor == 1.0 else rows * (1.0 / self.factor)


class Method(nn.Module):
    """A method of the program."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state


class Prefill(Method):
    """tokens [1, C], n [1] -> logits [1, 1, V] of token n; commits the first n."""

    def forward(self, tokens: Tensor, n: Tensor) -> Outputs:
        return self.state.tapped(*self.state.extend(tokens, n))


class Decode(Method):
    """tokens [1, 1] -> logits [1, 1, V]; commits it."""

    def forward(self, tokens: Tensor) -> Outputs:
        return self.state.tapped(*self.state.extend(tokens, torch.ones(1, dtype=torch.long)))


class Verify(Method):
    """tokens [1, S] -> logits [1, S, V]; stages them and commits nothing. S is the longest block's or a shorter one's."""

    def forward(self, tokens: Tensor) -> Outputs:
        hidden = self.state.hidden(tokens, self.state.cache.speculate(tokens.shape[1]))
        return self.state.tapped(self.state.model.logits(hidden), hidden)


class Commit(Method):
    """n [1] -> length [1]; commits the first n staged tokens."""

    def forward(self, n: Tensor) -> Tensor:
        return self.state.cache.commit(n)


class SnapshotSlot(Method):
    """slot [1] -> length [1]; keeps the committed state."""

    def forward(self, slot: Tensor) -> Tensor:
        return self.state.cache.write_slot(slot)


class RestoreSlot(Method):
    """slot [1] -> length [1]; brings the slot's state back."""

    def forward(self, slot: Tensor) -> Tensor:
        return self.state.cache.read_slot(slot)


class Reset(Method):
    """-> length [1], which is 0."""

    def forward(self) -> Tensor:
        return self.state.cache.clear(torch.ones(1, dtype=torch.bool))


class Forward(Method):
    """tokens [1, 1], start_pos [1] -> logits [1, 1, V]: what ExecuTorch's stock runners call. 0 starts afresh.

    A position other than 0 or the length is refused with NaN: recurrent state cannot be entered in the middle.
    """

    def forward(self, tokens: Tensor, start_pos: Tensor) -> Tensor:
        self.state.cache.clear(start_pos == 0)
        expected = (start_pos == self.state.cache.length).to(torch.long)
        return self.state.extend(tokens, expected)[0]


class DraftMethod(Method):
    """A method of the drafter, over pairs of tapped hidden states [1, T, F] and the tokens [1, T] that followed them."""

    @property
    def drafter(self) -> ArtifactDrafter:
        assert self.state.drafter is not None
        return self.state.drafter


class Draft(DraftMethod):
    """hidden [1, S, F], tokens [1, S], n [1] and what decides draws -> draft tokens, chances, scores and candidates.

    Takes in the first n pairs, then proposes ``guesses`` tokens behind the last one; -1 where refused. See ``ArtifactDrafter``.
    """

    def __init__(self, state: State, guesses: int) -> None:
        super().__init__(state)
        self.guesses = guesses

    def forward(self, hidden: Tensor, tokens: Tensor, n: Tensor, *draws: Tensor) -> Outputs:
        return self.drafter.draft(self.state.target, self.guesses, hidden, tokens, n, *draws)


class DraftPrefill(DraftMethod):
    """hidden [1, C, F], tokens [1, C], n [1] -> the drafter's length [1]; takes in the first n pairs. -1 where refused."""

    def forward(self, hidden: Tensor, tokens: Tensor, n: Tensor) -> Tensor:
        return self.drafter.read(self.state.target, hidden, tokens, n)


def build_methods(state: State, shorter_verify_lens: Sequence[int] = ()) -> Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return each method of the artifact with example inputs of its fixed shapes. Slots only where the cache has any."""
    sizes = state.cache.sizes
    one = torch.ones(1, dtype=torch.long)
    methods: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
        "prefill": (Prefill(state), (blank_tokens(sizes.prefill_chunk), one)),
        "decode": (Decode(state), (blank_tokens(1),)),
        "verify": (Verify(state), (blank_tokens(sizes.verify_len),)),
        **{shorter_verify(length): (Verify(state), (blank_tokens(length),)) for length in shorter_verify_lens},
        "forward": (Forward(state), (blank_tokens(1), one)),
        "commit": (Commit(state), (one,)),
        "reset": (Reset(state), ()),
    }
    if sizes.snapshot_slots:
        methods |= {"snapshot": (SnapshotSlot(state), (one,)), "restore": (RestoreSlot(state), (one,))}
    if state.drafter is not None:
        methods |= draft_methods(state, state.drafter)
    return methods


def draft_methods(state: State, drafter: ArtifactDrafter) -> Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return the methods of the drafter, with example inputs."""

    def pairs(tokens: int) -> tuple[Tensor, ...]:
        return torch.zeros(1, tokens, drafter.width), blank_tokens(tokens), torch.ones(1, dtype=torch.long)

    sizes = state.cache.sizes
    proposing = {
        name: (Draft(state, guesses), (*pairs(sizes.verify_len), *drafter.draws(guesses)))
        for name, guesses in drafter.description.methods.items()
    }
    return {**proposing, "draft_prefill": (DraftPrefill(state), pairs(sizes.prefill_chunk))}


def blank_tokens(count: int) -> Tensor:
    """Return int64 [1, count]."""
    return torch.zeros(1, count, dtype=torch.long)
