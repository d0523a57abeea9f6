"""Compare an artifact with its checkpoint on prompts with pictures: the logits of answers, and the encoder's embeddings."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from hybridge.errors import UsageError
from hybridge.export.check.oracle import picture_features, uncached_with_pictures
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.export.texts import logits_of, read_text
from hybridge.runtime.artifact.folder import Artifact
from hybridge.runtime.binding.chat import message_content
from hybridge.runtime.binding.pictures import EncodedPart, Picture
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.pictures import PictureProcessor, with_pictures

EXPECTED = 'such as {"prompt": "What is this?", "images": ["cat.jpg"]}'


class PicturePrompt(BaseModel):
    """A line of a file of prompts. images: files, which are relative to the folder of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    prompt: str
    images: Annotated[list[str], Field(min_length=1, max_length=64)]


@dataclass(frozen=True, kw_only=True)
class EncoderFigures:
    """The error of the encoder by rounding.

    parts: of all pictures, which may be cut into tiles; rows: of all of them. error: |a - b| / |b| of all embeddings of a
    part, the mean over parts.
    """

    pictures: int
    parts: int
    rows: int
    error: float
    largest_error: float


class PicturePrompts:
    """The prompts of a file for an artifact. name: how a message calls the file."""

    def __init__(self, artifact: Artifact, session: Session, path: Path) -> None:
        """Read the file.

        Raises UsageError for a line that is no prompt, an artifact without pictures or a template; PictureError for a picture.
        """
        self.name = f"--image-prompts {path}"
        if artifact.tokenizer is None or artifact.manifest.pictures is None:
            raise UsageError(
                f"{artifact.folder} takes no pictures, or has no tokenizer.json; --image-prompts is for a model of pictures."
            )
        self._session, self._tokenizer = session, Tokenizer.of(artifact)
        self._template, self._processor = load_template(artifact), PictureProcessor(session.model, self._tokenizer)
        self._folder, self.prompts = path.parent, list[PicturePrompt]()
        for number, line in enumerate(read_text(path, "--image-prompts").splitlines(), 1):
            try:
                self.prompts += [PicturePrompt.model_validate(json.loads(line))] if line.strip() else []
            except (ValueError, ValidationError, RecursionError):
                raise UsageError(f"{self.name}: line {number} is no prompt with pictures, {EXPECTED}.") from None
        if not self.prompts:
            raise UsageError(f"{self.name} has no prompt; it has one a line, {EXPECTED}.")

    def compare(
        self,
        loaded: LoadedModel,
        length: int,
        seed: int,
        add: Callable[[list[int], Tensor, Tensor], None],
        notify: Callable[[int, int], None],
    ) -> EncoderFigures:
        """Let the artifact answer each prompt, and compare the answer's logits and the pictures' embeddings.

        Args:
            loaded: the checkpoint in float32.
            length: tokens of a prompt and its answer together, rows of pictures among them.
            seed: of the answers, which are drawn at temperature 1.
            add: takes the last token of a prompt and its answer, and logits [T, V] of both models after each of them.
            notify: is told how many of all prompts are done.

        Raises:
            UsageError: a prompt leaves no room for an answer.
            PictureError: a picture cannot be read, or the template has no place for it.
        """
        session, errors, pictures, rows = self._session, list[float](), 0, 0
        for number, prompt in enumerate(self.prompts):
            opened = [self._processor.read(self._folder / each) for each in prompt.images]
            ids = self._ids(prompt.prompt, opened)
            if len(ids) >= length:
                raise UsageError(
                    f"{self.name}: prompt {number + 1} has {len(ids)} tokens with its pictures, expected at most {length - 1}; "
                    "see --window."
                )
            session.reset()
            drawn = session.generate(
                ids, max_new_tokens=length - len(ids), temperature=1.0, seed=seed + number, eos_ids=(),
            )  # fmt: skip
            answer = list(drawn)
            parts = [picture.part(i) for picture in opened for i in range(picture.parts)]
            oracle = uncached_with_pictures(loaded, _by_first_id(ids, parts))
            original = oracle([*ids, *answer])[len(ids) - 1 :]
            add([max(ids[-1], 0), *answer], original, logits_of(session, answer, prompt=ids))
            errors += embedding_errors(parts, picture_features(loaded, [part.rgb for part in parts]))
            pictures, rows = pictures + len(opened), rows + sum(token < 0 for token in ids)
            notify(number + 1, len(self.prompts))
        return EncoderFigures(
            pictures=pictures, parts=len(errors), rows=rows, error=float(np.mean(errors)), largest_error=max(errors)
        )

    def _ids(self, text: str, pictures: Sequence[Picture]) -> list[int]:
        """Return a message with pictures as ``hybridge run --image`` gives it to the model."""
        asked = {"role": "user", "content": message_content(text, len(pictures))}
        rendered = self._template.render([asked])
        ids = self._tokenizer.encode(rendered.text, around=False, plain=rendered.words).ids
        return with_pictures(ids, pictures)


def embedding_errors(parts: Sequence[EncodedPart], features: Sequence[Tensor]) -> list[float]:
    """Return |a - b| / |b| of each part's embeddings, whose original [rows, hidden] ``features`` has."""
    errors = []
    for part, original in zip(parts, features, strict=True):
        assert part.embeddings is not None, "it is in a text that was read"
        difference = torch.from_numpy(part.embeddings) - original
        errors.append(float(difference.norm() / original.norm()))
    return errors


def _by_first_id(ids: Sequence[int], parts: Sequence[EncodedPart]) -> dict[int, NDArray[np.uint8]]:
    """Return the pixels of each part by the first of its rows in a text."""
    found, at = dict[int, NDArray[np.uint8]](), 0
    for part in parts:
        assert part.embeddings is not None, "it is in a text that was read"
        while ids[at] >= 0:
            at += 1
        found[ids[at]] = part.rgb
        at += len(part.embeddings)
    return found
