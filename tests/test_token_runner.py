"""Which pieces a prompt is read in: a prefill of a fixed shape costs most of its time even where it is given few tokens."""

from __future__ import annotations

import pytest
import torch

from hybridge.runtime import Session
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.sessions.token_runner import TokenRunner


@pytest.mark.parametrize(
    ("chunk", "block", "tokens", "pieces"),
    [
        (64, 8, 12, [8, 4]),
        (64, 8, 16, [8, 8]),
        (64, 8, 17, [17]),
        (64, 8, 64, [64]),
        (64, 8, 141, [64, 64, 8, 5]),
        (64, 16, 17, [17]),
        (64, 1, 12, [12]),
        (16, 4, 5, [5]),
        (16, 4, 36, [16, 16, 4]),
        (8, 16, 11, [8, 3]),
    ],
)
def test_the_pieces_of_a_prompt(chunk: int, block: int, tokens: int, pieces: list[int]) -> None:
    runner = TokenRunner(ExportOptions(prefill_chunk=chunk, verify_len=block, kernels="hybridge"))
    found = runner.chunks(list(range(tokens)))
    assert [len(each) for each in found] == pieces
    assert [token for each in found for token in each] == list(range(tokens))


def test_a_program_of_any_shape_reads_in_one_piece() -> None:
    options = ExportOptions(prefill_chunk=64, verify_len=8, format="onnx")
    assert not options.fixed_shapes
    assert [len(each) for each in TokenRunner(options).chunks([0] * 12)] == [12]


def test_all_pieces_read_the_same(own_artifact: str) -> None:
    """A prompt that ends in verifies against decodes, one token after another."""
    session = Session.load(own_artifact)
    size = session.prefill_chunk + max(2, session.prefill_chunk // 4)
    tokens = [token % session.vocab_size for token in range(3, 3 + size)]
    got = session.prefill(tokens)
    session.reset()
    want = torch.stack([session.decode(token) for token in tokens])[-1]
    assert torch.allclose(got, want, atol=1e-4 * float(want.abs().max()))
    assert session.length == size
