"""ONNX artifacts that are damaged, lie about themselves or mean harm."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from forgery import Content, forge

from hybridge.errors import ArtifactError
from hybridge.runtime import Session
from hybridge.runtime.artifact.manifest import ONNX_COMMIT, ONNX_PROGRAM, ONNX_WEIGHTS


@pytest.fixture
def onnx_artifact_copy(onnx_artifact: Path, tmp_path: Path) -> Path:
    """A copy of ``onnx_artifact``, to be damaged."""
    return Path(shutil.copytree(onnx_artifact, tmp_path / "artifact"))


def refused(folder: Path, says: str) -> None:
    with pytest.raises(ArtifactError, match=says):
        Session.load(folder)


def edit(folder: Path, change: Callable[[onnx.ModelProto], object], name: str = ONNX_PROGRAM) -> None:
    """Change a graph and sign it."""
    model = onnx.load(folder / name, load_external_data=False)
    change(model)
    (folder / name).write_bytes(model.SerializeToString())
    forge(folder)


def other_vocabulary(content: Content) -> None:
    content.update(vocab_size=130)
    for method in content["methods"].values():
        for output in method["outputs"]:
            if output["dtype"] == "float32":
                output["shape"][-1] = 130


FORGERIES: dict[str, tuple[Callable[[Content], object], str]] = {
    "another vocabulary": (lambda c: c.update(vocab_size=130), "prefill gives"),
    "another vocabulary in all places": (lambda c: other_vocabulary(c), "gives something else .* logits"),
    "another state": (lambda c: c["onnx"]["states"][1]["shape"].reverse(), "past_key_values.0.recurrent_state"),
    "a state less": (lambda c: c["onnx"]["states"].pop(), "past_key_values.1.value is .* not there"),
    "another staged tensor": (lambda c: c["onnx"]["staged"][0].update(name="0.q"), "staged.0.conv is .* not there"),
    "fewer rows": (lambda c: c["onnx"]["states"][2]["shape"].__setitem__(2, 95), "1.key .95. rows, not 96"),
    "no rows": (lambda c: c["onnx"]["states"][2].update(shape=[1]), "1.key .. rows, not 96"),
    "a shorter block": (lambda c: c["onnx"]["staged"][1]["shape"].__setitem__(1, 4), "0.key .4. rows, not 5"),
    "another type": (lambda c: c["onnx"]["states"][0].update(dtype="cuda"), "onnx.states.0.dtype"),
    "no section": (lambda c: c.update(onnx=None), "belongs to the format 'onnx'"),
    "a section too many": (lambda c: c["options"].update(format="pte"), "belongs to the format 'onnx'"),
    "another format": (lambda c: c["options"].update(format="gguf"), "options.format"),
    "another version": (lambda c: c.update(format_version=1), "has format version 1"),
    "no commit": (lambda c: c["files"].pop(ONNX_COMMIT), "lists no commit.onnx"),
    "no weights": (lambda c: c["files"].pop(ONNX_WEIGHTS), "lists no model.onnx.data"),
    "a method less": (lambda c: c["methods"].pop("restore"), "lists no method restore"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_manifest_that_lies_is_refused(onnx_artifact_copy: Path, name: str) -> None:
    change, says = FORGERIES[name]
    forge(onnx_artifact_copy, change)
    refused(onnx_artifact_copy, says)


def set_location(model: onnx.ModelProto, location: str) -> None:
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location


@pytest.mark.parametrize("location", ["../outside", "{folder}/outside", "x/../../outside", "link"])
def test_weights_outside_the_folder_are_refused(onnx_artifact_copy: Path, tmp_path: Path, location: str) -> None:
    shutil.copy(onnx_artifact_copy / ONNX_WEIGHTS, tmp_path / "outside")
    (onnx_artifact_copy / "link").symlink_to(tmp_path / "outside")
    edit(onnx_artifact_copy, lambda model: set_location(model, location.format(folder=tmp_path)))
    refused(onnx_artifact_copy, "does not load .*(escapes|[Aa]bsolute)")


def test_weights_that_end_too_early_are_refused(onnx_artifact_copy: Path) -> None:
    (onnx_artifact_copy / ONNX_WEIGHTS).write_bytes((onnx_artifact_copy / ONNX_WEIGHTS).read_bytes()[:999])
    forge(onnx_artifact_copy)
    refused(onnx_artifact_copy, "does not load .*out of bounds")


def rename_operator(model: onnx.ModelProto) -> None:
    fused = next(node for node in model.graph.node if node.op_type == "LinearAttention")
    fused.op_type = "LinearAttention9"


GRAPHS: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "an unknown operator": (rename_operator, "LinearAttention9.* is not a registered"),
    "a later opset": (lambda model: setattr(model.opset_import[0], "version", 99), "does not load .*[Oo]pset 99"),
    "an output less": (lambda model: model.graph.output.pop(), "staged.0.beta is missing"),
    "a fixed number of tokens": (
        lambda model: setattr(model.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 3), "input_ids is .*3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_is_something_else_is_refused(onnx_artifact_copy: Path, name: str) -> None:
    change, says = GRAPHS[name]
    edit(onnx_artifact_copy, change)
    refused(onnx_artifact_copy, says)


def test_a_commit_graph_that_is_something_else_is_refused(onnx_artifact_copy: Path) -> None:
    edit(onnx_artifact_copy, lambda model: model.graph.input.pop(), ONNX_COMMIT)
    refused(onnx_artifact_copy, "commit.onnx")


def test_onnxruntime_is_an_extra(onnx_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "onnxruntime", missing)
    refused(onnx_artifact, r"pip install 'hybridge\[onnx\]'")
