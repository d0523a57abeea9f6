"""ExecuTorch 1.5.1: how a program's constants get from tensors to the file, and a patch that does it without a copy."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from executorch.exir._serialize._cord import FileBackedData
from executorch.exir.emit import _emit_program, _emitter
from executorch.exir.schema import EValue, TensorDataLocation
from executorch.exir.tensor import TensorSpec, make_tensor_value


class StoredTensor(FileBackedData):  # type: ignore[misc]  # untyped upstream
    """The bytes of a tensor's storage, which stays where it is until it is written.

    Takes the place of ``bytes`` in a program that is put together, as data in a file does: its length is asked for and it is
    told to write itself.
    """

    def __init__(self, storage: Any) -> None:
        self._storage = storage  # which owns the memory
        array = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
        self._view = memoryview(array).cast("B")

    def __len__(self) -> int:
        return len(self._view)

    def __deepcopy__(self, memo: Any) -> StoredTensor:
        return self

    def prefix(self, size: int) -> bytes:
        return bytes(self._view[:size])

    def sha256(self) -> bytes:
        return hashlib.sha256(self._view).digest()

    def to_bytes(self) -> bytes:
        return bytes(self._view)

    def write_to_file(self, outfile: Any) -> None:
        outfile.write(self._view)

    def close(self) -> None:
        """Do nothing: there is no file."""


@contextmanager
def constants_in_place() -> Iterator[None]:
    """Inside, ``to_executorch`` leaves constants where they are and looks at each once, not once for each method.

    Else it makes bytes of every constant of every method, only to find that it has most already. Patches the emitter's
    ``_tensor_spec_to_evalue``, which does that, for constants that lie in the program's own file.
    """
    seen: dict[int, tuple[StoredTensor, str]] = {}  # by address, of memory that is kept so that no other gets it

    class Emitter(_emitter._TopLevelEmitter):  # type: ignore[misc]  # untyped upstream
        def _tensor_spec_to_evalue(self, spec: TensorSpec, constant_tag: str | None = None) -> EValue:
            if not _is_constant(spec):
                return super()._tensor_spec_to_evalue(spec, constant_tag)
            address = spec.storage.data_ptr()
            if address not in seen:
                stored = StoredTensor(spec.storage)
                seen[address] = stored, stored.sha256().hex()
            stored, digest = seen[address]
            assert len(stored) == spec.nbytes(), f"a constant of {spec.nbytes()} bytes in a storage of {len(stored)}"
            index = self.program_state.cached_spec_hash_values.get(digest, -1)
            if index == -1:
                index = self._save_new_const_tensor(spec, stored, digest)
            return EValue(make_tensor_value(index, None, spec))

    with mock.patch.object(_emit_program, "_TopLevelEmitter", Emitter):
        yield


def _is_constant(spec: TensorSpec) -> bool:
    """Return whether a tensor is in the program's segment of constants: not empty, no state, in no other file."""
    planned = spec.mem_id is not None and spec.mem_offset is not None
    outside = spec.extra_tensor_info is not None and spec.extra_tensor_info.location == TensorDataLocation.EXTERNAL
    return bool(spec.const and spec.allocated_memory and not planned and not outside)
