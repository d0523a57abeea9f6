"""Multi-token prediction: a drafter of layers that some checkpoints have beside the model's own.

With h the model's hidden states after the final norm and x the tokens, layer k (from 0 on) reads at the position of token x[t]
``z = eh_proj([norm(embed(x[t])), norm(g)])``, where g is the output of layer k - 1 at x[t - 1], for the first layer h[t - 1].
A decoder layer attends over its own z up to there, and its normed output gives by the model's own head what may be x[t + 1].
So each layer proposes one token, after those of the layers before it; the last layer then continues with its own output.

Layer k's first z is at x[k + 1], because its input before that does not exist.

Sources: transformers 5.23 ``MtpModel``; vLLM ``qwen3_5_mtp.py``, for the last layer's continuation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.families import FAMILIES as CACHES
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import DrafterLengthLayer, DrafterStateLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.layers.rope_delta import rope_delta_of
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.export.drafters.drafter import Answers, ArtifactDrafter, TargetModel
from hybridge.export.drafters.folder import MOST_LAYERS, fill, read_tensors
from hybridge.export.drafters.layers import DraftProposals, SamplingInputs, TokenSelector, known
from hybridge.export.drafters.mtp_families import FAMILIES, LAYER, MtpFamily, mtp_config, mtp_family
from hybridge.export.drafters.vocabulary import DraftRows, DraftVocabulary
from hybridge.export.model.adapt import adapt_layer
from hybridge.export.source.checkpoint import CheckpointSource, LoadedModel
from hybridge.export.source.gguf.checkpoint import gguf_drafter
from hybridge.export.source.text_model import decoder_of
from hybridge.export.source.weight_files import tensor_names
from hybridge.runtime.artifact.drafter import DrafterDescription
from hybridge.runtime.artifact.options import ExportOptions

# The layers' weights, which transformers ignores by default


class MtpLayer(nn.Module):
    """The parts around a decoder layer of the model's own class, with a norm after it if the family has one for each."""

    def __init__(self, config: Any, decoder: Any, index: int) -> None:
        super().__init__()
        norm, layer = type(decoder.norm), type(decoder.layers[0])
        self.enorm, self.hnorm = (norm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(2))
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block: nn.Module = layer(config, index)
        self.hidden_first = getattr(config, "mtp_hidden_states_first", False)
        # As in ``MtpModel``: a config with this field has one norm for all layers, or none.
        if not hasattr(config, "chain_hidden_post_norm"):
            self.norm = norm(config.hidden_size, eps=config.rms_norm_eps)

    def joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Return the input [1, T, H] of the decoder layer from embedded tokens and hidden states [1, T, H]."""
        parts = [self.enorm(embedded), self.hnorm(hidden)]
        z: Tensor = self.eh_proj(torch.cat(parts[::-1] if self.hidden_first else parts, dim=-1))
        return z


class MtpWeights(nn.Module):
    """The first ``count`` layers of multi-token prediction. config: from ``mtp_config``."""

    def __init__(self, config: Any, decoder: Any, count: int) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(MtpLayer(config, decoder, index) for index in range(count))
        if getattr(config, "chain_hidden_post_norm", False):
            self.chain_norm = type(decoder.norm)(config.hidden_size, eps=config.rms_norm_eps)

    def normed(self, index: int, out: Tensor) -> Tensor:
        """Return the output [1, T, H] of decoder layer ``index`` as the next layer and the target's head take it."""
        norm = getattr(self.layers[index], "norm", None) or getattr(self, "chain_norm", None)
        normed: Tensor = out if norm is None else norm(out)
        return normed


UNKNOWN = "?"
"""Mark of a stored name that none of our weights has."""


