"""Replace norms, activations, rotary embeddings and multipliers that models write out by operators of ours."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

import hybridge.export.operators.elementwise  # noqa: F401  registers the operators
from hybridge.export.lower.fusion.match import (
    AnyNode,
    all_nodes,
    aten,
    calls,
    either_way,
    insert,
    is_float,
    only_user,
    over_last,
    part_of_last,
    replace,
    shape,
)
from hybridge.export.operators.linear import PARTS

ops = torch.ops.hybridge


def fuse_norms(program: ExportedProgram) -> None:
    """Fuse ``x * rsqrt(mean(x^2) + eps) * weight``, and the same of ``x - mean(x)``."""
    for node in all_nodes(program):
        if (found := _normalized(node)) is not None:
            x, eps = found
            _weighted(program, replace(program, node, ops.rms_norm.default, (x, None, eps)))
    for node in all_nodes(program, aten.rms_norm.default):
        x, dims, weight, eps = (*node.args, None, None)[:4]
        if len(dims) == 1 and eps is not None and is_float(x):
            replace(program, node, ops.rms_norm.default, (x, weight, eps))
    program.graph.eliminate_dead_code()
    for node in all_nodes(program, ops.rms_norm.default):
        _scaled(program, node)
    for node in all_nodes(program, ops.rms_norm.default):
        _centered(program, node)
    for node in all_nodes(program, aten.layer_norm.default):
        x, dims, weight, bias, eps = (*node.args, None, None, 1e-5)[:5]
        if len(dims) == 1 and is_float(x):
            replace(program, node, ops.layer_norm.default, (x, weight, bias, eps))


def _normalized(node: AnyNode) -> tuple[AnyNode, float] | None:
    """Return x and eps if ``node`` is x divided by the root of its mean square."""
    for x, factor in either_way(node, aten.mul.Tensor):
        root = calls(factor, aten.rsqrt.default) or (calls(factor, aten.pow.Tensor_Scalar) and factor.args[1] == -0.5)
        if root and is_float(x) and (found := _mean_square(factor.args[0])) is not None and found[0] is x:
            return found
    return None


def _mean_square(node: Any) -> tuple[AnyNode, float] | None:
    """Return x and eps if ``node`` is mean(x^2) + eps over the last dimension."""
    if not calls(node, aten.add.Tensor) or not isinstance(node.args[1], float) or node.kwargs:
        return None
    square = over_last(node.args[0], aten.mean.dim)
    if calls(square, aten.pow.Tensor_Scalar) and square.args[1] == 2:
        return square.args[0], node.args[1]
    if calls(square, aten.square.default):
        return square.args[0], node.args[1]
    if calls(square, aten.mul.Tensor) and square.args[0] is square.args[1]:
        return square.args[0], node.args[1]
    return None


def _weighted(program: ExportedProgram, norm: AnyNode) -> None:
    """Take in a weight that the norm is multiplied with, if that is all that becomes of it; groups are often joined first."""
    user = only_user(norm)
    joined = user if calls(user, aten.view.default, aten.reshape.default, aten.flatten.using_ints) else None
    product = user if joined is None else only_user(joined)
    for each, weight in either_way(product, aten.mul.Tensor):
        if each is (norm if joined is None else joined) and is_float(weight) and _repeats(shape(weight), shape(each)):
            _take_in(program, norm, weight, joined, product)
            return


def _take_in(program: ExportedProgram, norm: AnyNode, weight: AnyNode, joined: AnyNode, product: AnyNode) -> None:
    x, _, eps = norm.args
    if joined is None:
        replace(program, product, ops.rms_norm.default, (x, weight, eps))
    elif weight.meta["val"].numel() == math.prod(shape(norm)[-2:]):
        split = insert(program, product, aten.view.default, (weight, shape(norm)[-2:]))
        weighted = insert(program, product, ops.rms_norm.default, (x, split, eps), like=norm)
        replace(program, product, aten.view.default, (weighted, shape(product)))


def _repeats(weight: tuple[int, ...], x: tuple[int, ...]) -> bool:
    """Return whether a weight of that shape is the same for all of x's leading dimensions, and varies along the last ones."""
    while len(weight) > 1 and weight[0] == 1:
        weight = weight[1:]
    return 0 < len(weight) <= len(x) and weight == x[-len(weight) :]


