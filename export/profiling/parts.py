"""Sort instructions into parts of the model, by their operator and by what their block has in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybridge.export.profiling.instructions import Instruction, is_state, size

WHOLE = "whole"
POSITIONS = "positions and masks"
HEAD = "head"
MLP = "MLP"
ATTENTION = ("sdpa", "attention", "update_cache", "write_rows", "write_window")
RECURRENT = ("delta_rule", "conv", "scan", "shift_window", "linear_attention", "fading_sum")
SMALL = ("norm", "rotary", "gated", "activation")
STATE = ("copy_", "keep_state", "bring_back", "clear", "index_put")


def part_names(instructions: Sequence[Instruction], vocab_size: int) -> list[str]:
    """Return the part of each instruction."""
    return [_part(each, mixer, vocab_size) for block in _blocks(instructions) for mixer in [_mixer(block)] for each in block]


def _blocks(instructions: Sequence[Instruction]) -> Iterator[list[Instruction]]:
    """A block begins with the norm of what the embedding made."""
    width = next((each.shape[-1:] for each in instructions if "embedding" in each.name), ())
    block: list[Instruction] = []
    for each in instructions:
        if "norm" in each.name and each.shape[-1:] == width and len(each.shape) == 3:
            yield block
            block = []
        block.append(each)
    yield block


def _mixer(block: Sequence[Instruction]) -> str:
    """The operators that mix tokens in a block; a block without one is an MLP."""
    attends = any(_is(each, ATTENTION) and not _is(each, RECURRENT) for each in block)
    recurrent = {_short(each): None for each in block if _is(each, RECURRENT)}
    mixers = [name for name in recurrent if len(recurrent) == 1 or ("conv" not in name and "window" not in name)]
    return " + ".join([*mixers, *(["attention"] if attends else [])]) or MLP


def _part(each: Instruction, mixer: str, vocab_size: int) -> str:
    if each.is_bookkeeping:
        return POSITIONS
    if "embedding" in each.name:
        return "embedding"
    if _is(each, RECURRENT):
        return _short(each)
    if _is(each, ATTENTION):
        return "attention"
    if "experts" in each.name:
        return "experts"
    if "linear" in each.name or "addmm" in each.name:
        return HEAD if each.shape[-1:] == (vocab_size,) else f"linear layers of {mixer}"
    if _is(each, SMALL):
        return "norms, gates, rotary"
    if "::" not in each.name:
        return each.name
    return "state moves" if _is(each, STATE) else "other operators"


def _is(each: Instruction, words: Sequence[str]) -> bool:
    return any(word in each.name for word in words)


def _short(each: Instruction) -> str:
    """``gated_delta_rule`` of ``hybridge::gated_delta_rule_verify.out``."""
    return each.name.partition("::")[2].partition(".")[0].removesuffix("_verify")


def bytes_moved(each: Instruction, context: int) -> int:
    """Return the bytes that a call reads and writes; of tables and of keys and values by position, the rows it needs."""
    if "embedding" in each.name:
        return 2 * size(each.tensors[-1])
    rows = context if _is(each, ATTENTION) else None
    return sum(_touched(tensor, rows) for tensor in each.tensors)


def _touched(tensor: object, rows: int | None) -> int:
    whole = size(tensor)
    sizes: Sequence[int] = tensor.sizes  # type: ignore[attr-defined]  # ExecuTorch is untyped
    if rows is None or not is_state(tensor) or len(sizes) < 2:
        return whole
    return whole * min(rows, sizes[1]) // sizes[1]
