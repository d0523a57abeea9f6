"""EAGLE-3: a llama layer that predicts the target's next state from hidden states of three layers and the token that came.

With h = fc(hidden states) at position p and x the token after it, ``g = layer([norm(embed(x)), norm(h)])`` gives by the
drafter's own head what may come next; one step further g stands for h. Sources: EAGLE-3, arXiv:2503.01840; vLLM
``llama_eagle3.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hybridge.cache.block import Block
from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import DrafterAttentionLayer, step
from hybridge.cache.operations.kernels import Scoring
from hybridge.export.drafters.block_layers import Attention, Chooser, Draws, Mlp, RmsNorm
from hybridge.export.drafters.checkpoint import Fields, Rope, fill, load_rope, read_tensors
from hybridge.export.drafters.drafter import Answers, ArtifactDrafter, Target
from hybridge.export.layers import constant
from hybridge.export.model.families.family import Unregistered
from hybridge.runtime.artifacts.options import DrafterDescription

LAYER = "layers.0."
EMBEDDING, IDS = "embed_tokens.weight", "d2t"


class EagleLayer(nn.Module):
    """The layer, named as in a checkpoint."""

    def __init__(self, c: EagleConfig) -> None:
        super().__init__()
        self.scale, self.norm_before_residual = c.head_dim**-0.5, c.norm_before_residual
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            RmsNorm(c.hidden_size, c.eps) for _ in range(3)
        )
        self.self_attn = Attention(c, width=2 * c.hidden_size, norms=False)
        self.mlp = Mlp(c)

    def forward(self, state: DrafterAttentionLayer, embedded: Tensor, h: Tensor, block: Block, rope: Rope) -> Tensor:
        """Run rows h [1, T, H] with the embedded tokens [1, T, H] after each."""
        normed = self.hidden_norm(h)
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        angles, attention = rope.angles(block.positions), self.self_attn
        keys, values = attention.rows(both, angles)
        out: Tensor = state.attend(attention.query(both, angles), keys, values, block, Scoring(scale=self.scale))
        h = (normed if self.norm_before_residual else h) + attention.o_proj(out.flatten(2))
        answer: Tensor = h + self.mlp(self.post_attention_layernorm(h))
        return answer


class EagleWeights(nn.Module):
    """The modules of a checkpoint, and after ``load_eagle`` its rotary embedding and what token each of its logits is of."""

    def __init__(self, c: EagleConfig, own_embedding: bool, taps: int) -> None:
        super().__init__()
        self.width = taps * c.target_width
        self.fc = nn.Linear(self.width, c.hidden_size, bias=False)
        self.layers = nn.ModuleList([EagleLayer(c)])
        self.norm, self.lm_head = RmsNorm(c.hidden_size, c.eps), nn.Linear(c.hidden_size, c.draft_vocab, bias=False)
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size) if own_embedding else None

    def complete(self, rope: Rope, ids: Tensor | None) -> None:
        """Add the rotary embedding and ids int64 [draft_vocab], none where they are those of the target."""
        self.rope, self.ids = rope, None if ids is None else constant(ids)


def load_eagle(folder: Path, c: EagleConfig, taps: int, embedding: Tensor) -> EagleWeights:
    """Read the weights in ``folder``, in float32. embedding: the target's, [V, H].

    Raises CheckpointError where weights are missing, unknown, misshapen or not finite.
    """
    rope = load_rope(folder, c)
    found = read_tensors(folder, _renamed)
    if not found:
        raise CheckpointError(f"{folder} has no *.safetensors with a drafter's weights; get the checkpoint again.")
    ids = _ids(folder, found.pop(IDS, None), c)
    if EMBEDDING in found and found[EMBEDDING].shape == embedding.shape and torch.equal(found[EMBEDDING], embedding.float()):
        del found[EMBEDDING]
    if EMBEDDING not in found and c.hidden_size != c.target_width:
        raise CheckpointError(f"{folder} lacks {EMBEDDING}, and the target's is {c.target_width} wide, not {c.hidden_size}.")
    with torch.device("meta"):
        weights = EagleWeights(c, EMBEDDING in found, taps)
    fill(weights, found, folder, advice="is it whole, and are its config.json and its weights of one drafter?")
    weights.complete(rope, ids)
    return weights


def _renamed(name: str) -> str | None:
    name = name.removeprefix("model.").replace("midlayer.", LAYER, 1)
    return None if name in ("t2d", "rotary_emb.inv_freq") else name


def _ids(folder: Path, offsets: Tensor | None, c: EagleConfig) -> Tensor | None:
    """What token each logit is of, from how far it is from its index; none where all are their own."""
    if offsets is None:
        if c.draft_vocab != c.vocab_size:
            raise CheckpointError(f"{folder} lacks {IDS}, which says what its {c.draft_vocab} logits are of.")
        return None
    ids = offsets.round().long() + torch.arange(len(offsets))
    if ids.shape != (c.draft_vocab,) or not 0 <= int(ids.min()) <= int(ids.max()) < c.vocab_size:
        raise CheckpointError(
            f"{IDS} in {folder} does not say {c.draft_vocab} tokens of {c.vocab_size}; the weights are damaged."
        )
    return ids


class EagleDrafter(ArtifactDrafter):
    """The drafter over the target's embedding and the cache; its attention layer is the one behind its length."""

    def __init__(self, weights: EagleWeights, cache: HybridCache, place: int, description: DrafterDescription) -> None:
        super().__init__(cache, place, description)
        self.weights, self.state = weights, Unregistered(cache)
        self.width = weights.width

    def draws(self, count: int) -> tuple[Tensor, ...]:
        return torch.zeros(1, count), torch.zeros(1)

    def read(self, target: Target, hidden: Tensor, tokens: Tensor, count: Tensor) -> Tensor:
        return self.close(self._read(target, hidden, tokens, count, 0)[1])

    def draft(self, target: Target, guesses: int, hidden: Tensor, tokens: Tensor, count: Tensor, *draws: Tensor) -> Answers:
        g, block = self._read(target, hidden, tokens, count, guesses)
        g = g.index_select(1, (block.count - 1).clamp(min=0))
        chooser = Chooser(self.length.kernels, Draws(*draws), self.weights.ids)
        found, chances, scores = list[Tensor](), list[Tensor](), list[Tensor]()
        for i in range(guesses):
            if i:
                g = self._run(target, g, found[-1], step(block, i - 1))
            scores.append(self.weights.lm_head(self.weights.norm(g)))
            index, chance = chooser.at(i).choose(scores[-1])
            found.append(chooser.named(index))
            chances.append(chance)
        fits = self.close(block) >= 0
        answers = torch.where(fits, torch.cat(found, dim=1), -1), torch.cat(chances, dim=1), torch.cat(scores, dim=1)
        candidates = chooser.candidates
        return answers if candidates is None else (*answers, candidates)

    def _read(self, target: Target, hidden: Tensor, tokens: Tensor, count: Tensor, ahead: int) -> tuple[Tensor, Block]:
        block = self.length.extend(tokens.shape[1], count, ahead)
        # A select: padding may be NaN, and in a value not even a weight of 0 would hide that.
        return self._run(target, self.weights.fc(torch.where(block.real[:, None], hidden, 0.0)), tokens, block), block

    def _run(self, target: Target, h: Tensor, tokens: Tensor, block: Block) -> Tensor:
        own = self.weights.embed_tokens
        embedded = target.embed(tokens) if own is None else own(tokens)
        state = self.state.cache.part(self.place + 1, DrafterAttentionLayer)
        out: Tensor = self.weights.layers[0](state, embedded, h, block, self.weights.rope)
        return out


