"""Random numbers that belong to the places of a text: the same here as in C++ (``runtime/native/hybridge/noise.h``)."""

from __future__ import annotations

from enum import IntEnum

WORD = 2**64 - 1


class Stream(IntEnum):
    """What a number is for; each use has numbers of its own for the same place."""

    DRAW = 0
    ACCEPT = 1
    DRAFT = 2


def noise(seed: int, place: int, stream: Stream) -> float:
    """Return a number in [0, 1) that follows from the seed, of which 64 bits count, the place and the stream alone."""
    return (_mixed(_mixed(_mixed(seed & WORD) + stream & WORD) ^ place) >> 11) / 2**53


def _mixed(value: int) -> int:
    """SplitMix64's step (Steele, Lea, Flood 2014)."""
    value = value + 0x9E3779B97F4A7C15 & WORD
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & WORD
    return value ^ value >> 31
