"""One case of ``scripts/trust conformance``: FAMILY VARIANT KERNELS OPERATIONS; prints its result as one line of JSON."""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from tiny import count_nodes, save_lively_checkpoint, tiny_config

from hybridge.export.check.oracle import load_oracle
from hybridge.export.check.validate import OPERATIONS_PER_PROGRAM, validate
from hybridge.export.progress import ExportProgress
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.export.write.methods import State, build_cache, build_methods
from hybridge.export.write.pte import PteWriter
from hybridge.runtime.artifacts.manifest import Manifest
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.core.session import Session

SIZES = {"max_seq_len": 67, "prefill_chunk": 17, "verify_len": 5, "snapshot_slots": 2}


def main(family: str, variant: int, kernels: str, operations: int) -> dict[str, Any]:
    options = ExportOptions(**SIZES, kernels=kernels)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as name:
        checkpoint, artifact = Path(name) / "checkpoint", Path(name) / "artifact"
        artifact.mkdir()
        save_lively_checkpoint(checkpoint, tiny_config(family, variant), seed=variant)
        started = time.monotonic()
        manifest = export_once(checkpoint, artifact, options)
        seconds = time.monotonic() - started
        session = Session.load(artifact)
        programs = -(-operations // OPERATIONS_PER_PROGRAM)
        oracle = load_oracle(checkpoint, session.manifest)
        report = validate(session, oracle, programs=programs, prompts=2, new_tokens=20, seed=0, notify=lambda *_: None)
        nodes = nodes_of_decode(checkpoint, options)
    return {
        "passed": report.passed,
        "error": "" if report.passed else failure(report.to_dict()),
        "operations": sum(report.operations.values()),
        "worst": report.worst_relative,
        "top1": report.top1_agreement,
        "layers": ", ".join(dict.fromkeys(layer.kind for layer in manifest.layers)),
        "nodes": nodes,
        "nodes_per_layer": nodes / len(manifest.layers),
        "export_seconds": seconds,
        "pte_bytes": manifest.files["model.pte"].size,
        "state_bytes": sum(layer.state_bytes for layer in manifest.layers),
    }


def export_once(checkpoint: Path, artifact: Path, options: ExportOptions) -> Manifest:
    loaded = load_checkpoint(checkpoint)
    return PteWriter(loaded.config, options).write(loaded, artifact, ExportProgress())


def nodes_of_decode(checkpoint: Path, options: ExportOptions) -> int:
    loaded = load_checkpoint(checkpoint)
    method, example = build_methods(State(loaded.model, build_cache(loaded.config, options)))["decode"]
    return count_nodes(method, example)


def failure(report: dict[str, Any]) -> str:
    divergence = report["first_divergence"]
    if divergence is None:
        return f"greedy generation differs: {report['generation']}"
    return (
        f"error {divergence['error']:.1e} (largest logit {report['largest_logit']:.1e}) after {divergence['operations'][-3:]}"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    family, variant, kernels, operations = sys.argv[1:]
    print(json.dumps(main(family, int(variant), kernels, int(operations))))
