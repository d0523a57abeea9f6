import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.inkling.modeling_inkling import InklingRelativeLogits

from hybridge.cache.block import Block
from hybridge.cache.operations.kernels import bias_by_key
from hybridge.cache.operations.ring import held_by_slots

HEADS, RELATIVE = 3, 5


def bias_naive(profiles: Tensor, positions: Tensor, held: Tensor) -> Tensor:
    """The definition: the profile [B, H, T, E] at the distance, 0 where it has none."""
    out = torch.zeros(*profiles.shape[:3], held.numel())
    for t, position in enumerate(positions.tolist()):
        for r, key in enumerate(held.tolist()):
            if 0 <= position - key < profiles.shape[-1]:
                out[:, :, t, r] = profiles[:, :, t, position - key]
    return out


@pytest.mark.parametrize("extent", [1, 4, 50])
@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("tokens", [1, 6])
def test_visible_keys_get_what_their_distance_says(tokens: int, ring: bool, extent: int) -> None:
    block = Block(start=torch.tensor([13]), count=torch.tensor([tokens]), length=tokens)
    held = held_by_slots(block.start + tokens - 1, 11) if ring else torch.arange(23)
    profiles = torch.randn(2, HEADS, tokens, extent)
    visible = held <= block.positions[:, None]
    got = bias_by_key(F.pad(profiles.transpose(1, 2), (0, 1)), held, block)
    expected = bias_naive(profiles, block.positions, held)
    assert torch.equal(got.where(visible, 0.0), expected.where(visible, 0.0))


def test_it_is_the_bias_of_transformers() -> None:
    tokens, extent = 9, 4
    reference = InklingRelativeLogits(RELATIVE, extent)
    torch.nn.init.normal_(reference.proj)
    relative, at = torch.randn(2, tokens, HEADS, RELATIVE), torch.arange(tokens)
    naive = bias_naive((relative @ reference.proj).transpose(1, 2), at, at)
    torch.testing.assert_close(naive, reference(relative, at, at))
