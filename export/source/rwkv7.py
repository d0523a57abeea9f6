"""RWKV-7, which transformers does not have: its config and its model in the layout that flash-linear-attention publishes.

For each layer, with x the normed input and x' that of the token before:

    r, w, k, v, a, g = projections of x + (x' - x) * mix, one mix for each
    log_decay = -exp(-1/2) sigmoid(w),  a = sigmoid(a),  removed = normalize(k * k_k by head)
    v = v + (v of layer 0 - v) sigmoid(v_lora),  k = k (1 + (a - 1) k_a)
    out = o_proj((norm(generalized delta rule by head) + (sum of r k r_k) v) g)

and a feed-forward layer of relu(key(x + (x' - x) mix))^2.

Importing this module lets transformers' auto classes load such a checkpoint, without the code that is published beside it.
Source: Peng et al., "RWKV-7 Goose" (arXiv:2503.14456); the names of flash-linear-attention's ``RWKV7ForCausalLM``.

Axes: B batch, T tokens, H heads, K head dim.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from hybridge.cache.recurrences.generalized_delta_rule import GeneralizedDeltaInputs, generalized_delta_rule_naive

FASTEST = -math.exp(-0.5)
"""The lowest log decay."""


class Rwkv7Config(PreTrainedConfig):  # type: ignore[misc]  # an untyped base
    """The fields of a published config.json that decide the shape of the model."""

    model_type = "rwkv7"

    vocab_size: int = 65536
    hidden_size: int = 2048
    num_hidden_layers: int = 24
    head_dim: int | None = 64
    num_heads: int | None = None
    hidden_ratio: float | None = 4.0
    intermediate_size: int | None = None
    decay_low_rank_dim: int | None = None
    gate_low_rank_dim: int | None = None
    a_low_rank_dim: int | None = None
    v_low_rank_dim: int | None = None
    value_dim: int | list[int] | None = None
    hidden_act: str = "sqrelu"
    norm_first: bool = True
    norm_bias: bool = True
    norm_eps: float = 1e-5
    attn: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in the sizes that a config may leave out, as flash-linear-attention does."""
        if self.head_dim is None and self.num_heads:
            self.head_dim = self.hidden_size // self.num_heads
        if self.intermediate_size is None:
            self.intermediate_size = 32 * math.ceil(int(self.hidden_size * (self.hidden_ratio or 4)) / 32)
        by_head = (self.head_dim or 64) / 64
        for name, factor in (("decay", 2.5 * by_head), ("gate", 5.0), ("a", 2.5 * by_head), ("v", 1.7 * by_head)):
            if getattr(self, f"{name}_low_rank_dim") is None:
                rank = max(32, round(factor * self.hidden_size**0.5 / 32) * 32)
                setattr(self, f"{name}_low_rank_dim", rank)
        super().__post_init__(**kwargs)


