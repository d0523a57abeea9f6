"""``manifest.json``: what an artifact is, in words that a program and a person can check.

The file carries the SHA-256 and size of every other file and a checksum of itself, so that nothing in the folder can change
unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from hybridge.errors import ArtifactError
from hybridge.runtime.artifact.delegates import DELEGATED, DELEGATES
from hybridge.runtime.artifact.drafter import DrafterDescription, check_drafter
from hybridge.runtime.artifact.options import ExportOptions, check_limits
from hybridge.runtime.artifact.pictures import PictureDescription, check_pictures
from hybridge.runtime.files import read_regular

FORMAT_VERSION, PROGRAM_VERSION = 5, 4
"""Versions of the folder's format, and of the methods in model.pte."""
MANIFEST = "manifest.json"
PROGRAM = "model.pte"
GOLDEN = "golden.json"
"""Steps with their answers (``hybridge.export.write.golden``), of most artifacts."""
ONNX_PROGRAM, ONNX_WEIGHTS, ONNX_COMMIT = "model.onnx", "model.onnx.data", "commit.onnx"
LARGEST_MANIFEST = 8 << 20
"""Bytes; a model of a hundred layers takes a tenth of it."""

Size = Annotated[int, Field(ge=0, le=1 << 48)]
Token = Annotated[int, Field(ge=0, le=1 << 31)]
Name = Annotated[str, StringConstraints(max_length=255)]
Hash = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
StoredBits = Literal[4, 5, 6, 8, 16]
"""Bits of a quantized weight."""
MOST_WEIGHTS = 1 << 15
"""Most quantized weights: a thousand layers have about as many."""


class Entry(BaseModel):
    """Base of what the manifest holds: immutable, no unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TensorEntry(Entry):
    """A tensor's fixed shape and dtype, such as ``float32``."""

    shape: Annotated[list[Size], Field(max_length=8)]
    dtype: Name


class LayerEntry(Entry):
    """One cache layer: its kind, the shapes of its buffers by name, and their bytes by use."""

    kind: Name
    buffers: Annotated[dict[Name, TensorEntry], Field(max_length=256)]
    state_bytes: Size
    rollback_bytes: Size
    slot_bytes: Size


class MethodEntry(Entry):
    """One method of the program, the operators it runs itself and the backends it hands parts to."""

    inputs: Annotated[list[TensorEntry], Field(max_length=8)]
    outputs: Annotated[list[TensorEntry], Field(max_length=8)]
    operators: Annotated[list[Name], Field(max_length=1024)]
    delegates: Annotated[dict[Name, Size], Field(max_length=64, description="calls by backend name")]
    delegate_bytes: Annotated[Size, Field(description="of an accelerator's parts, its copy of the weights included")] = 0


class OnnxStateEntry(TensorEntry):
    """A state that goes into the graph as ``past_key_values.{name}`` and comes out of it as ``present.{name}``.

    name is the layer's index and the state's own name, such as ``0.key``. Positional ones have a row for each position,
    [1, heads, max_seq_len, head dim], and are written in place; bounded ones come out whole.
    """

    name: Name
    dtype: Literal["float32"]
    kind: Literal["positional", "bounded"]


class OnnxStaged(TensorEntry):
    """The output ``staged.{name}`` [1, T, …], which the commit graph needs of a block; the shape is that of T = verify_len."""

    name: Name
    dtype: Literal["float32"]


class OnnxEntry(Entry):
    """The part for onnxruntime; operators as ``com.microsoft::LinearAttention``."""

    opset: Size
    contrib_operators: Annotated[list[Name], Field(max_length=1024)]
    states: Annotated[list[OnnxStateEntry], Field(max_length=4096)]
    staged: Annotated[list[OnnxStaged], Field(max_length=16384)]

    @property
    def bounded(self) -> list[OnnxStateEntry]:
        """Return the states that a commit moves; none in a model of attention alone, which needs no commit graph."""
        return [state for state in self.states if state.kind == "bounded"]


class FileEntry(Entry):
    """A file of the folder."""

    sha256: Hash
    size: Size


class StoredEntry(Entry):
    """A weight as the program has it: SHA-256 and size of its whole numbers and of its factors."""

    numbers: FileEntry
    scales: FileEntry
    minima: FileEntry | None = None
    superscales: FileEntry | None = None


class CalibrationEntry(Entry):
    """The texts that weights were rounded for: their number of tokens, and the SHA-256 of the ids.

    stored: the rounded weights by name, which no other calibration reproduces bit for bit.
    """

    source: Literal["self", "text"]
    tokens: Size
    sha256: Hash
    stored: Annotated[dict[Name, StoredEntry], Field(max_length=MOST_WEIGHTS)]


class StockTokenizerEntry(Entry):
    """A comparison of the tokens that ExecuTorch's tokenizer, which stock runners use, and a Session have for texts.

    Args:
        texts: texts compared, 0 if it cannot load the file.
        equal: those that have a Session's tokens.
        difference: the reason if not all are equal, otherwise empty.
        without_nfc: Unicode's form NFC, which it gets wrong, was left out of the file.
    """

    texts: Size
    equal: Size
    difference: Annotated[str, StringConstraints(max_length=1 << 12)] = ""
    without_nfc: bool = False