def _scaled(program: ExportedProgram, norm: AnyNode) -> None:
    """Multiply a number after the norm into its weight, which is then folded."""
    user, weight = only_user(norm), norm.args[1]
    if calls(user, aten.mul.Tensor) and isinstance(weight, Node):
        assert user is not None
        if isinstance(user.args[1], float):
            scaled = insert(program, norm, aten.mul.Tensor, (weight, user.args[1]))
            replace(program, user, ops.rms_norm.default, (norm.args[0], scaled, norm.args[2]))


def _centered(program: ExportedProgram, norm: AnyNode) -> None:
    """Replace the norm of ``x - mean(x)`` by a layer norm of x without a bias."""
    if not norm.users:
        return
    centered, weight, eps = norm.args
    one_weight = weight is None or shape(weight)[-1] == weight.meta["val"].numel()
    if one_weight and calls(centered, aten.sub.Tensor) and over_last(centered.args[1], aten.mean.dim) is centered.args[0]:
        replace(program, norm, ops.layer_norm.default, (centered.args[0], weight, None, eps))


# Activations, and what they are multiplied with: ``silu(gate) * up`` becomes one ``hybridge::gated``.


NAMES = {
    aten.silu.default: "silu",
    aten.silu_.default: "silu",
    aten.sigmoid.default: "sigmoid",
    aten.gelu.default: "gelu",
    aten.relu.default: "relu",
    aten.tanh.default: "tanh",
    aten.softplus.default: "softplus",
}


def fuse_gates(program: ExportedProgram) -> None:
    """Fuse products with an activation that nothing else uses, then whatever activations are left."""
    for node in all_nodes(program):
        for value, gate in either_way(node, aten.mul.Tensor):
            name = activation_of(gate)
            if name and len(gate.users) == 1 and is_float(value) and shape(value) == shape(gate):
                replace(program, node, ops.gated.default, (value, gate.args[0], name))
                break
    program.graph.eliminate_dead_code()
    for node in all_nodes(program):
        if name := activation_of(node):
            replace(program, node, ops.activation.default, (node.args[0], name))


def activation_of(node: Any) -> str | None:
    """Return the name of the activation that ``node`` is, in float32 and as transformers' configs have it."""
    if not isinstance(node, Node) or node.target not in NAMES or not is_float(node, node.args[0]):
        return None
    name, options = NAMES[node.target], [*node.args[1:], *node.kwargs.values()]
    if calls(node, aten.gelu.default):
        return "gelu_tanh" if options == ["tanh"] else "gelu"
    # A softplus may have a slope and a threshold of its own.
    return None if options and name == "softplus" else name


# Rotary embedding: ``x * cos + rotate(x) * sin``, with what it leaves alone, becomes ``hybridge::rotary``.


HALVES, NEIGHBOURS = False, True


def fuse_rotary(program: ExportedProgram) -> None:
    """Fuse every such sum over four dimensions, of which heads are the second (the usual) or the third."""
    for node in all_nodes(program):
        if calls(node, aten.add.Tensor) and (found := _rotated(node)) is not None:
            x, cos, sin, pairs = found
            heads = _heads_axis(shape(x), shape(cos), shape(sin))
            if heads is not None:
                _replace(program, node, x, cos, sin, pairs, heads)
    program.graph.eliminate_dead_code()


def _rotated(node: AnyNode) -> tuple[AnyNode, AnyNode, AnyNode, bool] | None:
    """Return x, cos, sin and how the pairs lie, if ``node`` is ``x * cos + rotate(x) * sin``."""
    for first, second in either_way(node, aten.add.Tensor):
        for x, cos in either_way(first, aten.mul.Tensor):
            for turned, sin in either_way(second, aten.mul.Tensor):
                if (pairs := _pairs(turned, x)) is not None and is_float(x, cos, sin):
                    return x, cos, sin, pairs
    return None


