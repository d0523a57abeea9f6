"""What a call of a program came to: an answer, a refusal, or logits that are no numbers."""

from __future__ import annotations

import math

from torch import Tensor

from hybridge.cache.errors import ArtifactError, NumericalError
from hybridge.runtime.backends.methods import Methods
from hybridge.runtime.backends.one_thread import total


def run(program: Methods, name: str, *inputs: Tensor, tokens: int) -> tuple[Tensor, ...]:
    """Call a method on ``tokens`` tokens that fit. Raises ArtifactError where the program refuses them all the same."""
    before = program.operations()
    outputs = program.call(name, *inputs)
    if program.operations() == before:
        length = int(program.bounded()["length"])
        raise ArtifactError(
            f"the program refused {name!r}: by its own count {tokens} tokens do not fit after {length}, by its manifest they "
            "do. Reset the session, or load a state; if it happens again, export the model again."
        )
    return outputs


def check_numbers(logits: Tensor, name: str, position: int) -> None:
    """Raise NumericalError where logits [n, V], those after ``position`` first, are not all finite.

    One pass: a sum is finite only if all that it is of is.
    """
    if math.isfinite(total(logits)):
        return
    wrong = ~logits.isfinite().all(-1)
    if not bool(wrong.any()):
        return  # the sum alone was too large
    row = int(wrong.nonzero()[0])
    kind = "NaN" if bool(logits[row].isnan().any()) else "infinite"
    raise NumericalError(
        f"{name!r} gave {kind} logits after position {position + row}: the weights or the state hold NaN, or numbers beyond "
        "float32; validate the artifact against its checkpoint."
    )
