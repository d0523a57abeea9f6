"""Two tiny configs for each supported family, of odd sizes; the first is what tests take, conformance takes both.

The files are those of cache/families.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from zoo import attention, convolution, delta_rule, state_space

VARIANTS = {**attention.VARIANTS, **convolution.VARIANTS, **delta_rule.VARIANTS, **state_space.VARIANTS}
KINDS = {
    *("gemma4_text", "gpt_oss", "llama4_text", "recurrent_gemma"),  # attention: shared, with sinks, in chunks, after RG-LRU
    *("inkling_text", "lfm3", "zaya"),  # convolutions alone, and beside attention
    *("glm5_next_text", "kimi_linear", "qwen3_5_text", "qwen4_exp_text", "rwkv7"),  # delta rules, with each kind of attention
    *("falcon_h1", "jamba", "minimax", "zamba", "zamba2"),  # state spaces, alone, beside attention, and with a shared one
}
"""A family of each kind of layers; the others have the same ones with other names and sizes."""


def by_kind(families: Iterable[str] = VARIANTS) -> list[Any]:
    """Return the families as parameters of a test, of which the default run takes those of ``KINDS``."""
    return [each if each in KINDS else pytest.param(each, marks=pytest.mark.thorough) for each in sorted(families)]