def _pairs(turned: AnyNode, x: AnyNode) -> bool | None:
    """Return how the pairs (a, b) of x lie that ``turned`` has as (-b, a); None if it has not."""
    if calls(turned, aten.cat.default):
        parts, size = turned.args[0], shape(x)[-1]
        halves = (
            len(parts) == 2
            and _is_negative(parts[0], (x, size // 2, size, 1))
            and part_of_last(parts[1]) == (x, 0, size // 2, 1)
        )
        return HALVES if halves and (*turned.args, 0)[1] in (-1, 3) else None
    if calls(turned, aten.flatten.using_ints, aten.view.default, aten.reshape.default):
        stacked, size = turned.args[0], shape(x)[-1]
        if calls(stacked, aten.stack.default) and stacked.args[1] in (-1, 4) and shape(turned) == shape(x):
            parts = stacked.args[0]
            between = _is_negative(parts[0], (x, 1, size, 2)) and part_of_last(parts[1]) == (x, 0, size, 2)
            return NEIGHBOURS if between else None
    return None


def _is_negative(node: Any, part: tuple[AnyNode, int, int, int]) -> bool:
    return calls(node, aten.neg.default) and part_of_last(node.args[0]) == part


def _heads_axis(x: tuple[int, ...], cos: tuple[int, ...], sin: tuple[int, ...]) -> int | None:
    """Return the axis of x, of four, along which all angles are equal; None if the angles have another form."""
    if len(x) != 4 or len(cos) != 4 or cos != sin or cos[0] not in (1, x[0]) or cos[3] != x[3]:
        return None
    return next((axis for axis in (1, 2) if cos[axis] == 1 and cos[3 - axis] == x[3 - axis]), None)


def _replace(program: ExportedProgram, root: AnyNode, x: AnyNode, cos: AnyNode, sin: AnyNode, pairs: bool, heads: int) -> None:
    whole = _with_rest(root, x)
    if whole is not None:
        root, x = whole
    if heads == 1:
        x = insert(program, root, aten.transpose.int, (x, 1, 2))
    made = insert(program, root, torch.ops.hybridge.rotary.default, (x, cos, sin, pairs))
    if heads == 1:
        made = insert(program, root, aten.transpose.int, (made, 1, 2))
    root.replace_all_uses_with(made)
    program.graph.erase_node(root)


def _with_rest(rotated: AnyNode, x: AnyNode) -> tuple[AnyNode, AnyNode] | None:
    """Return the node that joins ``rotated`` with the rest of the head, and the whole head, if x is the first part of one."""
    joined, part = only_user(rotated), part_of_last(x)
    if part is None or not calls(joined, aten.cat.default):
        return None
    assert joined is not None
    head, start, stop, step = part
    parts = joined.args[0]
    rest = (head, stop, shape(head)[-1], 1)
    fits = len(parts) == 2 and parts[0] is rotated and part_of_last(parts[1]) == rest and (*joined.args, 0)[1] in (-1, 3)
    return (joined, head) if fits and (start, step) == (0, 1) else None


# Linear layers and the multipliers around them: configs that have one for everything mostly set it to 1.


BIAS = {aten.linear.default: 2, torch.ops.hybridge.block_linear.default: 6}
"""Linear layers, and which argument is the bias."""


def drop_idle_scalings(program: ExportedProgram) -> None:
    """Take out products with and quotients by the number 1."""
    for node in all_nodes(program):
        idle = calls(node, aten.mul.Tensor, aten.div.Tensor) and node.args[1] == 1.0 and is_float(node.args[0], node)
        if idle and node.args[0].op != "placeholder":  # a method must not give out what it is given
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)


def scale_before_widening(program: ExportedProgram) -> None:
    """Scale what goes into a layer rather than what comes out, where that is more: the logits of a whole vocabulary."""
    for node in all_nodes(program):
        scales = calls(node, aten.mul.Tensor, aten.div.Tensor) and isinstance(node.args[1], float)
        linear: AnyNode = node.args[0] if scales else None
        if calls(linear, *BIAS) and only_user(linear) is node and _widens(linear):
            x = insert(program, linear, node.target, (linear.args[0], node.args[1]))
            linear.args = (x, *linear.args[1:])
            node.replace_all_uses_with(linear)
            program.graph.erase_node(node)


def _widens(linear: AnyNode) -> bool:
    """Return whether it has more outputs than inputs, and no bias that would have to be scaled as well."""
    has_bias = linear.args[BIAS[linear.target]] if len(linear.args) > BIAS[linear.target] else linear.kwargs.get("bias")
    return has_bias is None and is_float(linear.args[0]) and shape(linear)[-1] > shape(linear.args[0])[-1]


def own_linears(program: ExportedProgram) -> None:
    """Replace every linear layer of an exported graph by ``hybridge::linear``."""
    for node in program.graph.find_nodes(op="call_function", target=aten.linear.default):
        node.target = torch.ops.hybridge.linear.default
        node.args = (*node.args, None) if len(node.args) == 2 else node.args
    program.graph_module.recompile()


def join_linears(program: ExportedProgram) -> None:
    """Make one call of packed linear layers over the same input: it is rounded once, and threads share the work of all."""
    together: dict[tuple[AnyNode, bool], list[AnyNode]] = {}
    for node in all_nodes(program, ops.block_linear.default):
        x, *weight, _, integer = node.args
        if is_float(x) and all(part is None or part.op == "placeholder" for part in weight):
            together.setdefault((x, integer), []).append(node)
    for (x, integer), nodes in together.items():
        if len(nodes) > 1:
            weights = [part for node in nodes for part in node.args[1 : 1 + PARTS]]
            rows = [node.args[1 + PARTS] for node in nodes]
            joined = insert(program, nodes[0], ops.block_linears.default, (x, weights, rows, integer))
            for index, node in enumerate(nodes):
                replace(program, node, operator.getitem, (joined, index))


# Transposes that meet their own inverse, with row-wise work between or without, move no data.


ROW_WISE = (ops.rms_norm.default, ops.layer_norm.default)
"""Operators whose first argument is rows, each of which is worked on by itself."""

BY_NUMBER = (ops.activation.default, aten.mul.Tensor)


def cancel_transposes(program: ExportedProgram) -> None:
    """Move transposes after what works on rows or numbers, then remove those that undo each other."""
    for node in all_nodes(program):
        if (axes := _moved(node)) is not None:
            source = node.args[0].args[0]
            before = insert(program, node, node.target, (source, *node.args[1:]))
            replace(program, node, aten.transpose.int, (before, *axes))
    for node in all_nodes(program):
        if calls(node, aten.transpose.int) and calls(node.args[0], aten.transpose.int) and _axes(node) == _axes(node.args[0]):
            node.replace_all_uses_with(node.args[0].args[0])
    program.graph.eliminate_dead_code()


def _axes(node: AnyNode) -> tuple[int, int]:
    dims = len(shape(node))
    first, second = sorted(axis % dims for axis in node.args[1:3])
    return first, second


def _moved(node: AnyNode) -> tuple[int, int] | None:
    """Return the axes of a transpose in front of ``node`` that can move after it, or None."""
    if not calls(node, *ROW_WISE, *BY_NUMBER) or not calls(node.args[0], aten.transpose.int):
        return None
    axes, last = _axes(node.args[0]), len(shape(node)) - 1
    if calls(node, *ROW_WISE):
        weight = node.args[1]
        by_row = last not in axes and (weight is None or weight.meta["val"].numel() == shape(node)[-1])
        return axes if by_row else None
    return axes if not isinstance(node.args[1], Node) else None
