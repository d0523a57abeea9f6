"""Lower two decoder layers of each kind, and repeat their part of the graphs for the others.

A model of thirty layers has two or three kinds of them, and a lowering treats all of one kind alike. So the others are left out
of the modules while their methods are traced and passed through the lowering, and are put into the finished graphs before
memory is planned:

    kept      0        3                                      22 23     a a a B a a a B a a a B a a a B a a a B a a a B
    put in       1  2     4  5  6  7  8  9 10 11 12  …  20 21           copies of 22 (a) and of 23 (B)

The first layer of a kind and the last are compared: they must be the same calls on the same values, apart from their own
weights and state, from one tensor that the layer before has made, and from what the first makes for all of them, such as
masks. What holds for these two holds for those between. If layers are not alike, all of them are lowered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import GraphModule

from hybridge.cache.layers.layer import CacheLayer, StatelessLayer
from hybridge.export.lower.layer_copies import LAYERS, Repetition, UnlikeLayersError, add_copies, owned

UNTOLD = frozenset({"layer_idx", *vars(nn.Module())})
"""Attributes that say nothing about a layer's kind: its number, and what every module has."""


class RepeatedLayers:
    """The layers of a model that need not be lowered because two others show how."""

    def __init__(self, holder: nn.Module, kinds: Sequence[str], left: Collection[int]) -> None:
        """See ``of``. kinds: of each layer; left: layers to leave out."""
        self._decoder, self._cache = map(holder.get_submodule, LAYERS)
        self._result: object = None
        same = {kinds[index]: [each for each, kind in enumerate(kinds) if kind == kinds[index]] for index in left}
        self.repetition = Repetition(
            kinds=kinds,
            left=sorted(left),
            pairs={kind: (each[0], each[-1]) for kind, each in same.items()},
            tensors=dict((*holder.named_parameters(), *holder.named_buffers())),
        )

    @classmethod
    def of(cls, holder: nn.Module, taps: Collection[int]) -> RepeatedLayers | None:
        """Return the layers of a model that need not be lowered, None if there are none.

        holder: with a decoder and a cache at ``LAYERS``. taps: places between layers that something else reads, by the number
        of the layer after them.
        """
        decoder, cache = (list(holder.get_submodule(name).children()) for name in LAYERS)
        count = len(decoder)
        if len(cache) < count or any(_looks_at_others(layer) for layer in cache) or _shares_tensors(holder):
            return None
        model: Any = holder.get_submodule(LAYERS[0].rpartition(".")[0])
        lists = [each for each in model.config.to_dict().values() if isinstance(each, list | tuple) and len(each) == count]
        kinds = [
            "\n".join((*_described(layer), *_described(state), *(repr(each[index]) for each in lists)))
            for index, (layer, state) in enumerate(zip(decoder, cache, strict=False))
        ]
        places = {place % (count + 1) for place in taps}
        needed = {count - 1, *places, *(place - 1 for place in places)}
        left = [i for i, kind in enumerate(kinds) if kind in kinds[:i] and kind in kinds[i + 1 :] and i not in needed]
        return cls(holder, kinds, left) if left else None

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Leave the layers out of the model and of its cache inside."""
        left = self.repetition.left
        decoder, cache = dict(enumerate(self._decoder.children())), dict(enumerate(self._cache.children()))
        hooks = [layer.register_forward_hook(self._remember) for index, layer in decoder.items() if index not in left]
        hooks += [
            layer.register_forward_pre_hook(self._check_given, with_kwargs=True)
            for index, layer in decoder.items()
            if index - 1 in left and index not in left
        ]
        try:
            for index in left:
                state: Any = cache[index]
                setattr(self._decoder, str(index), PassingLayer(decoder[index], self))
                setattr(self._cache, str(index), StatelessLayer(state.sizes, state.kernels))
            yield
        finally:
            self._result = None
            for hook in hooks:
                hook.remove()
            for index in left:
                setattr(self._decoder, str(index), decoder[index])
                setattr(self._cache, str(index), cache[index])

    def _remember(self, module: nn.Module, inputs: object, output: object) -> None:
        self._result = output

    def _check_given(self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self.passed(inputs, named)

    def passed(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return the result of the layer before as that of a layer that is left out.

        Raises UnlikeLayersError if the model works on hidden states between layers, or if there are more than these.
        """
        result = self._result[0] if isinstance(self._result, tuple) and len(self._result) == 1 else self._result
        if not isinstance(result, Tensor) or (inputs[0] if inputs else named.get("hidden_states")) is not result:
            raise UnlikeLayersError("a layer takes something else than what the layer before gives")
        return self._result

    def check_traced(self, program: ExportedProgram) -> None:
        """Raise UnlikeLayersError if something else reads the weights or the state of a layer that was left out."""
        left = {
            id(tensor)
            for name, tensor in self.repetition.tensors.items()
            if (own := owned(name)) and own[0] in self.repetition.left
        }
        if any(id(each) in left for each in (*program.state_dict.values(), *program.constants.values())):
            raise UnlikeLayersError("another layer reads what belongs to one that was left out")

    def put_in(self, program: ExportedProgram, module: GraphModule, signature: ExportGraphSignature) -> None:
        """Put the layers into a method whose memory is not planned yet: into its graph, its signatures and its tensors.

        Raises UnlikeLayersError, after which the method cannot be used.
        """
        add_copies(self.repetition, program, module, signature)


class PassingLayer(nn.Module):
    """Stands for a decoder layer that is left out: gives what the layer before gave."""

    def __init__(self, layer: nn.Module, layers: RepeatedLayers) -> None:
        super().__init__()
        self._given = (layer, layers)  # in a tuple, for not to own them

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self._given[1].passed(inputs, named)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the layer: models ask it for its kind."""
        return getattr(self.__dict__["_given"][0], name)


def _looks_at_others(layer: nn.Module) -> bool:
    """Return whether a layer of the cache reads another one's rows."""
    return any(type(part).connect is not CacheLayer.connect for part in layer.modules() if isinstance(part, CacheLayer))


def _shares_tensors(holder: nn.Module) -> bool:
    """Return whether a tensor of one of the decoder's layers is also another module's."""
    first: dict[int, str] = {}
    for name, tensor in (*holder.named_parameters(remove_duplicate=False), *holder.named_buffers(remove_duplicate=False)):
        owners = {owned(each) for each in (first.setdefault(id(tensor), name), name)}
        if len(owners) > 1:
            return True
    return False


def _described(module: nn.Module) -> Iterator[str]:
    """Yield all of a layer that decides its graph, but its number: classes, plain attributes, forms of tensors."""
    for name, each in module.named_modules():
        yield f"{name} {type(each).__module__}.{type(each).__qualname__} {plain_attributes(each, UNTOLD)}"
        for own, tensor in (*each.named_parameters(recurse=False), *each.named_buffers(recurse=False)):
            yield f"{name}.{own} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"


def plain_attributes(module: nn.Module, untold: Collection[str]) -> str:
    """Return the attributes of a module that are plain values, but the ``untold``; the same text in every process."""
    return _words({key: value for key, value in sorted(vars(module).items()) if key not in untold and _is_plain(value)})


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, a type of tensors, or of such alone."""
    if isinstance(value, dict):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | torch.dtype | type(None))


def _words(value: Any) -> str:
    """Return a plain value as a text that is the same in every process: sets of texts have another order in each."""
    match value:
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(_words, value)))}}}"
        case dict():
            return f"{{{', '.join(f'{_words(key)}: {_words(each)}' for key, each in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(_words, value))}]"
        case _:
            return repr(value)
