"""Random weights in panels: of every kind that GGUF files have, of our own, and rounded to nearest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridge.export.operators.linear import Factors
from hybridge.export.quantize.rounding import round_to_nearest
from hybridge.export.weights import Grid, PackedWeight, RoundedWeight
from hybridge.runtime.pack.blocks import IQ4, MXFP4

TABLES = {name: torch.tensor(numbers, dtype=torch.int8) for name, numbers in (("IQ4", IQ4), ("MXFP4", MXFP4))}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """bits of a number, columns of a group and groups of a superblock; table: the name of one of ``TABLES``."""

    bits: int
    group: int = 32
    groups: int = 0
    minima: bool = False
    exponents: bool = False
    table: str = ""

    @property
    def columns(self) -> int:
        """Columns of the smallest row."""
        return self.group * max(1, self.groups)


KINDS = {
    "Q4_0": Kind(bits=4), "Q4_1": Kind(bits=4, minima=True), "Q5_0": Kind(bits=5), "Q5_1": Kind(bits=5, minima=True),
    "Q8_0": Kind(bits=8), "Q4_K": Kind(bits=4, groups=8, minima=True), "Q5_K": Kind(bits=5, groups=8, minima=True),
    "Q6_K": Kind(bits=6, group=16, groups=16), "IQ4_NL": Kind(bits=4, table="IQ4"),
    "IQ4_XS": Kind(bits=4, groups=8, table="IQ4"), "MXFP4": Kind(bits=4, exponents=True, table="MXFP4"),
    "4 bits in superblocks of 9 groups": Kind(bits=4, groups=9, minima=True),
    "6 bits in superblocks of 3 groups": Kind(bits=6, group=32, groups=3, minima=True),
    "4 bits in groups of 8": Kind(bits=4, group=8, minima=True),
}  # fmt: skip
HALVES = {"F16": torch.float16, "BF16": torch.bfloat16}


def block_weight(name: str, rows: int, columns: int) -> RoundedWeight:
    """Return a weight of kind ``name``; every number, and every form of a factor, may come."""
    if name in HALVES:
        return RoundedWeight(quanta=torch.randn(rows, columns).to(HALVES[name]), factors=Factors(), bits=16)
    kind = KINDS[name]
    low, groups = -(1 << (kind.bits - 1)) + (kind.bits == 8), columns // kind.group
    quanta = torch.randint(low, 1 << (kind.bits - 1), (rows, columns), dtype=torch.int8)
    quanta[: rows // 3] = low  # the largest sums that there can be
    return RoundedWeight(quanta=quanta, factors=_factors(kind, rows, groups), bits=kind.bits)


def packed_blocks(name: str, rows: int, columns: int) -> PackedWeight:
    return PackedWeight.of(block_weight(name, rows, columns))


def _factors(kind: Kind, rows: int, groups: int) -> Factors:
    table = TABLES[kind.table] if kind.table else None
    if kind.exponents:
        return Factors(torch.randint(118, 132, (rows, groups), dtype=torch.uint8), table=table)
    if not kind.groups:
        return Factors(_halves(rows, groups), _halves(rows, groups) if kind.minima else None, table=table)
    scales = torch.randint(-128, 128, (rows, groups), dtype=torch.int8)
    minima = torch.randint(-128, 128, (rows, groups), dtype=torch.int8) if kind.minima else None
    return Factors(scales, minima, _halves(rows, groups // kind.groups * (2 if kind.minima else 1)) / 64, table)


def _halves(rows: int, columns: int) -> Tensor:
    return (torch.randn(rows, columns) * 0.1).half()


def packed_weight(weight: Tensor, bits: int, group: int) -> PackedWeight:
    if bits == 32:
        return PackedWeight.exact(weight)
    return PackedWeight.of(round_to_nearest("", weight, Grid(bits=bits, group=group)))
