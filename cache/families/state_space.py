"""Define the layers of families with Mamba, Mamba-2, lightning attention or RG-LRU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridge.cache.block import CacheSizes
from hybridge.cache.families.attention import full_attention, head_dim, sliding_attention, unwindowed
from hybridge.cache.families.family import ADVICE, Config, Family, Signatures, check_positive
from hybridge.cache.layers.layer import CacheLayer, CompositeLayer, StatelessLayer
from hybridge.cache.layers.recurrent import LightningAttentionLayer, Mamba2Layer, MambaLayer, RgLruLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import CheckpointError


def mamba(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    check_positive(config, "intermediate_size", "state_size", "conv_kernel")
    channels, states, kernel = config.intermediate_size, config.state_size, config.conv_kernel
    return MambaLayer(sizes, kernels, channels=channels, state_dim=states, conv_kernel=kernel)


def jamba_mamba(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    check_positive(config, "mamba_expand", "mamba_d_state", "mamba_d_conv")
    channels = config.mamba_expand * config.hidden_size
    return MambaLayer(sizes, kernels, channels=channels, state_dim=config.mamba_d_state, conv_kernel=config.mamba_d_conv)


def zamba_mamba(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    check_positive(config, "mamba_expand", "mamba_d_state", "mamba_d_conv", "n_mamba_heads")
    channels, states, kernel = config.mamba_expand * config.hidden_size, config.mamba_d_state, config.mamba_d_conv
    return MambaLayer(sizes, kernels, channels=channels, state_dim=states, conv_kernel=kernel, heads=config.n_mamba_heads)


def zamba_hybrid(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return a block of attention with shared weights, then Mamba; keys and values are the layer's own.

    Raises CheckpointError if the block does not take the hidden states beside the embeddings.
    """
    if config.attention_hidden_size != 2 * config.hidden_size:
        raise CheckpointError(
            f"config.json says attention_hidden_size = {config.attention_hidden_size}, expected 2 * hidden_size = "
            f"{2 * config.hidden_size}. {ADVICE}"
        )
    heads, dim = config.num_key_value_heads, config.attention_head_dim
    attention = unwindowed(sizes, kernels, kv_heads=heads, head_dim=dim)
    return CompositeLayer(sizes, kernels, {"attention": attention, "mamba": zamba_mamba(config, sizes, kernels, index)})


MAMBA = Family(layers={"linear_attention": mamba})


# Mamba-2, alone, between attention layers or beside attention in the same layer.


