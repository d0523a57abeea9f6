"""A Session without an artifact: the adapted model's methods run eagerly.

Where transformers' own cached forward is wrong (several tokens at once in Mamba, Jamba, Zamba, RecurrentGemma and MiniMax),
this is the cached forward to use; and it shows what an export will compute before anything is exported.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.errors import UsageError
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.export.checkpoint.loading import logits_width
from hybridge.export.drafters.drafter import ArtifactDrafter
from hybridge.export.drafters.plan import DrafterPlan
from hybridge.export.pte.methods import State, build_methods
from hybridge.export.pte.state_cache import build_cache
from hybridge.runtime.artifacts.drafter_description import DrafterDescription
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.sessions.session import Session


@dataclass(frozen=True, kw_only=True)
class EagerDescription:
    """What a Session must know of its model; see ``hybridge.runtime.artifacts.options.Description``."""

    model_type: str
    vocab_size: int
    eos_ids: list[int]
    options: ExportOptions
    drafter: DrafterDescription | None = None
    identity: str | None = None


class EagerMethods:
    """The methods of an artifact, run in PyTorch; see ``hybridge.runtime.backends.methods.Methods``."""

    def __init__(
        self, model: PreTrainedModel, cache: HybridCache, options: ExportOptions, drafter: ArtifactDrafter | None = None
    ) -> None:
        self.cache = cache
        methods = build_methods(State(model, cache, options.tap_layers, drafter), options.shorter_verify_lens)
        self._methods = {name: module for name, (module, _) in methods.items()}
        self._bounded, self._positional = cache.bounded_buffers(), cache.positional_names()
        self._before: dict[str, Tensor] | None = None

    @torch.no_grad()
    def call(self, name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        self._undo()
        self._before = {name: each.clone() for name, each in self.cache.named_buffers() if name not in self._positional}
        outputs = self._methods[name](*inputs)
        answer = tuple(each.clone() for each in (outputs if isinstance(outputs, tuple) else (outputs,)))
        self._before = None
        return answer

    def state(self) -> Mapping[str, Tensor]:
        self._undo()
        return dict(self.cache.named_buffers())

    def bounded(self) -> Mapping[str, Tensor]:
        self._undo()
        return self._bounded

    def operations(self) -> int:
        self._undo()
        return int(self.cache.operations)

    @torch.no_grad()
    def _undo(self) -> None:
        """Take back what a call did that did not come to its end: here it is many steps, of which any may fail."""
        if self._before is None:
            return
        for name, buffer in self.cache.named_buffers():
            if name in self._before:
                buffer.copy_(self._before[name])
        # It may have written rows behind the length, which longer slots count.
        self.cache.forget_slots(self.cache.slot_length > self.cache.length)
        self._before = None


@dataclass(frozen=True)
class LoadedDrafter:
    """A drafter of ``plan_drafter`` and the weights that its plan loaded."""

    plan: DrafterPlan
    weights: nn.Module


def eager_session(
    model: PreTrainedModel, options: ExportOptions | None = None, drafter: LoadedDrafter | None = None
) -> Session:
    """Return a Session over ``model``, which stays as it is; its weights are shared, not copied.

    drafter: the model's drafter, which ``hybridge.export.drafters.plan.plan_drafter`` made of the same options.
    Raises UnsupportedModelError for a family or a layer that is not supported, UsageError for impossible sizes.
    """
    options = options or ExportOptions()
    if options.mtp and drafter is None:
        raise UsageError("options.mtp needs its drafter: eager_session(model, options, LoadedDrafter(plan, weights)).")
    config: Any = model.config.get_text_config()
    plan, own = (drafter.plan, drafter.weights) if drafter else (None, None)
    cache = build_cache(config, options, plan)
    tensors = (chain(each.parameters(), each.buffers()) for each in (model, own) if each is not None)
    weights = {id(each): each for each in chain.from_iterable(tensors)}
    eos = getattr(config, "eos_token_id", None)  # some text configs of multimodal models have none
    description = EagerDescription(
        model_type=config.model_type,
        vocab_size=logits_width(config),
        eos_ids=[] if eos is None else eos if isinstance(eos, list) else [eos],
        options=options,
        drafter=plan.description if plan else None,
    )
    model, own = copy.deepcopy((model, own), weights)  # at once, because they may share a config
    return Session(EagerMethods(model, cache, options, plan.build(own, cache) if plan else None), description)
