"""Two tiny configs for each supported family, of odd sizes; the first is what tests take, conformance takes both.

The files are those of cache/families.
"""

from zoo import attention, convolution, delta_rule, state_space

VARIANTS = {**attention.VARIANTS, **convolution.VARIANTS, **delta_rule.VARIANTS, **state_space.VARIANTS}
