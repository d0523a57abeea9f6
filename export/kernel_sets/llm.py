"""Keep state by the runtime's own operators: ExecuTorch's ``llama::`` custom ops.

They write rows in place and attend at the cost of the actual length, not of the buffer's. Importing this module registers them.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.operations.kernels import CoreKernels, Scoring, Visible
from hybridge.cache.recurrences.gated_delta_rule import GatedDeltaRule
from hybridge.cache.recurrences.recurrence import Recurrence
from hybridge.export.pinned.stock_operators import llama as ops
from hybridge.export.pinned.torch_export import check


class LlmGatedDeltaRule(GatedDeltaRule):
    """Compute the rule itself by the runtime's operator, and what is around it by core operators."""

    def rule(
        self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        decay = log_decay.exp()
        if query.shape[2] > 1:
            out, new_state = ops.gated_delta_rule(query, key, value, decay, beta, state)
            return out, new_state
        # One token at a time is what stock runners read, 1.4's included, whose operator wants one decay a key channel.
        if decay.dim() == 3:
            decay = decay.unsqueeze(-1).expand(-1, -1, -1, key.shape[-1])
        out, new_state = ops.channelwise_gated_delta_rule(query, key, value, decay, beta, state)
        return out, new_state


class LlmKernels(CoreKernels):
    """See ``hybridge.cache.operations.kernels.Kernels``."""

    own: Sequence[Recurrence] = (LlmGatedDeltaRule(),)

    def write_rows(self, buffer: Tensor, rows: Tensor, block: Block) -> None:
        ops.update_cache(rows, buffer, row_offset(block, buffer.shape[1]))

    def write_ring(self, buffer: Tensor, rows: Tensor, slots: Tensor) -> None:
        ops.update_cache_with_indices(rows, buffer, 0, slots[None].expand(buffer.shape[0], -1))

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, block: Block, scoring: Scoring, visible: Visible | None = None
    ) -> Tensor:
        # The operator knows a scale and a mask, and takes values as wide as keys.
        if not scoring.is_plain or keys.shape[-1] != values.shape[-1]:
            return CoreKernels().attend(query, keys, values, block, scoring, visible)
        if visible is None:
            offset = row_offset(block, keys.shape[1])
            out: Tensor = ops.custom_sdpa(query, keys, values, offset, None, 0.0, True, scoring.scale)
        else:
            mask = block.shared("additive", lambda: visible.additive, of=visible)
            out = ops.custom_sdpa(query, keys, values, 0, mask, 0.0, False, scoring.scale)
        return out

    def write_slot(self, slots: Tensor, value: Tensor, slot: Tensor) -> None:
        index = slot.item()
        check(index >= 0)
        check(index < slots.shape[1])
        ops.update_cache(value, slots, index)


def row_offset(block: Block, rows: int) -> int:
    """Return ``block.start`` as a number for operators that take one, known to leave room for the block in ``rows`` rows."""
    # Once for each block: under torch.export every item() is one more symbol to carry through the lowering.
    offset: int = block.shared("offset", block.start.item)  # type: ignore[assignment]  # a symbol while exporting
    check(offset >= 0)
    check(offset + block.length <= rows)
    return offset
