"""The drawing of a validation's errors: a dot for the worst of each operation in each range of positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

COLUMNS = 96
LEFT, RIGHT, TOP, BOTTOM = 70, 940, 30, 330
LOWEST, HIGHEST = -9, 0
"""Powers of ten at the ends of the axis of errors."""


@dataclass(frozen=True)
class Dot:
    """The worst error of an operation between two positions. x and y are in pixels."""

    x: float
    y: float
    colour: int
    label: str


@dataclass(frozen=True)
class Mark:
    """A number at an axis, at so many pixels."""

    at: float
    label: str


@dataclass(frozen=True)
class ErrorChart:
    """The whole drawing; limit: where the tolerance is."""

    dots: list[Dot]
    operations: list[str]
    errors: list[Mark]
    positions: list[Mark]
    limit: float


def error_chart(worst_at: Mapping[tuple[str, int], float], largest: float, tolerance: float) -> ErrorChart:
    """Return the drawing of errors by operation and position, as shares of the ``largest`` logit."""
    end = max((position for _, position in worst_at), default=0) + 1
    width = max(1, math.ceil(end / COLUMNS))
    operations = sorted({operation for operation, _ in worst_at})
    cells: dict[tuple[str, int], float] = {}
    for (operation, position), error in worst_at.items():
        cell = (operation, position // width)
        cells[cell] = max(cells.get(cell, 0.0), error / largest if largest else 0.0)
    scale = (RIGHT - LEFT) / end
    dots = [
        Dot(
            x=round(LEFT + min((column + 0.5) * width, end) * scale, 2),
            y=_height(share),
            colour=operations.index(operation) % 8,
            label=f"{operation}, positions {column * width} to {min(end, (column + 1) * width) - 1}: {share:.1e}",
        )
        for (operation, column), share in sorted(cells.items())
    ]
    errors = [Mark(_height(10.0**power), f"1e{power}") for power in range(LOWEST, HIGHEST + 1, 3)]
    places = sorted({part * (end - 1) // 4 for part in range(5)})
    positions = [Mark(round(LEFT + place * scale, 2), f"{place}") for place in places]
    return ErrorChart(dots, operations, errors, positions, _height(tolerance))


def _height(share: float) -> float:
    """Return where an error is on the axis; what lies beyond its ends is at them, as are numbers that are none."""
    power = math.log10(share) if 0 < share < math.inf else (LOWEST if share <= 0 else HIGHEST)
    part = (min(max(power, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)
    return round(BOTTOM - part * (BOTTOM - TOP), 2)
