"""Load graphs into onnxruntime from an untrusted folder, and compare them with the manifest.

onnxruntime itself refuses weights that lie outside the graph's folder, by a path or by a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hybridge.errors import ArtifactError
from hybridge.runtime.artifact.manifest import Manifest, OnnxEntry, OnnxStateEntry, TensorEntry
from hybridge.runtime.binding.library import threads
from hybridge.runtime.pinned import FATAL, ONNX_OPTIONS, onnx_dtype, onnx_message

PAST, PRESENT, STAGED = "past_key_values.", "present.", "staged."
TOKENS, MASK, FIRST_LOGIT, LOGITS, COUNT = "input_ids", "attention_mask", "first_logit", "logits", "count"

Signature = dict[str, tuple[str, list[int | None]]]
"""Type and shape by name; None for an axis whose size is known only at a call."""


class OnnxGraph:
    """A loaded graph. Weights are mapped from their file, and packed once for every number of tokens."""

    def __init__(self, path: Path) -> None:
        """Load a graph. Raises ArtifactError if onnxruntime is missing or refuses the file."""
        self.path = path
        self._session = _session(path)

    def binding(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        """Return an IOBinding to OrtValues by name; others can be bound to it from call to call."""
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        return binding

    def run(self, binding: Any) -> None:
        """Run the graph. Raises ArtifactError if onnxruntime fails."""
        try:
            self._session.run_with_iobinding(binding)
        except RuntimeError as error:
            raise ArtifactError(f"{self.path} failed: {onnx_message(error)}.") from None

    def check(self, inputs: Signature, outputs: Signature) -> None:
        """Raise ArtifactError if the graph has other inputs or outputs."""
        taken = [*self._session.get_inputs(), *self._session.get_overridable_initializers()]
        _same(f"{self.path} takes", _signature(taken), inputs)
        _same(f"{self.path} gives", _signature(self._session.get_outputs()), outputs)


def check_model(graph: OnnxGraph, manifest: Manifest) -> None:
    """Raise ArtifactError if model.onnx is not what the manifest says."""
    entry = manifest.onnx
    assert entry is not None
    check_rows(manifest, entry)
    calls: Signature = {TOKENS: ("int64", [1, None]), MASK: ("int64", [1, None]), FIRST_LOGIT: ("int64", [])}
    logits: Signature = {LOGITS: ("float32", [1, None, manifest.vocab_size])}
    states, staged = _states(entry.states, PAST), _staged(entry)
    graph.check(calls | states, logits | _states(entry.states, PRESENT) | staged)


def check_rows(manifest: Manifest, entry: OnnxEntry) -> None:
    """Raise ArtifactError if a position, or a token of a block, has no row: the graphs take any number of them."""
    options = manifest.options
    positional = {each.name: (each.shape[2:3], options.max_seq_len) for each in entry.states if each.kind == "positional"}
    staged = {each.name: (each.shape[1:2], options.verify_len) for each in entry.staged}
    for name, (rows, wanted) in (positional | staged).items():
        if rows != [wanted]:
            raise ArtifactError(
                f"the manifest gives {name} {rows} rows, not {wanted} as its options say; export the model again."
            )


def check_commit(graph: OnnxGraph, entry: OnnxEntry) -> None:
    """Raise ArtifactError if commit.onnx is not what the manifest says."""
    calls: Signature = {COUNT: ("int64", [1])}
    graph.check(calls | _states(entry.bounded, PAST) | _staged(entry), _states(entry.bounded, PRESENT))


def ort_value(array: NDArray[Any]) -> Any:
    """Return a contiguous array for onnxruntime, over the same memory."""
    return _onnxruntime().OrtValue.ortvalue_from_numpy(array)


def _session(path: Path) -> Any:
    ort = _onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads()
    options.log_severity_level = FATAL
    options.enable_mem_pattern = False  # a plan for each number of tokens would be kept for ever
    for name, value in ONNX_OPTIONS.items():
        options.add_session_config_entry(name, value)
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own have no base in common
        raise ArtifactError(
            f"{path} does not load in onnxruntime {ort.__version__}: {onnx_message(error)}. "
            "Export the model again, or use the onnxruntime that its manifest names."
        ) from None


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise ArtifactError("an ONNX artifact needs onnxruntime: pip install 'hybridge[onnx]'.") from None
    return onnxruntime


def _states(states: Iterable[OnnxStateEntry], prefix: str) -> Signature:
    """Return the signature of states; the number of rows by position is the buffer's."""
    sizes = {"positional": (0, 1, 3), "bounded": range(8)}
    return {
        f"{prefix}{each.name}": (each.dtype, [n if axis in sizes[each.kind] else None for axis, n in enumerate(each.shape)])
        for each in states
    }


def _staged(entry: OnnxEntry) -> Signature:
    return {f"{STAGED}{each.name}": (each.dtype, _any_tokens(each)) for each in entry.staged}


def _any_tokens(entry: TensorEntry) -> list[int | None]:
    return [None if axis == 1 else n for axis, n in enumerate(entry.shape)]


def _signature(arguments: Iterable[Any]) -> Signature:
    return {each.name: (onnx_dtype(each.type), [n if isinstance(n, int) else None for n in each.shape]) for each in arguments}


def _same(what: str, actual: Signature, wanted: Signature) -> None:
    names = sorted(name for name in actual.keys() | wanted.keys() if actual.get(name) != wanted.get(name))
    if names:
        first = names[0]
        raise ArtifactError(
            f"{what} something else than the manifest says: {first} is {actual.get(first, 'missing')}, "
            f"not {wanted.get(first, 'there')}. Export the model again."
        )
