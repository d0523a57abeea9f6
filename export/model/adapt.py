"""Make a transformers model run over a ``HybridCache``: its forward stays its own, its token mixers read and write our state.

Attention needs no code for a family: transformers calls whatever attention function the config names, and ours
(``hybridge``) looks up the cache layer by the module's ``layer_idx``. Recurrent mixers are replaced (``families``).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.operations.kernels import Scoring
from hybridge.errors import UnsupportedModelError, UsageError
from hybridge.export.model.families import ADAPTATIONS
from hybridge.export.model.families.family import Adaptation, Unregistered
from hybridge.export.pinned.transformers import choose_attention, choose_experts, keep_first_angles, rope_types
from hybridge.export.source.text_model import decoder_of
from hybridge.export.weights import EXPERTS

ATTENTION = "hybridge"


class AdaptedModel(nn.Module):
    """A causal language model over a cache: the decoder runs a block, the head makes logits of what it leaves.

    The two are apart because a prefill wants the logits of one token only. The head is the model's own forward over hidden
    states that are given, so its scales, caps and multipliers need no code here.
    """

    def __init__(self, model: PreTrainedModel, cache: HybridCache, tap_layers: Sequence[int] = ()) -> None:
        super().__init__()
        adapt(model, cache)
        self.decoder: nn.Module = decoder_of(model)
        self.taps = Taps(self.decoder, tap_layers)
        self.head = model
        model.set_submodule(next(name for name, module in model.named_modules() if module is self.decoder), Given(self.decoder))
        self.cache = Unregistered(cache)
        self.takes = inspect.signature(self.decoder.forward).parameters
        self.width: int = model.config.hidden_size
        self.requires_grad_(False)  # exported parameters must be leaves without gradients, or the lowering fails

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return hidden states [1, T, hidden] after the last norm, for tokens [1, T] over the cache's block.

        Embeddings [1, T, hidden] may take the place of tokens.
        """
        rope = self.cache.cache.block.rope_positions
        positions = {"position_ids": rope.unsqueeze(-2)} if "position_ids" in self.takes else {}
        given = {"inputs_embeds": tokens, **self._by_layer()} if tokens.is_floating_point() else {"input_ids": tokens}
        hidden: Tensor = self.decoder(**given, use_cache=False, **positions).last_hidden_state
        return hidden

    def _by_layer(self) -> dict[str, Tensor]:
        """Return what embeddings need besides if each layer reads one more (Gemma 4): rows of pictures have the pad token's."""
        if not getattr(self.decoder, "hidden_size_per_layer_input", 0):
            return {}
        decoder: Any = self.decoder
        return {"per_layer_inputs": decoder.get_per_layer_inputs(torch.full((1, 1), decoder.config.pad_token_id))}

    def logits(self, hidden: Tensor, layer: nn.Module | None = None) -> Tensor:
        """Return float32 logits [1, T, V] of hidden states [1, T, hidden]; ``layer`` takes the output layer's place."""
        own = self.head.get_output_embeddings()
        self.head.set_output_embeddings(own if layer is None else layer)
        try:
            logits: Tensor = self.head(inputs_embeds=hidden, use_cache=False).logits
        finally:
            self.head.set_output_embeddings(own)
        return logits.float()


class Given(nn.Module):
    """Stands for a decoder that was already run: what it takes for embeddings are its hidden states."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self._decoder = (decoder,)  # in a tuple, for not to own it

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> GivenOutput:
        return GivenOutput(inputs_embeds)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the decoder: heads ask it for multipliers."""
        return getattr(self.__dict__["_decoder"][0], name)


class GivenOutput:
    """A decoder's output as far as a head asks for it: hidden states, and None for whatever else a family's decoder returns."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


def adapt(model: PreTrainedModel, cache: HybridCache) -> PreTrainedModel:
    """Bind ``model`` to ``cache``, in place; run it with ``use_cache=False`` and explicit ``position_ids`` inside a block."""
    choose_attention(model.config, ATTENTION)
    choose_experts(model.config, EXPERTS)
    hold_rope(model)
    adaptation = ADAPTATIONS.get(model.config.model_type, Adaptation())  # attention alone needs none
    for index, layer in enumerate(decoder_of(model).layers):
        replace_mixers(layer, index, adaptation, cache)
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            module.hybridge = Unregistered(cache)
    adaptation.prepare(model, cache)
    return model


def adapt_layer(layer: nn.Module, index: int, config: Any, cache: HybridCache) -> None:
    """Bind a decoder layer outside of a model to the cache's layer ``index``, in place. config: its own, also changed."""
    choose_attention(config, ATTENTION)
    choose_experts(config, EXPERTS)
    module: Any
    for module in layer.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx, module.hybridge = index, Unregistered(cache)
    replace_mixers(layer, index, ADAPTATIONS.get(config.model_type, Adaptation()), cache)


