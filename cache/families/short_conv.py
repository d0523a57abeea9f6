"""TODO."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.cache.families.family import Family

FAMILIES: Mapping[str, Family] = {}
