"""The methods' modules, run eagerly, against a plain list of tokens and the uncached model.

Memory that was never written holds NaN, sizes are odd, and every refusal must leave the state bit for bit as it was.
"""

import copy
from functools import cache

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from tiny import tiny_config, tiny_model
from torch import Tensor, nn

from hybridge.cache import HybridCache
from hybridge.cache.operations.kernels import CoreKernels, Kernels
from hybridge.export.kernel_sets.hybridge import HybridgeKernels
from hybridge.export.kernel_sets.llm import LlmKernels
from hybridge.export.program.methods import build_methods
from hybridge.export.program.state import State

MAX_SEQ_LEN, CHUNK, VERIFY, SHORTER, SLOTS, VOCABULARY = 37, 17, 5, 2, 2, 131
KERNELS: dict[str, type[Kernels]] = {"core": CoreKernels, "llm": LlmKernels, "hybridge": HybridgeKernels}
FAMILIES = ["qwen3_5_text", "mistral", "llama", "mamba2", "mamba", "falcon_h1", "lfm2", "kimi_linear", "gemma4_text"]

tokens = st.integers(0, VOCABULARY - 1)


@cache
def models(family: str) -> tuple[nn.Module, nn.Module]:
    """The oracle and a copy of it to adapt, made once."""
    model = tiny_model(tiny_config(family))
    return model, copy.deepcopy(model)


def fresh_methods(family: str, kernels: str) -> tuple[State, dict[str, nn.Module]]:
    _, model = models(family)
    options = {"max_seq_len": MAX_SEQ_LEN, "prefill_chunk": CHUNK, "verify_len": VERIFY, "snapshot_slots": SLOTS}
    cache = HybridCache.from_config(model.config, kernels=KERNELS[kernels](), **options)  # type: ignore[arg-type]
    for buffer in cache.buffers():
        buffer.fill_(float("nan") if buffer.is_floating_point() else -(2**40))
    state = State(copy.deepcopy(model), cache)  # type: ignore[arg-type]
    return state, {name: method for name, (method, _) in build_methods(state, [SHORTER]).items()}


class Machine(RuleBasedStateMachine):
    family = "qwen3_5_text"
    kernels = "core"

    @initialize()
    def start(self) -> None:
        self.oracle, _ = models(self.family)
        self.state, self.methods = fresh_methods(self.family, self.kernels)
        self.reset()

    def call(self, name: str, *inputs: list[int] | int) -> Tensor:
        with torch.no_grad():
            return self.methods[name](*(torch.tensor([each]) for each in inputs))  # type: ignore[no-any-return]

    def logits(self, text: list[int]) -> Tensor:
        with torch.no_grad():
            return self.oracle(torch.tensor([text]), use_cache=False).logits[0]  # type: ignore[no-any-return]

    def agree(self, got: Tensor, text: list[int], rows: int) -> None:
        torch.testing.assert_close(got[0, :rows], self.logits(text)[len(text) - rows :], rtol=1e-4, atol=1e-5)

    def wrote(self) -> None:
        """Rows at and beyond the length were overwritten, and with them the slots that reach there."""
        self.slots = {slot: text for slot, text in self.slots.items() if len(text) <= len(self.text)}
        self.block: list[int] | None = None

    def committed(self) -> dict[str, Tensor]:
        """What a refusal must not touch, as bytes: all but staged inputs and the rows after the last position."""
        buffers = {name: buffer for name, buffer in self.state.cache.named_buffers() if "staged_" not in name}
        return {
            name: (buffer[:, :MAX_SEQ_LEN] if name.endswith(("keys", "values")) else buffer)
            .contiguous()
            .view(torch.uint8)
            .clone()
            for name, buffer in buffers.items()
        }

    def refused(self, name: str, *inputs: list[int] | int) -> None:
        before = self.committed()
        answer = self.call(name, *inputs)
        assert bool(answer.isnan().all()) if answer.is_floating_point() else answer.tolist() == [-1]
        for buffer, tensor in self.committed().items():
            assert torch.equal(tensor, before[buffer]), buffer

    @rule(block=st.lists(tokens, min_size=1, max_size=CHUNK))
    def prefill(self, block: list[int]) -> None:
        padded = block + [0] * (CHUNK - len(block))
        if len(self.text) + len(block) > MAX_SEQ_LEN:
            self.refused("prefill", padded, len(block))
            return
        got = self.call("prefill", padded, len(block))
        self.wrote()
        self.text += block
        self.agree(got, self.text, 1)

    @rule(token=tokens)
    def decode(self, token: int) -> None:
        if len(self.text) == MAX_SEQ_LEN:
            self.refused("decode", [token])
            return
        got = self.call("decode", [token])
        self.wrote()
        self.text.append(token)
        self.agree(got, self.text, 1)

    @rule(block=st.sampled_from([SHORTER, VERIFY]).flatmap(lambda size: st.lists(tokens, min_size=size, max_size=size)))
    def verify(self, block: list[int]) -> None:
        got = self.call("verify" if len(block) == VERIFY else f"verify_{SHORTER}", block)
        self.wrote()
        self.block = block
        self.agree(got, self.text + block, len(block))

    @rule(count=st.integers(-1, VERIFY + 1))
    def commit(self, count: int) -> None:
        possible = self.block is not None and 0 <= count <= len(self.block) and len(self.text) + count <= MAX_SEQ_LEN
        if not possible:
            self.refused("commit", count)
            return
        assert self.block is not None
        self.text += self.block[:count]
        self.block = None
        assert self.call("commit", count).tolist() == [len(self.text)]

    @rule(slot=st.integers(-1, SLOTS))
    def snapshot(self, slot: int) -> None:
        if not 0 <= slot < SLOTS:
            self.refused("snapshot", slot)
            return
        assert self.call("snapshot", slot).tolist() == [len(self.text)]
        self.slots[slot] = list(self.text)
        self.block = None

    @rule(slot=st.integers(-1, SLOTS))
    def restore(self, slot: int) -> None:
        if slot not in self.slots:
            self.refused("restore", slot)
            return
        self.text = list(self.slots[slot])
        self.block = None
        assert self.call("restore", slot).tolist() == [len(self.text)]

    @rule(token=tokens, offset=st.integers(-2, 1))
    def forward(self, token: int, offset: int) -> None:
        """What a stock runner calls: position 0 starts afresh, the length goes on, anything else is refused."""
        position = 0 if offset == -2 else max(len(self.text) + offset, 0)
        if position == 0:
            self.text, self.slots = [], {}
        if position != len(self.text) or position == MAX_SEQ_LEN:
            self.refused("forward", [token], position)
            return
        got = self.call("forward", [token], position)
        self.wrote()
        self.text.append(token)
        self.agree(got, self.text, 1)

    @precondition(lambda self: len(self.text) > MAX_SEQ_LEN // 2)
    @rule()
    def reset(self) -> None:
        self.text: list[int] = []
        self.slots: dict[int, list[int]] = {}
        self.block = None
        assert self.call("reset").tolist() == [0]

    @invariant()
    def length_is_the_text(self) -> None:
        if hasattr(self, "text"):
            assert self.state.cache.length.tolist() == [len(self.text)]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_program_agrees_with_the_uncached_model(family: str, kernels: str) -> None:
    machine = type("FamilyMachine", (Machine,), {"family": family, "kernels": kernels})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=settings().max_examples // 10, stateful_step_count=25, deadline=None)
    )
