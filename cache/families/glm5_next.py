"""GLM-5.3-Flash: Kimi delta attention beside latent attention with an indexer."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.cache.families.family import Config, Family
from hybridge.cache.families.kimi_delta import kimi_delta_attention, latent_attention
from hybridge.cache.layers.composite import CompositeLayer
from hybridge.cache.layers.indexed_attention import IndexedAttentionLayer
from hybridge.cache.layers.key_pool import KeyPoolLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels


def indexed_attention(config: Config, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
    """Return attention without an indexer if every pool of ``max_seq_len`` tokens is selected, else indexed attention."""
    shared = _shares_indexer(config, index)
    _check_pools(config)
    if sizes.max_seq_len // config.index_kpool <= config.index_topk // config.index_kpool:
        return latent_attention(config, sizes, kernels, index)
    attention = IndexedAttentionLayer(
        sizes, kernels, rank=config.kv_lora_rank, shared_dim=config.qk_rope_head_dim, source=index - shared
    )
    if shared:
        return attention
    indexer = KeyPoolLayer(
        sizes,
        kernels,
        head_dim=config.index_head_dim,
        pool=config.index_kpool,
        choices=config.index_topk // config.index_kpool,
    )
    return CompositeLayer(sizes, kernels, {"attention": attention, "indexer": indexer})


def _shares_indexer(config: Config, index: int) -> bool:
    """Return whether the layer attends to what the one before selected. Raises CheckpointError if that one selects nothing."""
    shared: bool = config.indexer_types[index] == "shared"
    before = [config.layer_types[index - 1], config.indexer_types[index - 1]] if index else []
    if shared and before != ["indexed_attention", "full"]:
        raise CheckpointError(
            f"config.json says indexer_types[{index}] = 'shared', but layer {index - 1} has no indexer to share; "
            "expected indexed attention of the type 'full' there. Correct indexer_types or layer_types in config.json."
        )
    return shared


def _check_pools(config: Config) -> None:
    if not config.index_kpool_always_select_tail:
        raise UnsupportedModelError(
            "index_kpool_always_select_tail = false is not supported: the first tokens would attend to nothing. "
            "Only checkpoints with true can be run."
        )
    if config.index_kpool < 2 or config.index_topk < config.index_kpool:
        raise UnsupportedModelError(
            f"index_kpool = {config.index_kpool} with index_topk = {config.index_topk} is not supported; "
            "expected pools of 2 positions or more, and one pool or more to be selected."
        )


GLM5_NEXT = Family(layers={"indexed_attention": indexed_attention, "linear_attention": kimi_delta_attention})

FAMILIES: Mapping[str, Family] = {"glm5_next_text": GLM5_NEXT}
