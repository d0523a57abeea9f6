"""Schemas, a prompt and samplings that structured answers are tested with, in Python and in the core."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hybridge.runtime import Sampling

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["abacus", "bridge"]},
        "numbers": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "numbers"],
    "additionalProperties": False,
}
PROMPT = list(b"tell me: ")
SAMPLINGS = {
    "greedy": Sampling(),
    "drawn": Sampling(temperature=1.3, seed=4),
    "narrow": Sampling(temperature=1, top_p=0.7, seed=9),
}


class Answer(BaseModel):
    """What an answer is to be."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["one", "two"]
    count: Annotated[int, Field(ge=0, le=99)]
