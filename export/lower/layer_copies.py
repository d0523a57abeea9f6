"""Put copies of layers into a method that was traced without them: calls, inputs and outputs, in the places of the layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

from hybridge.export.lower.sources import compute
from hybridge.export.pinned.executorch import Source, copy_spec, is_allocation, source_of, with_source

T = TypeVar("T")

LAYERS = ("model.decoder.layers", "cache.layers")
"""Names of the decoder's layers and of the cache's in the module that all methods hold."""

OWNED = re.compile(rf"^(?:state\.)?({'|'.join(map(re.escape, LAYERS))})\.(\d+)\.(.*)$")


class UnlikeLayersError(Exception):
    """Layers of one kind, as far as can be seen from their modules, are not lowered alike."""


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """Which layers of a model are copies of others.

    Attributes:
        kinds: of each layer.
        left: numbers of the layers that are missing, ascending.
        pairs: by kind, its first and its last layer, which are compared; missing layers are copies of the last.
        tensors: the parameters and buffers of the module that all methods hold, by name.
    """

    kinds: Sequence[str]
    left: Sequence[int]
    pairs: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, Tensor]

    def template(self, layer: int) -> int:
        """Return the layer that a missing one is a copy of."""
        return self.pairs[self.kinds[layer]][1]


def add_copies(repetition: Repetition, program: ExportedProgram, module: GraphModule, signature: ExportGraphSignature) -> None:
    """Add the missing layers to a method whose memory is not planned yet.

    Args:
        repetition: of the model.
        program: the method, with the tensors of its inputs.
        module: its graph, which passes may have changed since.
        signature: of that graph.

    Raises:
        UnlikeLayersError: the layers that are there are not alike. The method cannot be used then.
    """
    _Method(repetition, program, module, signature).complete()


def owned(name: str) -> tuple[int, str] | None:
    """Return the layer that a tensor of that name belongs to, and a name that is the same in all layers; None if to none."""
    found = OWNED.match(name)
    return (int(found[2]), f"{found[1]}.*.{found[3]}") if found else None


def _renamed(name: str, layer: int) -> str:
    """Return the name of another layer's tensor; names of the whole model's stay."""
    found = OWNED.match(name)
    return f"{name[: found.start(2)]}{layer}{name[found.end(2) :]}" if found else name


def _moved(source: Source, layer: int) -> Source:
    """Return the source of another layer's constant."""
    match source:
        case {"of": str() as name}:
            return {"of": _renamed(name, layer)}
        case dict():
            return {key: _moved(each, layer) for key, each in source.items()}
        case list():
            return [_moved(each, layer) for each in source]
        case _:
            return source


def _names(source: Source) -> Iterator[str]:
    match source:
        case {"of": str() as name}:
            yield name
        case dict():
            for each in source.values():
                yield from _names(each)
        case list():
            for each in source:
                yield from _names(each)


# A graph as regions of layers


@dataclass
class _Input:
    """A placeholder.

    layer: whose run of inputs it is in; None for inputs of the whole model. key: what it is to its layer, if it belongs to it
    alone; two layers' inputs correspond if their keys are equal.
    """

    node: Node
    spec: InputSpec
    layer: int | None = None
    key: object = None


@dataclass
class _Region:
    """The calls of a layer, in order.

    behind: how many follow the last one that reads what the layer owns. carry: the value of the layer before, if known.
    """

    nodes: list[Node] = field(default_factory=list)
    behind: int = 0
    carry: Node | None = None


@dataclass
class _Sweep:
    """The calls of a method that goes through its layers once. rest: those after the layers."""

    regions: dict[int, _Region] = field(default_factory=dict)
    rest: Sequence[Node] = ()


