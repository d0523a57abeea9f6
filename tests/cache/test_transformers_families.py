"""A HybridCache in the unmodified forward of every family that takes one."""

from typing import Any

import pytest
import torch
from tiny import lively, tiny_config, tiny_model
from zoo import VARIANTS

from hybridge.cache import HybridCache
from hybridge.cache.errors import UsageError

OWN_CACHE = {"glm5_next_text", "inkling2_text", "inkling_text", "minimax", "qwen4_exp_text"}
"""Their forward reaches into transformers' own cache."""
ONE_BY_ONE = {"falcon_mamba", "jamba", "mamba", "recurrent_gemma", "zamba"}
"""transformers' cached forward of several tokens starts their state from zero, whatever the cache; one at a time is right."""
CACHE_PARAMS = {"falcon_mamba", "mamba", "mamba2"}
PIECES = {False: (5, 1, 17, 2, 1, 14), True: (9, *(1,) * 31)}


@pytest.mark.parametrize("family", sorted(set(VARIANTS) - OWN_CACHE))
@torch.no_grad()
def test_pieces_give_the_uncached_logits(family: str) -> None:
    model = lively(tiny_model(tiny_config(family)))
    text = torch.randint(0, 127, (1, 40), generator=torch.Generator().manual_seed(1))
    cache, got, start = HybridCache.from_config(model.config, max_seq_len=64), [], 0
    for length in PIECES[family in ONE_BY_ONE]:
        options: dict[str, Any] = {"cache_params" if family in CACHE_PARAMS else "past_key_values": cache, "use_cache": True}
        if family == "bamba":  # does not ask the cache for its length
            options["position_ids"] = torch.arange(start, start + length)[None]
        got.append(model(text[:, start : start + length], **options).logits)
        start += length
    want = model(text, use_cache=False).logits
    torch.testing.assert_close(torch.cat(got, dim=1), want, rtol=0, atol=2e-5 * float(want.abs().max()))


def test_an_indexer_needs_a_session() -> None:
    model = tiny_model(tiny_config("glm5_next_text"))
    cache = HybridCache.from_config(model.config, max_seq_len=64)
    with pytest.raises(UsageError, match="eager_session"):
        model(torch.arange(9)[None], past_key_values=cache, use_cache=True)
