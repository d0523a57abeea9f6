"""TODO."""

from zoo.sizes import Sizes

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {}
