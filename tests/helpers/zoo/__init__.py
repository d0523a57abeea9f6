"""Two tiny configs for each supported family, of odd sizes; the first is what tests take, conformance takes both."""

from zoo import (
    attention,
    gated_delta,
    glm5_next,
    inkling,
    kimi_delta,
    lightning,
    mamba,
    mamba2,
    qwen4_exp,
    recurrent_gemma,
    short_conv,
    zaya,
)

VARIANTS = {
    **attention.VARIANTS,
    **gated_delta.VARIANTS,
    **glm5_next.VARIANTS,
    **inkling.VARIANTS,
    **kimi_delta.VARIANTS,
    **lightning.VARIANTS,
    **mamba.VARIANTS,
    **mamba2.VARIANTS,
    **qwen4_exp.VARIANTS,
    **recurrent_gemma.VARIANTS,
    **short_conv.VARIANTS,
    **zaya.VARIANTS,
}