# What an EAGLE-3 drafter's config.json says, in the form of its authors and SGLang, and in that of vLLM's
# speculators.
#
# Sources: vLLM ``llama_eagle3.py``; SGLang ``llama_eagle3.py``; mlx-vlm ``speculative/drafters/eagle3/config.py``.


ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3DraftModel", "Eagle3Speculator")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """An EAGLE-3 drafter: one llama layer over a token's embedding and the state before it.

    target_width: of the target's hidden states; taps: which of them, as transformers counts them, none for the default;
    draft_vocab: tokens of its own head; norm_before_residual: the residual is the normed state.
    """

    hidden_size: int
    target_width: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    bias: bool
    vocab_size: int
    draft_vocab: int
    rope: Mapping[str, Any]
    taps: tuple[int, ...]
    norm_before_residual: bool


def read_eagle_config(path: Path, content: Mapping[str, Any]) -> EagleConfig | None:
    """Return what the config.json in ``path`` says, or None where it is not of EAGLE-3.

    Raises CheckpointError for values that no drafter can have, UnsupportedModelError for parts that hybridge does not know.
    """
    layer, nested = content.get("transformer_layer_config"), content.get("eagle_config")
    fields = Fields(path, {**(layer if isinstance(layer, Mapping) else {}), **content})
    named = {*fields.names("architectures")} & {*ARCHITECTURES}
    if not named and fields.get("speculators_model_type") != "eagle3":
        return None
    _refuse_unknown_parts(fields)
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    # vLLM names the layers that a state enters, SGLang those that it leaves: two names of one place differ by one.
    taps = fields.counts(LAYER_IDS) if fields.get(LAYER_IDS) is not None else []
    if not taps and isinstance(nested, Mapping) and nested.get(LAYER_IDS) is not None:
        taps = [index + 1 for index in Fields(path, nested).counts(LAYER_IDS)]
    vocab = fields.count("vocab_size")
    return EagleConfig(
        hidden_size=hidden,
        target_width=fields.count("target_hidden_size", hidden),
        intermediate_size=fields.count("intermediate_size"),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=fields.count("head_dim", max(1, hidden // heads)),
        eps=fields.number("rms_norm_eps", 1e-6),
        bias=fields.truth("attention_bias", False),
        vocab_size=vocab,
        draft_vocab=fields.count("draft_vocab_size", vocab),
        rope=fields.rope(),
        taps=tuple(taps),
        norm_before_residual=fields.truth("norm_before_residual", False),
    )


def _refuse_unknown_parts(fields: Fields) -> None:
    known = {
        "hidden_act": ("silu",),
        "num_hidden_layers": (1,),
        "norm_before_fc": (False,),
        "model_type": ("llama", "qwen3", "eagle3"),
    }
    for name, values in known.items():
        if (value := fields.get(name)) is not None and value not in values:
            raise UnsupportedModelError(
                f"{fields.path} asks for {name} {value!r}, which hybridge knows no EAGLE-3 drafter with."
            )