class _Method:
    """A method of which layers are missing."""

    def __init__(
        self, layers: Repetition, program: ExportedProgram, module: GraphModule, signature: ExportGraphSignature
    ) -> None:
        self.layers, self.program, self.module, self.signature = layers, program, module, signature
        self.graph: Graph = module.graph
        placeholders = self.graph.find_nodes(op="placeholder")
        self.inputs = {node: _Input(node, spec) for node, spec in zip(placeholders, signature.input_specs, strict=True)}
        for each in self.inputs.values():
            self._find_owner(each)
        self.tail = self.graph.output_node()
        self.sweeps = self._sweeps()
        self.made: dict[int, dict[Node, Node]] = {}

    def complete(self) -> None:
        owner = {node: layer for sweep in self.sweeps for layer, region in sweep.regions.items() for node in region.nodes}
        for each in self.inputs.values():
            if each.layer is None and each.spec.kind != InputKind.USER_INPUT and self._is_anonymous(each):
                each.layer = owner.get(next(iter(each.node.users), self.tail))
        for first, second in self.layers.pairs.values():
            pairs = self._paired_inputs(first, second)
            for sweep in self.sweeps:
                self._compare(sweep, first, second, pairs)
        self._add_inputs()
        for sweep in self.sweeps:
            self._add_calls(sweep, self._outs(sweep))
        self._add_outputs()
        self.graph.lint()

    def _tensor(self, spec: InputSpec) -> Tensor | None:
        value = self.program.state_dict.get(spec.target, self.program.constants.get(spec.target)) if spec.target else None
        return value if isinstance(value, Tensor) else None

    def _find_owner(self, each: _Input) -> None:
        if each.spec.target is None:
            return
        if own := owned(each.spec.target):
            if own[0] < len(self.layers.kinds):
                each.layer, each.key = own
            return
        tensor = self._tensor(each.spec)
        source = source_of(tensor) if tensor is not None else None
        owners = {own[0] for name in _names(source) if (own := owned(name))}
        if len(owners) > 1:
            raise UnlikeLayersError("a constant is made of the weights of several layers")
        if owners:
            (each.layer,) = owners
            each.key = repr(_moved(source, -1))

    def _is_anonymous(self, each: _Input) -> bool:
        """Return whether an input is a constant of the graph alone, made by a pass."""
        return each.spec.target is not None and each.spec.target.removeprefix("state.") not in self.layers.tensors

    def _sweeps(self) -> list[_Sweep]:
        """Return the calls of each layer: from the first one that reads what the layer owns, to the next layer's first.

        A method goes through all layers once, or twice if it may empty the state before. After the last layer's last such call,
        as many calls are its own as the first layer of its kind has; then they are of the whole model.
        """
        sweeps: list[_Sweep] = []
        current = -1
        since: list[Node] = []  # the last call of which it is known whose it is
        for node in self.graph.nodes:
            if node.op == "placeholder" or node is self.tail:
                continue
            since.append(node)
            owners = {self.inputs[each].layer for each in node.all_input_nodes if each in self.inputs and self.inputs[each].key}
            if not owners:
                continue
            if len(owners) > 1:
                raise UnlikeLayersError("a call reads what belongs to several layers")
            (layer,) = owners
            assert layer is not None
            if layer != current:
                start = len(since) - 1
                while start and is_allocation(since[start - 1]):
                    start -= 1
                if not sweeps or layer < current:
                    sweeps.append(_Sweep())
                else:
                    sweeps[-1].regions[current].nodes.extend(since[:start])
                    sweeps[-1].regions[current].behind = start
                if len(sweeps) > 1 and layer < current:
                    sweeps[-2].rest = since[:start]
                since, current = since[start:], layer
                sweeps[-1].regions[layer] = _Region()
            sweeps[-1].regions[layer].nodes.extend(since)
            since = []
        if sweeps:
            sweeps[-1].rest = since
        for sweep in sweeps:
            last = max(sweep.regions)
            first, second = self.layers.pairs.get(self.layers.kinds[last], (last, last))
            if first < second == last and first in sweep.regions:
                count = sweep.regions[first].behind
                sweep.regions[last].nodes.extend(sweep.rest[:count])
                sweep.rest = sweep.rest[count:]
        return sweeps

    # Two layers of a kind

    def _paired_inputs(self, first: int, second: int) -> dict[Node, Node]:
        """Return what the second layer owns by what the first one does."""
        one, two = (
            [each for each in self.inputs.values() if each.layer == layer and each.key is not None] for layer in (first, second)
        )
        if [(each.key, each.spec.kind) for each in one] != [(each.key, each.spec.kind) for each in two]:
            raise UnlikeLayersError(f"layers {first} and {second} have other inputs")
        return {a.node: b.node for a, b in zip(one, two, strict=True)}

    def _compare(self, sweep: _Sweep, first: int, last: int, pairs: dict[Node, Node]) -> None:
        """Check that two layers are alike, and find the value that each takes of the layer before it.

        The first one may make values that all layers of its kind read.
        """
        ours, theirs = (sweep.regions.get(layer, _Region()) for layer in (first, last))
        inside: dict[Node, Node | None] = dict.fromkeys(ours.nodes)
        calls = iter(ours.nodes)
        carried: set[tuple[Node, Node]] = set()
        for b in theirs.nodes:
            for a in calls:
                if (found := self._alike(a, b, inside, pairs)) is not None:
                    inside[a] = b
                    carried |= found
                    break
            else:
                raise UnlikeLayersError(f"layers {first} and {last} differ in {b.target}")
        shared = {value for b in theirs.nodes for value in b.all_input_nodes if value in inside} - {b for _, b in carried}
        for a in reversed(ours.nodes):
            if a in shared:
                shared.update(a.all_input_nodes)
            elif inside[a] is None:
                raise UnlikeLayersError(f"layer {first} has a call of {a.target}, and layer {last} does not")
        if len(carried) > 1:
            raise UnlikeLayersError(f"layers {first} and {last} take several values of the layers before")
        if carried:
            ((ours.carry, theirs.carry),) = carried

    def _alike(
        self, a: Node, b: Node, inside: Mapping[Node, Node | None], pairs: dict[Node, Node]
    ) -> set[tuple[Node, Node]] | None:
        """Return the values of the layers before that two calls take if they are the same call, else None.

        inside: the calls of the first layer, with those of the last that were found to be the same. pairs: of inputs, to which
        constants of these calls are added.
        """
        carried: set[tuple[Node, Node]] = set()
        constants: list[tuple[Node, Node]] = []

        def alike(a: Any, b: Any) -> bool:
            if isinstance(a, Node) and isinstance(b, Node):
                if a in pairs or inside.get(a) is not None:
                    return pairs.get(a, inside.get(a)) is b
                if a is b:
                    return True
                if a.op == b.op == "placeholder":
                    constants.append((a, b))
                    return self._equal_constants(a, b)
                carried.add((a, b))
                return a not in inside
            if isinstance(a, list | tuple):
                return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
            return type(a) is type(b) and (a == b or repr(a) == repr(b))

        same = a.op == b.op and a.target == b.target and list(a.kwargs) == list(b.kwargs) and _same_form(a, b)
        if not same or not alike((*a.args, *a.kwargs.values()), (*b.args, *b.kwargs.values())):
            return None
        for one, two in constants:
            self.inputs[two].key = ("constant", len(pairs))
            pairs[one] = two
        return carried

    def _equal_constants(self, a: Node, b: Node) -> bool:
        """Return whether two constants are equal and of one layer each."""
        one, two = self.inputs[a], self.inputs[b]
        ours, theirs = self._tensor(one.spec), self._tensor(two.spec)
        if one.key or two.key or None in (one.layer, two.layer) or one.layer == two.layer:
            return False
        return ours is not None and theirs is not None and ours.dtype == theirs.dtype and torch.equal(ours, theirs)

    def _outs(self, sweep: _Sweep) -> dict[str, int]:
        """Return for each kind of layers which of its calls makes what the next layer takes."""
        order = sorted(sweep.regions)
        outs: dict[str, int] = {}
        if not any(each.carry for each in sweep.regions.values()):
            return outs
        for before, layer in pairwise(order):
            nodes, carry = sweep.regions[before].nodes, sweep.regions[layer].carry
            if carry is None:  # of a kind that is not compared
                read = {value for node in sweep.regions[layer].nodes for value in node.all_input_nodes}.intersection(nodes)
                carry = read.pop() if len(read) == 1 else None
            if carry is not None:
                from_end = nodes.index(carry) - len(nodes) if carry in nodes else 0  # a kind's first layer has more calls
                if not from_end or outs.setdefault(self.layers.kinds[before], from_end) != from_end:
                    raise UnlikeLayersError(f"layer {layer} takes a value that is not the result of layer {before}")
        return outs

    # What is added

    def _add_inputs(self) -> None:
        """Give every missing layer the inputs of the one that it copies, among those of its neighbours."""
        tensors = self.program.state_dict, self.program.constants

        def made(each: _Input, layer: int) -> _Input | None:
            if each.key is None:
                return None
            node, spec = each.node, each.spec
            assert spec.target is not None
            value = self._tensor(spec)
            if owned(spec.target):
                name = _renamed(spec.target, layer)
                value = self.layers.tensors[name.removeprefix("state.")]
            else:
                name = f"{spec.target}_of_layer_{layer}"
                if value is not None and (source := source_of(value)) is not None:
                    moved = _moved(source, layer)
                    value = with_source(compute(moved, self.layers.tensors).clone(), moved)
            holds = next(each for each in tensors if spec.target in each)
            holds[name] = value
            with self.graph.inserting_before(node):
                copy = self.graph.placeholder(f"{node.name}_of_layer_{layer}")
            copy.target = copy.name
            copy.meta = dict(node.meta)
            if "spec" in node.meta:
                copy.meta["spec"] = copy_spec(node.meta["spec"], {})
            self.made.setdefault(layer, {})[node] = copy
            return _Input(copy, InputSpec(spec.kind, TensorArgument(copy.name), name, spec.persistent), layer, each.key)

        ordered = self._completed(list(self.inputs.values()), lambda each: (each.layer, each.spec.kind), made)
        place = next(iter(self.graph.nodes))
        for each in ordered:
            place.prepend(each.node) if each.node is not place else None
            place = each.node.next
        self.inputs = {each.node: each for each in ordered}
        self.signature.input_specs[:] = self.program.graph_signature.input_specs[:] = [each.spec for each in ordered]

    def _add_outputs(self) -> None:
        """Name the state that the missing layers write: in place, or what a call gives before it is written in place."""
        nodes: Sequence[Any] = self.tail.args[0]  # type: ignore[assignment]
        outputs = list(zip(self.signature.output_specs, nodes, strict=True))

        def layer_of(each: tuple[OutputSpec, Node]) -> int | None:
            own = owned(each[0].target) if each[0].target else None
            return own[0] if own and own[0] < len(self.layers.kinds) else None

        def made(each: tuple[OutputSpec, Node], layer: int) -> tuple[OutputSpec, Node]:
            spec, node = each
            if (copy := self.made[layer].get(node)) is None:
                raise UnlikeLayersError(f"{spec.target} is written by no call of its layer")
            name = _renamed(str(spec.target), layer)
            return OutputSpec(spec.kind, TensorArgument(copy.name), name), copy

        ordered = self._completed(outputs, lambda each: (layer_of(each), each[0].kind), made)
        self.signature.output_specs[:] = self.program.graph_signature.output_specs[:] = [spec for spec, _ in ordered]
        self.tail.args = (tuple(node for _, node in ordered),)
        if "spec" in self.tail.meta:
            self.tail.meta["spec"] = tuple(node.meta.get("spec") for _, node in ordered)

    def _completed(
        self, items: list[T], place: Callable[[T], tuple[int | None, object]], made: Callable[[T, int], T | None]
    ) -> list[T]:
        """Return ``items`` with copies for the missing layers, where these belong.

        Items of one layer follow each other, and layers do in their order or against it, which may turn at a layer.
        """
        runs: list[tuple[tuple[int | None, object], list[T]]] = []
        for item in items:
            if not runs or runs[-1][0] != place(item):
                runs.append((place(item), []))
            runs[-1][1].append(item)
        stretches: list[list[tuple[tuple[int | None, object], list[T]]]] = []
        for run in runs:
            if not stretches or not _continues(stretches[-1], run[0]):
                stretches.append([])
            stretches[-1].append(run)
        ordered: list[T] = []
        turn: tuple[int | None, object] = (None, None)
        for stretch in stretches:
            of_layer = {layer: each for (layer, _), each in stretch if layer is not None}
            for layer in self.layers.left:
                copied = [
                    copy for item in of_layer.get(self.layers.template(layer), []) if (copy := made(item, layer)) is not None
                ]
                if copied:
                    of_layer[layer] = copied
            way = [place for place, _ in stretch if place[0] is not None]
            way = [turn, *way] if len(way) == 1 and turn[0] is not None and turn[1] == way[0][1] else way
            if len(of_layer) > len(way) == 1:
                raise UnlikeLayersError("layers are in no order")
            downwards = len(way) > 1 and way[0][0] > way[-1][0]  # type: ignore[operator]
            if None in {layer for (layer, _), _ in stretch}:
                ordered.extend(stretch[0][1])
            for layer in sorted(of_layer, reverse=downwards):
                ordered.extend(of_layer[layer])
            turn = stretch[-1][0]
        return ordered

    def _add_calls(self, sweep: _Sweep, outs: Mapping[str, int]) -> None:
        """Put the missing layers' calls behind those of the layers before them."""
        before: int | None = None
        for layer in range(len(self.layers.kinds)):
            if layer in self.layers.left:
                template = sweep.regions.get(self.layers.template(layer))
                if template is None:
                    continue
                assert before is not None
                sweep.regions[layer] = self._copied(template, layer, sweep.regions[before], self._result(sweep, before, outs))
            elif layer in sweep.regions:
                if before is not None and before in self.layers.left:
                    kept = max(each for each in sweep.regions if each < layer and each not in self.layers.left)
                    self._take_from(sweep, layer, kept, self._result(sweep, kept, outs), self._result(sweep, before, outs))
            else:
                continue
            before = layer
        for layer, following in pairwise(sorted(sweep.regions)):
            index = outs.get(self.layers.kinds[layer])
            if index is not None and sweep.regions[layer].nodes[index].users.keys().isdisjoint(sweep.regions[following].nodes):
                raise UnlikeLayersError(f"layer {following} does not take the result of layer {layer}")

    def _result(self, sweep: _Sweep, layer: int, outs: Mapping[str, int]) -> Node | None:
        """Return what the next layer takes of a layer."""
        if not outs:
            return None  # no layer takes anything
        if (index := outs.get(self.layers.kinds[layer])) is None:
            raise UnlikeLayersError(f"it is not known what comes out of layer {layer}")
        return sweep.regions[layer].nodes[index]

    def _copied(self, template: _Region, layer: int, before: _Region, result: Node | None) -> _Region:
        copies = dict(self.made.get(layer, {}))
        if template.carry is not None:
            if result is None:
                raise UnlikeLayersError(f"it is not known what goes into layer {layer}")
            copies[template.carry] = result
        specs = {id(old.meta["spec"]): new.meta["spec"] for old, new in copies.items() if "spec" in old.meta}
        place, region = before.nodes[-1], _Region()
        for node in template.nodes:
            with self.graph.inserting_after(place):
                place = self.graph.node_copy(node, lambda each: copies.get(each, each))
            place.meta = dict(node.meta)
            if "spec" in node.meta:
                place.meta["spec"] = copy_spec(node.meta["spec"], specs)
            copies[node] = place
            region.nodes.append(place)
        self.made.setdefault(layer, {}).update(copies)
        return region

    def _take_from(self, sweep: _Sweep, layer: int, kept: int, old: Node | None, new: Node | None) -> None:
        """Let a layer that was kept take the result of the layer that is before it now."""
        if old is None or new is None:
            return
        inside = {*sweep.regions[layer].nodes, *(sweep.rest if layer == max(sweep.regions) else ())}
        between = {node for index in range(kept, layer) if index in sweep.regions for node in sweep.regions[index].nodes}
        if not (between | inside).issuperset(old.users):
            raise UnlikeLayersError(f"more than the next layer takes what comes out of layer {kept}")
        for user in [each for each in old.users if each in inside]:
            user.replace_input_with(old, new)


def _same_form(a: Node, b: Node) -> bool:
    one, two = a.meta.get("val"), b.meta.get("val")
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and one.stride() == two.stride()
    return type(one) is type(two)


def _continues(stretch: Sequence[tuple[tuple[int | None, object], object]], place: tuple[int | None, object]) -> bool:
    """Return whether a run of a layer's items continues those of the layers before it, upwards or downwards."""
    (last, kind), layer = stretch[-1][0], place[0]
    if last is None or layer is None or kind != place[1] or layer == last:
        return False
    if len(stretch) == 1:
        return True
    previous = stretch[-2][0][0]
    assert previous is not None
    return (last > previous) == (layer > last)
