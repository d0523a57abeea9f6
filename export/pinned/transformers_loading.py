"""transformers 5.23: how ``from_pretrained`` puts weights into a model; patches to work on each and to refuse what is unfit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, Protocol, TypeVar
from unittest import mock

import safetensors
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, core_model_loading, modeling_utils


class Reader(Protocol):
    """Is told of each weight of a model that is being read."""

    def keeps(self, model: PreTrainedModel, name: str) -> bool:
        """Return whether weight ``name`` stays in the type that its file has, rather than become the model's."""
        ...

    def loaded(self, model: PreTrainedModel, name: str) -> None:
        """Take notice that weight ``name`` is in its place; its module may be replaced by another."""
        ...


@contextmanager
def read_one_by_one(reader: Reader) -> Iterator[None]:
    """Inside, ``from_pretrained`` reads one weight after the other, in the type of its file, and tells ``reader`` of each.

    Else its threads read ahead, and everything is in memory in the model's type before anyone sees it. Patches what its loop
    calls for each weight: ``_materialize_copy`` reads one, ``set_param_for_module`` puts it into its place, and
    ``is_env_variable_true`` says whether to do without threads. Files are read, not mapped: a mapped file stays resident.
    """
    place = core_model_loading.set_param_for_module

    def set_and_tell(model: PreTrainedModel, name: str, value: Tensor, *others: Any) -> None:
        if not reader.keeps(model, name):
            value = _like(value, weight_of(model, name))
        place(model, name, value, *others)
        reader.loaded(model, name)

    with (
        mock.patch.object(core_model_loading, "set_param_for_module", set_and_tell),
        mock.patch.object(core_model_loading, "_materialize_copy", _as_it_is),
        mock.patch.object(core_model_loading, "is_env_variable_true", return_value=True),
        mock.patch.object(modeling_utils, "safe_open", _open_to_read),
    ):
        yield


@contextmanager
def remember_origins() -> Iterator[None]:
    """Inside, the parameters of a model that ``from_pretrained`` reads have the origins of the tensors that became them.

    A tensor that transformers makes of others has none. Patches what puts each weight into its place.
    """
    place = core_model_loading.set_param_for_module

    def place_with_origin(model: PreTrainedModel, name: str, value: Tensor, *others: Any) -> None:
        place(model, name, value, *others)
        if (origin := origin_of(value)) is not None:
            with_origin(weight_of(model, name), origin)

    with mock.patch.object(core_model_loading, "set_param_for_module", place_with_origin):
        yield


class Origin(Protocol):
    """Where a tensor's numbers come from."""

    def blocks(self) -> Any:
        """Return them as they are stored there; None where they are stored in no such way."""
        ...

    def without_kernels(self) -> list[str]:
        """Return the names of types there that no kernels are for."""
        ...


def with_origin(tensor: Tensor, origin: Origin | None) -> Tensor:
    """Return ``tensor``, which has ``origin`` from now on; what is made of it has none."""
    setattr(tensor, "_hybridge_origin", origin)  # noqa: B010  which no tensor declares
    return tensor


def origin_of(tensor: Tensor) -> Origin | None:
    """Return the origin of a tensor, if it has one."""
    origin: Origin | None = getattr(tensor, "_hybridge_origin", None)
    return origin


class UnfitWeightsError(Exception):
    """A checkpoint's weights are not those of its config. missing: names; misshapen: name, shape there and shape asked for."""

    def __init__(self, missing: set[str], misshapen: set[tuple[str, Any, Any]]) -> None:
        super().__init__(f"{len(missing)} weights are missing, {len(misshapen)} have another shape")
        self.missing, self.misshapen = sorted(missing), sorted(misshapen)


@contextmanager
def refuse_unfit_weights() -> Iterator[None]:
    """Inside, ``from_pretrained`` raises UnfitWeightsError for weights that are missing or have another shape.

    It would make random ones in their place, and a config can ask for any size: 70 s and 19 GB with one number changed. Patches
    what it calls once it has read the file.
    """
    finalize = PreTrainedModel._finalize_model_loading

    def finalize_if_fit(model: PreTrainedModel, load_config: Any, loading_info: Any) -> Any:
        model.mark_tied_weights_as_initialized(loading_info)
        found = copy(loading_info)
        model._adjust_missing_and_unexpected_keys(found)  # leaves out what a class may do without
        missing = _missing(model, found.missing_keys)
        if missing or loading_info.mismatched_keys:
            raise UnfitWeightsError(missing, loading_info.mismatched_keys)
        return finalize(model, load_config, loading_info)

    with mock.patch.object(PreTrainedModel, "_finalize_model_loading", staticmethod(finalize_if_fit)):
        yield


def _missing(model: PreTrainedModel, names: set[str]) -> set[str]:
    """Return the names but for those that are tied to one that is there."""
    together = defaultdict[str, set[str]](set)
    for target, source in model.all_tied_weights_keys.items():
        together[source] |= {target, source}
    return names - {name for group in together.values() if not group <= names for name in group}


def weight_of(model: PreTrainedModel, name: str) -> Any:
    """Return the parameter or buffer ``name`` of a model, on the meta device before it has been read."""
    path, _, own = name.rpartition(".")
    return getattr(model.get_submodule(path), own)


def tied_weights(model: PreTrainedModel) -> set[str]:
    """Return the names of weights that may be tied to others once all have been read, and of those they are tied to."""
    tied = model.all_tied_weights_keys
    return {*tied, *tied.values()}


Initialized = TypeVar("Initialized", Tensor, nn.Module)


def initialized(made: Initialized) -> Initialized:
    """Mark a tensor or a module, but not what is in it, as one that needs no random numbers, though no file has it."""
    setattr(made, "_is_hf_initialized", True)  # noqa: B010  transformers' own mark, which no tensor declares
    return made


def _as_it_is(tensor: Any, device: Any = None, dtype: Any = None) -> Tensor:
    read: Tensor = tensor[...]
    both_float = dtype is not None and dtype.is_floating_point and read.is_floating_point()
    return read if both_float else read.to(device=device, dtype=dtype)


def _like(value: Tensor, meta: Any) -> Tensor:
    return value.to(meta.dtype) if isinstance(meta, torch.Tensor) else value


def _open_to_read(*args: Any, **options: Any) -> Any:
    return safetensors.safe_open(*args, **options | {"backend": "pread"})
