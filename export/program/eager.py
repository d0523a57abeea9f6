"""Run the methods of an artifact eagerly: a Session without an artifact.

It shows the results of an export before there is one, and replaces transformers' cached forward where that is wrong (several
tokens at once in Mamba, Jamba, Zamba, RecurrentGemma and MiniMax).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.errors import UsageError
from hybridge.export.drafters.drafter import ArtifactDrafter, DrafterPlan
from hybridge.export.drafters.vocabulary import DraftRows
from hybridge.export.program.build import build_cache, resolve_state
from hybridge.export.program.methods import build_methods
from hybridge.export.program.state import State
from hybridge.export.source.checkpoint import logits_width
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.session import Session


class EagerProgram:
    """The methods of an artifact, run in PyTorch; see ``hybridge.runtime.binding.programs.Program``."""

    is_atomic = True

    def __init__(
        self, model: PreTrainedModel, cache: HybridCache, options: ExportOptions, drafter: ArtifactDrafter | None = None
    ) -> None:
        self.cache = cache
        methods = build_methods(State(model, cache, options.tap_layers, drafter), options.shorter_verify_lens)
        self._methods = {name: module for name, (module, _) in methods.items()}
        self._buffers = {name: each.numpy() for name, each in cache.named_buffers()}
        self._positional = cache.positional_names()
        self.names = [name for name in self._buffers if name == "staged" or not name.rpartition(".")[2].startswith("staged")]
        self.bounded = list(cache.bounded_buffers())

    def buffer(self, name: str) -> NDArray[Any]:
        """Return a buffer's memory. Raises KeyError without one."""
        return self._buffers[name]

    @torch.no_grad()
    def call(self, name: str, *inputs: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Run a method. Roll back if it fails or is interrupted, because a method is many steps here."""
        before = {name: each.clone() for name, each in self.cache.named_buffers() if name not in self._positional}
        try:
            outputs = self._methods[name](*(torch.tensor(each) for each in inputs))
            return tuple(each.clone().numpy() for each in (outputs if isinstance(outputs, tuple) else (outputs,)))
        except BaseException:
            self._undo(before)
            raise

    def _undo(self, before: Mapping[str, Tensor]) -> None:
        for name, buffer in self.cache.named_buffers():
            if name in before:
                buffer.copy_(before[name])
        # The call may have written rows after the length, which belong to longer slots.
        self.cache.forget_slots(self.cache.slot_length > self.cache.length)


@dataclass(frozen=True)
class LoadedDrafter:
    """A drafter of ``plan_drafter``, the weights that its plan loaded, and the tokens that were chosen for it, if not all."""

    plan: DrafterPlan
    weights: nn.Module
    rows: DraftRows | None = None


def eager_session(
    model: PreTrainedModel, options: ExportOptions | None = None, drafter: LoadedDrafter | None = None
) -> Session:
    """Return a Session over ``model``, which stays as it is; its weights are shared, not copied.

    drafter: as ``hybridge.export.drafters.plan.plan_drafter`` planned it with the same options.
    Raises UnsupportedModelError for a family or a layer that is not supported, UsageError for impossible sizes.
    """
    options = options or ExportOptions()
    if options.mtp and drafter is None:
        raise UsageError("options.mtp needs its drafter: eager_session(model, options, LoadedDrafter(plan, weights)).")
    config: Any = model.config.get_text_config()
    options = resolve_state(options, config)
    plan, own = (drafter.plan, drafter.weights) if drafter else (None, None)
    cache = build_cache(config, options, plan)
    tensors = (chain(each.parameters(), each.buffers()) for each in (model, own) if each is not None)
    weights = {id(each): each for each in chain.from_iterable(tensors)}
    eos = getattr(config, "eos_token_id", None)  # some text configs of multimodal models have none
    info = ProgramInfo(
        model_type=config.model_type,
        vocab_size=logits_width(config),
        eos_ids=[] if eos is None else eos if isinstance(eos, list) else [eos],
        options=options,
        drafter=plan.description if plan else None,
    )
    model, own = copy.deepcopy((model, own), weights)  # at once, because they may share a config
    built = plan.build(own, cache, model.get_output_embeddings(), drafter.rows) if plan and drafter else None
    return Session.over(EagerProgram(model, cache, options, built), info)
