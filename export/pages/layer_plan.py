"""The drawing of a model's layers: a row each, with bars as long as its state, what a rollback needs, and snapshot slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hybridge.runtime.artifacts.manifest import LayerEntry

COLOURS = 8
ROW, TOP = 20, 28
LEFT, LONGEST, WIDTH = 270, 420, 960
SHOWN = 27
"""Characters of a layer's kind that have room beside the bars."""
STYLES = ("", "faint", "fainter")


@dataclass(frozen=True)
class Bar:
    """A part of a layer's bytes. x and width are in pixels."""

    x: float
    width: float
    style: str


@dataclass(frozen=True)
class Row:
    """A layer: where it is drawn, its bars and, for whoever points at it, its buffers."""

    index: int
    y: int
    kind: str
    shown: str
    colour: int
    buffers: list[str]
    bars: list[Bar]
    end: float
    label: str


@dataclass(frozen=True)
class Key:
    """A kind of layers in the legend."""

    kind: str
    layers: int
    colour: int
    x: int


@dataclass(frozen=True)
class Plan:
    """The whole drawing."""

    rows: list[Row]
    legend: list[Key]
    height: int
    width: int = WIDTH


def layer_plan(layers: Sequence[LayerEntry]) -> Plan:
    """Return the drawing of ``layers``; the longest bar is that of the layer with the most bytes."""
    counted = Counter(layer.kind for layer in layers)
    colours = {kind: number % COLOURS for number, kind in enumerate(counted)}
    most = max((sum(_bytes(layer)) for layer in layers), default=0) or 1
    rows = [_row(number, layer, colours[layer.kind], LONGEST / most) for number, layer in enumerate(layers)]
    legend, x = [], 40
    for kind, count in list(counted.items())[:COLOURS]:
        legend.append(Key(_cut(kind), count, colours[kind], x))
        x += 40 + 8 * (len(_cut(kind)) + 3 + len(str(count)))
    return Plan(rows, legend, TOP + ROW * len(rows) + 4, max(WIDTH, x))


def totals(layers: Sequence[LayerEntry]) -> list[dict[str, str | int]]:
    """Return the bytes of all layers of each kind together, and of all layers."""
    kinds = list(dict.fromkeys(layer.kind for layer in layers))
    groups = [(kind, [layer for layer in layers if layer.kind == kind]) for kind in kinds]
    return [_total(kind, group) for kind, group in [*groups, ("all layers", list(layers))]]


def _total(kind: str, layers: Sequence[LayerEntry]) -> dict[str, str | int]:
    state, rollback, slots = (sum(sizes) for sizes in zip(*map(_bytes, layers), strict=True)) if layers else (0, 0, 0)
    return {"kind": kind, "state": state, "rollback": rollback, "slots": slots}


def _row(number: int, layer: LayerEntry, colour: int, scale: float) -> Row:
    bars, x = [], float(LEFT)
    for size, style in zip(_bytes(layer), STYLES, strict=True):
        if size:
            bars.append(Bar(round(x, 2), round(max(1.0, size * scale), 2), style))
            x += max(1.0, size * scale)
    label = " + ".join(f"{size:,}" for size in _bytes(layer))
    buffers = [f"{name} {entry.dtype}{entry.shape}" for name, entry in layer.buffers.items()]
    return Row(number, TOP + ROW * number, layer.kind, _cut(layer.kind), colour, buffers, bars, round(x + 8, 2), label)


def _bytes(layer: LayerEntry) -> tuple[int, int, int]:
    return layer.state_bytes, layer.rollback_bytes, layer.slot_bytes


def _cut(kind: str) -> str:
    return kind if len(kind) <= SHOWN else f"{kind[: SHOWN - 1]}…"