def load_mtp(checkpoint: LoadedModel, count: int | None = None) -> MtpWeights:
    """Read the first ``count`` layers, all if it is left out, beside a loaded checkpoint, in float32.

    Raises what ``mtp_family`` raises, UnsupportedModelError for more layers than hybridge knows of the family, and
    CheckpointError if weights are missing, misshapen or not finite, or if the config says another number of layers.
    """
    config = checkpoint.config
    family, wanted = mtp_family(config), mtp_config(config)
    with torch.device("meta"):
        drafter = MtpWeights(wanted, decoder_of(checkpoint.model), min(count or MOST_LAYERS, wanted.num_hidden_layers))
    stored = family.restored(_stored(checkpoint.source, lambda name: family.inside(name, config)))
    _check_layers(checkpoint, family, stored, wanted.num_hidden_layers)
    unused = {name for name in stored if (layer := LAYER.match(name)) and int(layer[1]) >= len(drafter.layers)}
    stored = {name: each for name, each in stored.items() if name not in unused}
    named = {family.stored(name): name for name in drafter.state_dict()}
    shown = {own: family.outside(name, config) for name, own in named.items()}
    fill(
        drafter,
        {named.get(name, f"{UNKNOWN}{name}"): each for name, each in stored.items()},
        checkpoint.source.path,
        shown=lambda name: shown.get(name) or family.outside(name.removeprefix(UNKNOWN), config),
        advice="its drafter cannot be exported, leave out --mtp.",
    )
    return drafter


def _stored(source: CheckpointSource, inside: Callable[[str], str | None]) -> dict[str, Tensor]:
    """Return the tensors that ``inside`` has a name for, by that name, of a folder or a GGUF file."""
    if source.gguf is None:
        return read_tensors(source.folder, inside)
    weights = gguf_drafter(source.gguf)
    return {new: each[...] for name, each in weights.items() if (new := inside(name)) is not None}


def _check_layers(checkpoint: LoadedModel, family: MtpFamily, stored: dict[str, Tensor], layers: int) -> None:
    if not stored:
        place = family.outside("layers.0.*" if family.after_model else "*", checkpoint.config)
        raise CheckpointError(f"{checkpoint.source.path} has no {place} weights to make a drafter of; export it without --mtp.")
    found = {int(layer[1]) for name in stored if (layer := LAYER.match(name))}
    if found == {*range(layers)}:
        return
    more = [name for name in stored if (layer := LAYER.match(name)) and int(layer[1]) >= layers]
    if more and not hasattr(checkpoint.config, "num_mtp_layers"):
        raise UnsupportedModelError(
            f"{family.outside(more[0], checkpoint.config)}: drafters of several layers are not supported for "
            f"{checkpoint.config.model_type!r} models; export without --mtp."
        )
    raise CheckpointError(
        f"{checkpoint.source.path} has {len(found)} layers of multi-token prediction, but its config.json says {layers}; "
        "take the config.json and the weights of one checkpoint, or export without --mtp."
    )