@dataclass(frozen=True, kw_only=True)
class Mamba2Names:
    """The names of a config's Mamba-2 sizes; called with a config, it builds a layer.

    limits: the lowest and the highest step size, for families that read both from their config.
    """

    heads: str
    head_dim: str
    state_dim: str
    groups: str = "n_groups"
    conv_kernel: str = "conv_kernel"
    limits: str | None = "time_step_limit"

    def __call__(self, config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
        self._check(config)
        return Mamba2Layer(
            sizes,
            kernels,
            heads=getattr(config, self.heads),
            head_dim=getattr(config, self.head_dim),
            state_dim=getattr(config, self.state_dim),
            groups=getattr(config, self.groups),
            conv_kernel=getattr(config, self.conv_kernel),
        )

    def _check(self, config: Config) -> None:
        """Raise CheckpointError for sizes that no Mamba-2 layer has, by their names in the config."""
        check_positive(config, self.heads, self.head_dim, self.state_dim, self.groups, self.conv_kernel)
        heads, groups = getattr(config, self.heads), getattr(config, self.groups)
        if heads % groups:
            raise CheckpointError(
                f"config.json says {self.heads} = {heads} and {self.groups} = {groups}, expected groups of equally many heads. "
                f"{ADVICE}"
            )
        limits = getattr(config, self.limits) if self.limits else (0, 0)
        if limits is None or len(limits) != 2:
            raise CheckpointError(f"config.json says {self.limits} = {limits}, expected the lowest and the highest. {ADVICE}")


def stateless(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    return StatelessLayer(sizes, kernels)


MAMBA2 = Mamba2Names(heads="num_heads", head_dim="head_dim", state_dim="state_size")
NEMOTRON = Mamba2Names(heads="mamba_num_heads", head_dim="mamba_head_dim", state_dim="ssm_state_size", limits=None)
BAMBA = Mamba2Names(
    heads="mamba_n_heads",
    head_dim="mamba_d_head",
    state_dim="mamba_d_state",
    groups="mamba_n_groups",
    conv_kernel="mamba_d_conv",
)
ZAMBA2 = Mamba2Names(
    heads="n_mamba_heads",
    head_dim="mamba_headdim",
    state_dim="mamba_d_state",
    groups="mamba_ngroups",
    conv_kernel="mamba_d_conv",
    limits=None,
)


def falcon_h1_layer(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return attention and Mamba-2 side by side."""
    parts = {"attention": full_attention(config, sizes, kernels, index), "mamba": BAMBA(config, sizes, kernels, index)}
    return CompositeLayer(sizes, kernels, parts)


def zamba2_linear(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return Mamba-2. Raises CheckpointError if the heads do not fill the mixer; other families' configs check that."""
    check_positive(config, "n_mamba_heads")
    inner, heads = int(config.mamba_expand * config.hidden_size), config.n_mamba_heads
    if inner % heads:
        raise CheckpointError(
            f"config.json says n_mamba_heads = {heads}, expected a number that divides mamba_expand * hidden_size = {inner}. "
            f"{ADVICE}"
        )
    return ZAMBA2(config, sizes, kernels, index)


def zamba2_hybrid(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return a block of attention with shared weights, then Mamba-2; keys and values are the layer's own."""
    heads, dim = config.num_key_value_heads, config.attention_head_dim
    attention = unwindowed(sizes, kernels, kv_heads=heads, head_dim=dim)
    return CompositeLayer(sizes, kernels, {"attention": attention, "mamba": zamba2_linear(config, sizes, kernels, index)})


BETWEEN_ATTENTION = Family(layers={"full_attention": full_attention, "linear_attention": BAMBA})


# MiniMax: lightning attention between attention layers.


def lightning_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    return LightningAttentionLayer(sizes, kernels, heads=config.num_attention_heads, head_dim=head_dim(config))


def attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return full attention, or sliding attention if the config has a window: MiniMax calls both full."""
    build = full_attention if config.sliding_window is None else sliding_attention
    return build(config, sizes, kernels, index)


# RecurrentGemma: RG-LRU between sliding attention.


def rg_lru(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return RG-LRU. Raises CheckpointError if the heads of the gates do not fill the unit."""
    check_positive(config, "lru_width", "conv1d_width", "num_attention_heads")
    if config.lru_width % config.num_attention_heads:
        raise CheckpointError(
            f"config.json says lru_width = {config.lru_width} and num_attention_heads = {config.num_attention_heads}, expected "
            f"heads that divide the width. {ADVICE}"
        )
    return RgLruLayer(sizes, kernels, channels=config.lru_width, conv_kernel=config.conv1d_width)


FAMILIES: Mapping[str, Family] = {
    "falcon_mamba": MAMBA,
    "jamba": Family(layers={"full_attention": full_attention, "linear_attention": jamba_mamba}),
    "mamba": MAMBA,
    "zamba": Family(layers={"linear_attention": zamba_mamba, "hybrid": zamba_hybrid}),
    "bamba": BETWEEN_ATTENTION,
    "falcon_h1": Family(layers={"hybrid": falcon_h1_layer}),
    "granitemoehybrid": BETWEEN_ATTENTION,
    "mamba2": Family(layers={"linear_attention": MAMBA2}),
    "nemotron_h": Family(
        layers={"full_attention": full_attention, "linear_attention": NEMOTRON, "moe": stateless, "mlp": stateless}
    ),
    "zamba2": Family(layers={"linear_attention": zamba2_linear, "hybrid": zamba2_hybrid}),
    "minimax": Family(layers={"full_attention": attention, "linear_attention": lightning_attention}),
    "recurrent_gemma": Family(layers={"linear_attention": rg_lru, "sliding_attention": sliding_attention}),
}

SIGNATURES: Signatures = (
    ("Mamba-2", frozenset({"A_log", "D", "dt_bias", "conv1d", "in_proj"})),
    ("Mamba", frozenset({"A_log", "D", "conv1d", "x_proj", "dt_proj"})),
    ("lightning attention", frozenset({"slope_rate", "qkv_proj", "output_gate"})),
    ("RG-LRU", frozenset({"rg_lru", "conv_1d"})),
)
