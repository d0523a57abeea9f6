"""Define every error that hybridge raises on purpose.

HybridgeError
├── UsageError             the caller asked for something that cannot be: exit code 2 on the command line
│   ├── CapacityError      more tokens than the room that is left
│   ├── TokenError         a token id outside the vocabulary or not a whole number, or no token at all
│   ├── CommitError        a commit without a verify, or of more tokens than were verified
│   ├── SnapshotError      a slot out of range, never filled, or overwritten since
│   ├── DraftError         a drafter that does not fit this model
│   ├── GrammarError       a schema or grammar that cannot be read, or not be followed any further
│   └── TemplateError      a chat template with an error, or one that refuses these messages
├── CheckpointError        a checkpoint that cannot be read: missing, damaged or misshapen
│   ├── UnsupportedModelError  a model, or a layer of one, that hybridge has no state for
│   └── NotACheckpointError    something else than a checkpoint was named, such as an adapter: exit code 2
├── ArtifactError          an exported folder that cannot be trusted: truncated, altered or of another version
├── NumericalError         a program that returned NaN or infinite logits
├── BrokenStateError       a state that a call left when it failed in the middle; reset, restore, resume or load mends it
├── StateFileError         a saved session that is damaged or of another artifact
├── KernelsError           hybridge's own kernels cannot be built or loaded on this machine
├── NativeError            the native core cannot be built or started on this machine
├── OutputError            the output cannot be written: no permission, disk full
├── ExportFailedError      torch.export or the lowering gave up
└── ValidationError        an artifact disagrees with the eager model
"""

from __future__ import annotations


class HybridgeError(Exception):
    """Base of all errors below. The message says what is wrong, what was expected and what to do."""

    exit_code = 1


class UsageError(HybridgeError, ValueError):
    """The call itself is wrong; nothing was done and no state was changed."""

    exit_code = 2


class CapacityError(UsageError):
    """The tokens do not fit into what is left of ``max_seq_len``."""


class TokenError(UsageError):
    """A token id is outside the vocabulary or not a whole number, or a call got no tokens."""


class CommitError(UsageError):
    """There is no verified block, or it is shorter than what should be committed."""


class SnapshotError(UsageError):
    """The slot does not exist, was never filled, or its positions were overwritten since."""


class DraftError(UsageError):
    """The drafter has another vocabulary or lacks what drafting for this model needs."""


class PictureError(UsageError):
    """A picture cannot be read, is of a size that the model does not take, or is for a model that takes none."""


class GrammarError(UsageError):
    """A JSON schema, regular expression or grammar cannot be followed, or is too complex to be followed any further."""


class TemplateError(UsageError):
    """A chat template has an error in its syntax, refuses its variables or exceeds a limit."""


class CheckpointError(HybridgeError):
    """The checkpoint folder cannot be read."""


class UnsupportedModelError(CheckpointError):
    """hybridge has no state layout for this model or for one of its layers."""


class NotACheckpointError(CheckpointError, UsageError):
    """The path names something else: an adapter, a GGUF file, an artifact, a folder around the checkpoint."""

    exit_code = 2


class ArtifactError(HybridgeError):
    """The artifact is damaged, altered, incomplete or of another format version."""


class NumericalError(HybridgeError):
    """A program returned NaN or infinite logits: the message says which method, and after which position.

    Nothing can be sampled from them. The cause is weights or a state that are NaN, or numbers beyond float32.
    """


class BrokenStateError(HybridgeError):
    """A call failed in the middle and left a state that is neither the old nor the new one.

    Reset the session, or restore, resume or load a state; everything else is refused until then.
    """


class StateFileError(HybridgeError):
    """The file of a saved session is damaged, truncated or of another artifact."""


class KernelsError(HybridgeError):
    """hybridge's own kernels cannot be compiled or loaded here."""


class NativeError(HybridgeError):
    """The native core cannot be compiled or started here."""


class OutputError(HybridgeError):
    """The output folder cannot be written."""


class ExportFailedError(HybridgeError):
    """The model was read but could not be turned into a program."""


class ValidationError(HybridgeError):
    """The artifact's outputs differ from the eager model's by more than the tolerance."""
