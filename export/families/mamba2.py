"""TODO."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.export.families.family import Adaptation

FAMILIES: Mapping[str, Adaptation] = {}