class MtpDrafter(ArtifactDrafter):
    """The drafter over the model and the cache; its layers' state is after its length."""

    def __init__(self, weights: MtpWeights, cache: HybridCache, place: int, description: DrafterDescription) -> None:
        super().__init__(cache, place, description)
        self.weights, self.width = weights, weights.config.hidden_size
        for index in range(self.count):
            adapt_layer(self._weights_of(index).block, place + 1 + index, weights.config, cache)

    @property
    def count(self) -> int:
        """Return the number of layers."""
        return len(self.weights.layers)

    def read(self, target: TargetModel, hidden: Tensor, tokens: Tensor, count: Tensor) -> Tensor:
        block = self.length.extend(tokens.shape[1], count)
        h = known(hidden, block)
        for index in range(self.count):
            h = self._carried(index, self._run(target, index, h, tokens, block, drafts=False), block)[:, : tokens.shape[1]]
        return self.close(block)

    def draft(
        self, target: TargetModel, draft_len: int, hidden: Tensor, tokens: Tensor, count: Tensor, *draws: Tensor
    ) -> Answers:
        block = self.length.extend(tokens.shape[1], count, draft_len)
        selector = TokenSelector(self.length.kernels, SamplingInputs(*draws), self.ids)
        h, g, steps = known(hidden, block), hidden, list[DraftProposals]()
        for i in range(draft_len):
            if i < self.count:
                out = self._run(target, i, h, following(tokens, [each.tokens for each in steps], block), block, drafts=True)
                h, g = self._carried(i, out, block), out.index_select(1, (block.count + i - 1).clamp(min=0))
            else:
                g = self._go_on(target, g, steps[-1].tokens, block, i)
            steps.append(selector.choose(target.logits(g), i))
        return DraftProposals.joined(steps).answers(self.close(block) >= 0)

    def _weights_of(self, index: int) -> MtpLayer:
        return self.weights.layers[index]  # type: ignore[return-value]  # a ModuleList forgets what it holds

    def _state(self, index: int) -> DrafterStateLayer:
        return self.cache.layers[self.place + 1 + index]  # type: ignore[return-value]  # likewise

    def _carried(self, index: int, out: Tensor, block: Block) -> Tensor:
        """Return the next layer's input [1, T + 1, H]: the layer's last output before the block, then out [1, T, H].

        For the last layer return ``out`` itself.
        """
        if index == self.count - 1:
            return out
        return self._state(index).carried.carry(out, block)

    def _run(self, target: TargetModel, index: int, h: Tensor, tokens: Tensor, block: Block, *, drafts: bool) -> Tensor:
        """Run layer ``index`` over h [1, T, H] and tokens [1, T], and return its output [1, T, H].

        Its first row is at the text's token ``index`` + 1, so rows for tokens before that are left out.

        Args:
            drafts: draft tokens follow those that count.
        """
        missing = (index - block.start).clamp(min=0)
        start, count = ((each - by).clamp(min=0) for each, by in ((block.start, index), (block.count, missing)))
        if index:
            h, tokens = moved(h, missing), moved(tokens, missing)
        every = torch.full_like(count, h.shape[1]) if drafts else count
        own = Block(start=start, count=every, length=h.shape[1], tentative=drafts, ahead=index + 1)
        out = self._layer(target, index, h, tokens, own)
        if drafts:
            self._state(index).accept(count)
        return moved(out, -missing) if index else out

    def _go_on(self, target: TargetModel, g: Tensor, token: Tensor, block: Block, i: int) -> Tensor:
        """Run the last layer over its own output g [1, 1, H] and the draft token ``i`` - 1, which are not stored."""
        last = self.count - 1
        start = block.start + block.count + (i - 1 - last)
        return self._layer(target, last, g, token, Block(start=start, count=torch.ones_like(start), length=1, ahead=last + 1))

    def _layer(self, target: TargetModel, index: int, h: Tensor, tokens: Tensor, block: Block) -> Tensor:
        layer = self._weights_of(index)
        z = layer.joined(target.embed(tokens), h)
        self.cache.block = block
        rotary: Any = getattr(target.decoder, "rotary_emb", None)
        delta = rope_delta_of(self.cache.cache_layers())  # rows of pictures are a text to the drafter
        positions = block.text_positions if delta is None else block.text_positions + delta.rope_delta[0]
        rope = None if rotary is None else rotary(z, positions[None])
        return self.weights.normed(index, layer.block(z, position_embeddings=rope, attention_mask=None))


def moved(rows: Tensor, by: Tensor) -> Tensor:
    """Return rows [1, T, ...] with row i + ``by`` (int64 [1]) at i; rows beyond the ends repeat others."""
    last = rows.shape[1] - 1
    return rows.index_select(1, (torch.arange(last + 1) + by).clamp(0, last))


def following(tokens: Tensor, drafted: list[Tensor], block: Block) -> Tensor:
    """Return tokens [1, T + N]: those of the block that count, then N draft tokens, then padding."""
    if not drafted:
        return tokens
    T, length = tokens.shape[1], tokens.shape[1] + len(drafted)
    place = torch.arange(length)
    source = torch.where(place < block.count, place, T + place - block.count).clamp(max=length - 1)
    return torch.cat([tokens, *drafted], dim=1).index_select(1, source)


# The plan