def replace_mixers(layer: Any, index: int, adaptation: Adaptation, cache: HybridCache) -> None:
    """Replace the mixers of a decoder layer by those over the cache's layer ``index``."""
    for path, mixer in adaptation.mixers.items():
        *parents, name = path.split(".")
        owner = layer
        for parent in parents:
            owner = getattr(owner, parent, None)
        original = getattr(owner, name, None)
        if original is not None:
            original.layer_idx = index  # not every family's modules know their own
            setattr(owner, name, mixer(original, cache))


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend for transformers: query [B, H, T, D], key [B, G, T, D], value [B, G, T, V] to [B, T, H, V].

    softcap and s_aux (the sinks, [H]) are what it calls them. The window is the cache layer's.
    """
    cache: HybridCache = module.hybridge.cache
    layer = cache.part(module.layer_idx, AttentionLayer, "attention")
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    scoring = Scoring(scale=scaling, softcap=softcap, sinks=s_aux)
    return layer.attend(query, key, value, cache.block, scoring), None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)  # our attention reads visibility off the block's positions


# Rope whose angles depend on the length of the text, held still: a branch on values cannot be exported.
#
# Up to the cache's ``max_seq_len`` the angles are those of the start, or ``hybridge.cache.families.family`` refused
# the model.


MOVING = ("dynamic", "longrope")
"""In the names of kinds of rope: the angles follow the length."""


def hold_rope(model: nn.Module) -> None:
    """Give all rope modules of ``model`` their first angles back, for good, in place."""
    for module in model.modules():
        for prefix, kind in rope_types(module).items():
            if any(each in kind for each in MOVING):
                keep_first_angles(module, prefix)


# Hidden states of chosen layers, returned beside the logits for drafters that read them.


class Taps:
    """Keeps what passes the chosen places of a decoder.

    indices count as transformers' ``output_hidden_states`` does: 0 what goes into the first layer, i what goes into layer i,
    and the number of layers, or -1, what comes out of the final norm.
    """

    def __init__(self, decoder: Any, indices: Sequence[int]) -> None:
        """Raise UsageError for an index that no layer has."""
        count = len(decoder.layers)
        check_taps(indices, count)
        self.places = [index % (count + 1) for index in indices]
        self.last = count
        self._seen: dict[int, Tensor] = {}
        for place in {*self.places} - {count}:
            decoder.layers[place].register_forward_pre_hook(self._keep(place), with_kwargs=True)

    def _keep(self, place: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._seen[place] = args[0] if args else kwargs["hidden_states"]

        return hook

    def collect(self, last: Tensor) -> Tensor:
        """Return float32 [1, T, places x hidden] of the decoder's latest run, which ended with ``last`` [1, T, hidden].

        Raises UnsupportedModelError for a model with several residual streams inside.
        """
        kept = [last if place == self.last else self._seen[place] for place in self.places]
        self._seen.clear()
        if several := [each for each in kept if each.shape != last.shape]:
            raise UnsupportedModelError(
                f"this model's hidden states inside are {list(several[0].shape)}, not {list(last.shape)} as after its final "
                "norm: it has several residual streams, so only the last (--tap-layers -1) can be tapped."
            )
        # Joining a single one would be no operation at all, which XNNPACK cannot have at its border.
        return (torch.cat(kept, dim=-1) if len(kept) > 1 else kept[0]).float()


def check_taps(indices: Sequence[int], layers: int) -> None:
    """Raise UsageError for an index that no layer has, or that is named twice."""
    for index in indices:
        if not -layers - 1 <= index <= layers:
            raise UsageError(
                f"tap layer {index} does not exist: the model has {layers} layers, so 0 (the embeddings) to {layers} "
                "(after the final norm, also -1) can be tapped."
            )
    if len({index % (layers + 1) for index in indices}) < len(indices):
        raise UsageError(f"tap layers {list(indices)} name one place twice.")
