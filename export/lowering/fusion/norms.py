"""Norms that models write out as powers, means and roots become ``hybridge::rms_norm`` and ``hybridge::layer_norm``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

import hybridge.export.operators.elementwise  # noqa: F401  registers the operators
from hybridge.export.lowering.fusion.match import (
    AnyNode,
    all_nodes,
    aten,
    calls,
    either_way,
    insert,
    is_float,
    only_user,
    over_last,
    replace,
    shape,
)

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
        _centered(program, node)
    for node in all_nodes(program, aten.layer_norm.default):
        x, dims, weight, bias, eps = (*node.args, None, None, 1e-5)[:5]
        if len(dims) == 1 and is_float(x):
            replace(program, node, ops.layer_norm.default, (x, weight, bias, eps))


def _normalized(node: AnyNode) -> tuple[AnyNode, float] | None:
    """x and eps where ``node`` is x divided by the root of its mean square."""
    for x, factor in either_way(node, aten.mul.Tensor):
        root = calls(factor, aten.rsqrt.default) or (calls(factor, aten.pow.Tensor_Scalar) and factor.args[1] == -0.5)
        if root and is_float(x) and (found := _mean_square(factor.args[0])) is not None and found[0] is x:
            return found
    return None


def _mean_square(node: Any) -> tuple[AnyNode, float] | None:
    """x and eps where ``node`` is mean(x^2) + eps over the last dimension."""
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
    """A number that the norm is multiplied with goes into its weight, which is then folded."""
    user, weight = only_user(norm), norm.args[1]
    if calls(user, aten.mul.Tensor) and isinstance(weight, Node):
        assert user is not None
        if isinstance(user.args[1], float):
            scaled = insert(program, norm, aten.mul.Tensor, (weight, user.args[1]))
            replace(program, user, ops.rms_norm.default, (norm.args[0], scaled, norm.args[2]))


def _centered(program: ExportedProgram, norm: AnyNode) -> None:
    """The norm of ``x - mean(x)`` is a layer norm of x without a bias."""
    if not norm.users:
        return
    centered, weight, eps = norm.args
    one_weight = weight is None or shape(weight)[-1] == weight.meta["val"].numel()
    if one_weight and calls(centered, aten.sub.Tensor) and over_last(centered.args[1], aten.mean.dim) is centered.args[0]:
        replace(program, norm, ops.layer_norm.default, (centered.args[0], weight, None, eps))
