"""The figures that the main job should reach, measured on an artifact."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hybridge.runtime.manifest import Manifest
from hybridge.runtime.session import Session
from hybridge.runtime.validation_report import ValidationReport

PROMPT = list(range(1, 101))


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A measured value beside its target."""

    what: str
    target: str
    measured: str
    reached: bool


def figures(manifest: Manifest, report: ValidationReport, session: Session) -> list[Figure]:
    """The figures of the main job, measured here and now."""
    generation = report.generation
    size, weights = manifest.files["model.pte"].size, manifest.weight_bytes
    state = sum(layer.state_bytes for layer in manifest.layers)
    rollback = sum(layer.rollback_bytes for layer in manifest.layers)
    unchanged, verify_ms, reject_ms, decode_ms = rejection(session)
    forward = {"aten::embedding.out"} & set(manifest.methods["commit"].operators)
    return [
        Figure(what=f"worst logit error, {report.operations.total()} random operations", target="≤ 1e-5 of the largest logit",
               measured=f"{report.worst_relative:.1e}", reached=report.worst_relative <= 1e-5),
        Figure(what=f"greedy with speculation = eager without cache, {generation.tokens} tokens", target="all prompts",
               measured=f"{generation.speculative_matches} of {generation.prompts}", reached=generation.passed),
        Figure(what="model.pte, all methods", target=f"≤ {(weights * 1.1 + 1e6) / 1e6:.2f} MB (weights + 10 % + 1 MB)",
               measured=f"{size / 1e6:.2f} MB", reached=size <= weights * 1.1 + 1e6),
        Figure(what="a rejection (verify, commit 0)", target="state unchanged bit for bit, no forward",
               measured=f"{'un' if unchanged else ''}changed; {reject_ms:.2f} ms (verify {verify_ms:.2f}, decode {decode_ms:.2f})",
               reached=unchanged and not forward),
        Figure(what="state added for rollback", target="≤ 15 % of the state",
               measured=f"{rollback / state:.1%}", reached=rollback <= 0.15 * state),
    ]  # fmt: skip


def rejection(session: Session) -> tuple[bool, float, float, float]:
    """Whether verify and commit(0) leave the committed state as it was, and the ms of verify, commit(0) and decode."""
    session.reset()
    session.prefill(PROMPT)
    before = committed_state(session)
    session.verify([1] * session.verify_len)
    session.commit(0)
    after = committed_state(session)
    unchanged = all(torch.equal(before[name], after[name]) for name in before)
    block = [1] * session.verify_len
    verify = milliseconds(lambda: session.verify(block))
    both = milliseconds(lambda: (session.verify(block), session.commit(0)))
    return unchanged, verify, both - verify, milliseconds(lambda: session.decode(1))


def committed_state(session: Session) -> dict[str, torch.Tensor]:
    """What the accepted tokens left behind, as bytes: attention's rows up to the length, and all the bounded state."""
    state = {name: tensor for name, tensor in session.state().items() if "staged" not in name}
    rows = {name: tensor[:, : session.length] for name, tensor in state.items() if name.endswith((".keys", ".values"))}
    return {name: tensor.contiguous().view(torch.uint8) for name, tensor in (state | rows).items()}


def milliseconds(call: Callable[[], object], repeats: int = 50) -> float:
    """The median time of a call."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e3 * sorted(times)[repeats // 2]