class LowRank(nn.Module):
    """A projection through few dims, [.., hidden] to [.., hidden]."""

    def __init__(self, hidden: int, rank: int, activation: nn.Module, *, bias: bool = True) -> None:
        super().__init__()
        self.lora = nn.Sequential(nn.Linear(hidden, rank, bias=False), activation, nn.Linear(rank, hidden, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        """Project x."""
        out: Tensor = self.lora(x)
        return out


class HeadNorm(nn.Module):
    """A layer norm of each head of [B, T, H, K]; weight and bias [H K]."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, H K]."""
        return F.layer_norm(x, x.shape[-1:], eps=self.eps).flatten(-2) * self.weight + self.bias


class Rwkv7Attention(nn.Module):
    """The mixer. ``previous`` and ``rule`` are its way through the state; without a cache both begin a text."""

    r_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        hidden, self.head_dim, self.layer_idx = config.hidden_size, config.head_dim, layer_idx
        for name in "rwkvag":
            setattr(self, f"x_{name}", nn.Parameter(torch.zeros(1, 1, hidden)))
        self.k_k, self.k_a = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.ones(hidden))
        self.r_k = nn.Parameter(torch.zeros(hidden // config.head_dim, config.head_dim))
        for name in "rkvo":
            setattr(self, f"{name}_proj", nn.Linear(hidden, hidden, bias=False))
        self.w_lora = LowRank(hidden, config.decay_low_rank_dim, nn.Tanh())
        self.a_lora = LowRank(hidden, config.a_low_rank_dim, nn.Identity())
        self.g_lora = LowRank(hidden, config.gate_low_rank_dim, nn.Sigmoid(), bias=False)
        if layer_idx:
            self.v_lora = LowRank(hidden, config.v_low_rank_dim, nn.Identity())
        self.g_norm = HeadNorm(hidden, config.head_dim * config.norm_eps)

    def previous(self, x: Tensor) -> Tensor:
        """Return x [B, T, hidden] of the token before each."""
        return before(x)

    def rule(self, query: Tensor, inputs: GeneralizedDeltaInputs) -> Tensor:
        """Run the rule over query [B, T, H, K] and inputs. Returns [B, T, H, K]."""
        state = query.new_zeros(query.shape[0], query.shape[2], self.head_dim, self.head_dim)
        return generalized_delta_rule_naive(query.transpose(1, 2), inputs.by_head(), state)[0].transpose(1, 2)

    def forward(self, x: Tensor, first_value: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mix x [B, T, hidden]; first_value is layer 0's, None in layer 0. Returns the output and layer 0's value."""
        delta = self.previous(x) - x
        r, w, k, v, a, g = (x + delta * getattr(self, f"x_{name}") for name in "rwkvag")
        value: Tensor = self.v_proj(v)
        if first_value is not None:
            value = value + (first_value - value) * self.v_lora(v).sigmoid()
        rate, key, query = self.a_lora(a).sigmoid(), self.k_proj(k), self._heads(self.r_proj(r))
        removed = normalize(self._heads(key * self.k_k))
        written = self._heads(key * (1 + (rate - 1) * self.k_a))
        log_decay = FASTEST * self.w_lora(w).sigmoid()
        values = self._heads(value)
        out = self.rule(query, GeneralizedDeltaInputs(self._heads(log_decay), self._heads(rate), removed, written, values))
        direct = (query * written * self.r_k).sum(-1, keepdim=True) * values
        mixed: Tensor = self.o_proj((self.g_norm(out) + direct.flatten(-2)) * self.g_lora(g))
        return mixed, value if first_value is None else first_value

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.head_dim))
        return heads


class Rwkv7FeedForward(nn.Module):
    """The feed-forward layer, which sees the token before, too."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.zeros(config.hidden_size))
        self.key = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.value = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def previous(self, x: Tensor) -> Tensor:
        """Return x [B, T, hidden] of the token before each."""
        return before(x)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, T, hidden] to the same."""
        key = F.relu(self.key(x + (self.previous(x) - x) * self.x_k))
        out: Tensor = self.value(key * key)
        return out


class Rwkv7Block(nn.Module):
    """A decoder layer."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        if config.norm_first and not layer_idx:
            self.pre_norm = _norm(config)
        self.attn_norm, self.attn = _norm(config), Rwkv7Attention(config, layer_idx)
        self.ffn_norm, self.ffn = _norm(config), Rwkv7FeedForward(config)

    def forward(self, hidden_states: Tensor, first_value: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the hidden states [B, T, hidden] after the layer, and layer 0's value."""
        if hasattr(self, "pre_norm"):
            hidden_states = self.pre_norm(hidden_states)
        mixed, first_value = self.attn(self.attn_norm(hidden_states), first_value)
        hidden_states = hidden_states + mixed
        return hidden_states + self.ffn(self.ffn_norm(hidden_states)), first_value


class Rwkv7PreTrainedModel(PreTrainedModel):  # type: ignore[misc]  # an untyped base
    """The names that transformers asks of a model class."""

    config: Rwkv7Config
    config_class = Rwkv7Config
    base_model_prefix = "model"


class Rwkv7Model(Rwkv7PreTrainedModel):
    """The decoder."""

    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Rwkv7Block(config, index) for index in range(config.num_hidden_layers))
        self.norm = _norm(config)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        """Return the embedding."""
        return self.embeddings

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the embedding."""
        self.embeddings = value

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, use_cache: bool | None = None
    ) -> BaseModelOutputWithPast:
        """Return hidden states [B, T, hidden] of input_ids [B, T], or of inputs_embeds. There is no cache of its own."""
        hidden: Tensor = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        value = None
        for layer in self.layers:
            hidden, value = layer(hidden, value)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden))


class Rwkv7ForCausalLM(Rwkv7PreTrainedModel, GenerationMixin):  # type: ignore[misc]  # untyped bases
    """The decoder and its head."""

    _keys_to_ignore_on_load_unexpected: ClassVar = [r"model\.layers\.0\.attn\.v_lora\."]  # in GGUF files, and without use
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embeddings.weight"}

    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__(config)
        self.model = Rwkv7Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, use_cache: bool | None = None
    ) -> CausalLMOutputWithPast:
        """Return logits [B, T, vocabulary] of input_ids [B, T], or of inputs_embeds [B, T, hidden]."""
        hidden = self.model(input_ids=input_ids, inputs_embeds=inputs_embeds).last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(hidden))


def before(x: Tensor) -> Tensor:
    """Return x [B, T, C] moved by one token, with zeros at the first."""
    return F.pad(x, (0, 0, 1, -1))


def normalize(x: Tensor) -> Tensor:
    """Divide x by its length over the last dimension, as ``F.normalize`` does."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True).clamp(min=1e-24))


def _norm(config: Any) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)


AutoConfig.register("rwkv7", Rwkv7Config, exist_ok=True)
AutoModelForCausalLM.register(Rwkv7Config, Rwkv7ForCausalLM, exist_ok=True)