def plan_mtp(
    config: Any, options: ExportOptions, vocabulary: DraftVocabulary | None, otherwise: ExportOptions | None = None
) -> tuple[MtpPlan, ExportOptions]:
    """Return the plan of the drafter, and the options with the hidden states that it reads.

    otherwise: as of ``MtpPlan``; then it has no more draft tokens than its layers allow. Raises what ``check_mtp`` raises.
    """
    family, layers = mtp_family(config), config.num_hidden_layers
    if otherwise is not None and not family.continues:
        options = replace(options, draft_len=min(options.draft_len, family.layers(config)))
    check_mtp(config, options)
    tap = next((tap for tap in options.tap_layers if tap % (layers + 1) == layers), None)
    if tap is None:
        tap, options = -1, replace(options, tap_layers=(*options.tap_layers, -1))
    longest = min(options.draft_len, max(options.verify_len - 1, 1)) + 1
    # Each layer reads every pair when it proposes, so no block is too short for one of them.
    count = min(longest - 1, family.layers(config))
    blocks = (*(length for length in options.verify_lens if count < length < longest), longest)
    return MtpPlan(config, blocks, vocabulary, tap, otherwise), options


def has_mtp(source: CheckpointSource) -> bool:
    """Return whether a checkpoint has such layers of a family that hybridge knows, by its config and its weights' names."""
    config = source.text_config
    family = FAMILIES.get(config.model_type)
    if family is None or not 1 <= family.layers(config) <= MOST_LAYERS:
        return False
    files = sorted(source.folder.glob("*.safetensors"))
    names = gguf_drafter(source.gguf) if source.gguf else (name for path in files for name in tensor_names(path))
    return any(family.inside(name, config) is not None for name in names)


def check_mtp(config: Any, options: ExportOptions) -> None:
    """Raise what ``mtp_family`` raises, and UsageError for options that no drafter can have."""
    mtp_family(config)
    # Refused draft tokens go after the last position, where there are rows for one block.
    most = max(options.prefill_chunk, options.verify_len)
    if not 1 <= options.draft_len <= most:
        raise UsageError(f"draft_len is {options.draft_len}, but must lie between 1 and {most} (the longest block of tokens).")


def mtp_state(config: Any, sizes: CacheSizes, kernels: Kernels, count: int) -> list[DrafterStateLayer]:
    """Return the state of the first ``count`` layers of ``mtp_config``; all but the last carry their last output."""
    builders = CACHES[config.model_type].layers

    def layer(index: int) -> DrafterStateLayer:
        build = builders[config.layer_types[index]]
        carried = config.hidden_size if index < count - 1 else 0
        return DrafterStateLayer(sizes, kernels, lambda own: build(config, own, kernels, index), ahead=index, carried=carried)

    return [layer(index) for index in range(count)]


@dataclass(frozen=True)
class MtpPlan:
    """The drafter made of the layers of multi-token prediction in the target's own checkpoint.

    tap: the target's last hidden states among its taps. otherwise: the options of the export without this drafter, if it may
    be left out.
    """

    config: Any
    blocks: tuple[int, ...]
    vocabulary: DraftVocabulary | None = None
    tap: int = -1
    otherwise: ExportOptions | None = None
    reads_target: bool = False
    before_window: int = 0

    @property
    def draft_len(self) -> int:
        """Return the number of draft tokens of the longest block."""
        return self.blocks[-1] - 1

    @property
    def count(self) -> int:
        """Return the number of layers that propose: one a draft token, as far as there are any."""
        layers: int = mtp_config(self.config).num_hidden_layers
        return min(self.draft_len, layers)

    @property
    def description(self) -> DrafterDescription:
        return DrafterDescription(kind="mtp", taps=(self.tap,), blocks=self.blocks, samples=True)

    def layers(self, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
        layers = mtp_state(mtp_config(self.config), sizes, kernels, self.count)
        if self.draft_len > len(layers) and layers[-1].has_bounded_state:
            raise UsageError(
                f"draft_len is {self.draft_len}, but this {self.config.model_type!r} model has {len(layers)} layers of "
                f"multi-token prediction, none of which can continue with its own output; give --draft-len {len(layers)}."
            )
        return [DrafterLengthLayer(sizes, kernels), *layers]

    def load(self, checkpoint: LoadedModel) -> MtpWeights:
        return load_mtp(checkpoint, self.count)

    def build(self, weights: Any, cache: HybridCache, head: Any, rows: DraftRows | None = None) -> ArtifactDrafter:
        drafter = MtpDrafter(weights, cache, len(cache.layers) - 1 - self.count, self.description)
        return drafter.restricted_to(rows, head)