class Manifest(Entry):
    """The content of ``manifest.json`` without its own checksum."""

    format_version: int
    model_type: Name
    vocab_size: Annotated[int, Field(ge=1, le=1 << 31)]
    bos_id: Token | None
    eos_ids: Annotated[list[Token], Field(max_length=1024)]
    weight_bytes: Size
    parameters: Annotated[Size | None, Field(description="numbers of all weights; earlier artifacts do not say")] = None
    options: ExportOptions
    layers: Annotated[list[LayerEntry], Field(max_length=1024)]
    methods: Annotated[dict[Name, MethodEntry], Field(max_length=128)]
    files: Annotated[dict[Name, FileEntry], Field(max_length=256)]
    versions: Annotated[dict[Name, Name], Field(max_length=64)]
    onnx: OnnxEntry | None = None
    bits: Annotated[
        dict[Name, StoredBits], Field(max_length=MOST_WEIGHTS, description="bits of each weight that has fewer than 32")
    ] = Field(default_factory=dict)
    calibration: CalibrationEntry | None = None
    source: Annotated[Name | None, Field(description="model and commit on the hub, ORG/NAME@COMMIT")] = None
    drafter: DrafterDescription | None = None
    pictures: PictureDescription | None = None
    stock_tokenizer: Annotated[
        StockTokenizerEntry | None, Field(description="whether stock runners read the same tokens; for --kernels llm alone")
    ] = None

    @model_validator(mode="after")
    def _says_what_its_format_needs(self) -> Self:
        if (self.options.format == "onnx") != (self.onnx is not None):
            raise ValueError("the section 'onnx' belongs to the format 'onnx' and to no other")
        check_limits(self.options)
        self._check_delegates()
        if self.drafter is not None:
            check_drafter(self.drafter, self.options.tap_layers, self.options.verify_len)
        if self.pictures is not None:
            check_pictures(self.pictures, self.vocab_size)
        return self

    def _check_delegates(self) -> None:
        """Raise ValueError if a method of the delegate's has another one's parts, or another method has parts of it."""
        own = DELEGATES[self.options.delegate].backend if self.options.delegate != "none" else None
        if "delegate_vision_encoder" in self.options.delegated and self.pictures is None:
            raise ValueError("a delegate encodes pictures, and the artifact takes none")
        others = {each.backend for each in DELEGATES.values()}
        for name, method in self.methods.items():
            if {*method.delegates} - {own} if name in DELEGATED else others.intersection(method.delegates):
                raise ValueError(f"the method {name} hands parts to a backend that is not its own")

    def program_method(self, name: str) -> str:
        """Return the name of the method ``name`` in the program; onnxruntime has graphs, and no names of methods."""
        return name if self.onnx else program_method(name)

    @property
    def program_files(self) -> list[str]:
        """Return the files that the runtime reads, the program itself first."""
        if self.onnx is None:
            return [PROGRAM]
        return [ONNX_PROGRAM, ONNX_WEIGHTS, *([ONNX_COMMIT] if self.onnx.bounded else [])]

    @property
    def bits_per_weight(self) -> float | None:
        """Return the bits of the program's files for each weight, embedding and head included; None if unknown."""
        return 8 * sum(self.files[name].size for name in self.program_files) / self.parameters if self.parameters else None

    @property
    def has_same_bits(self) -> bool:
        """Return whether the CPU gives logits the same bits however a text is read."""
        return self.options.has_own_kernels

    @property
    def identity(self) -> str:
        """Return the hash of the program and its weights."""
        hashes = [self.files[name].sha256 for name in self.program_files]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()

    @property
    def operators(self) -> set[str]:
        """Return every operator that a method runs itself."""
        return {name for method in self.methods.values() for name in method.operators}

    @property
    def namespaces(self) -> set[str]:
        """Return the first part of every operator's name, such as ``llama``."""
        return {name.partition("::")[0] for name in self.operators}

    @property
    def needs_kernels(self) -> bool:
        """Return whether the program calls kernels of ours."""
        return "hybridge" in self.namespaces

    def to_json(self) -> str:
        """Return the file's text, checksum included."""
        content = self.model_dump(mode="json")
        return json.dumps(content | {"checksum": _checksum(content)}, indent=2) + "\n"


def program_method(name: str) -> str:
    """Return what a program calls the method ``name``: none of ours has a name that a stock runner looks for by accident.

    The runners of ExecuTorch 1.5 call a method ``decode``, if there is one, for every token after the prompt (its pull
    request 21746), over memory of its own: it would start from an empty state.
    """
    return STOCK_METHODS.get(name, f"hybridge_{name}")


STOCK_METHODS: Mapping[str, str] = {
    "forward": "forward",
    "stock_vision_encoder": "vision_encoder",
    "token_embedding": "token_embedding",
    "text_decoder": "text_decoder",
}
"""Names in a program of the methods that ExecuTorch's own runners call, by ours."""


def read_manifest(folder: Path) -> Manifest:
    """Parse and check ``folder/manifest.json``; the other files are not looked at.

    Raises ArtifactError for a missing, unreadable or altered manifest and for another format version.
    """
    path = folder / MANIFEST
    try:
        content = json.loads(read_regular(path, LARGEST_MANIFEST).decode("utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except FileNotFoundError:
        raise ArtifactError(f"{folder} is not an artifact: it has no {MANIFEST}. Make one with 'hybridge export'.") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ArtifactError(f"{path} cannot be read ({reason}); export the model again.") from None
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"{folder} has format version {shortened(version)}, but this hybridge reads {FORMAT_VERSION}. Export the model "
            f"again with 'hybridge export CHECKPOINT -o {folder} --force', or use the hybridge that made it."
        )
    if content.pop("checksum", None) != _checksum(content):
        raise ArtifactError(f"{path} was altered: its checksum does not match. Export the model again.")
    try:
        return Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(f"{path} does not describe an artifact: {where[:200]}: {first['msg'][:200]}.") from None


def shortened(value: object, most: int = 200) -> str:
    """Return a value as a message shows it, however large it is."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _checksum(content: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
