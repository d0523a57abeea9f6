"""Lightning attention: what the zoo's configs must have for a wrong decay to be seen at all."""

import pytest
from tiny import tiny_config, tiny_model


@pytest.mark.parametrize("variant", [0, 1])
def test_both_configs_have_heads_that_fade(variant: int) -> None:
    """transformers' slopes fall to nothing in the last layer, where no test would notice a missing decay."""
    layers = tiny_model(tiny_config("minimax", variant)).get_decoder().layers
    slopes = [layer.self_attn.slope_rate.max().item() for layer in layers if hasattr(layer.self_attn, "slope_rate")]
    assert max(slopes) > 0.05
