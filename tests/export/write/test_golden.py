"""Golden steps: an artifact is checked without its checkpoint, and what was changed is found."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import WITHOUT_TORCH, Run
from forgery import forge, with_file
from safetensors.numpy import load_file

from hybridge.errors import ArtifactError
from hybridge.runtime import Model, open_artifact
from hybridge.runtime.artifact.folder import file_entry
from hybridge.runtime.artifact.manifest import GOLDEN, PROGRAM
from hybridge.runtime.kernels.library import available_instruction_sets


def steps_of(artifact: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((artifact / GOLDEN).read_text())
    return found


def changed(artifact: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    content = steps_of(artifact)
    change(content)
    return with_file(artifact, folder, GOLDEN, json.dumps(content))


def test_an_export_replays_to_the_same_bits(kernels_artifact: Path) -> None:
    assert (kernels_artifact / GOLDEN).stat().st_size < 200_000
    calls = [step["call"] for step in steps_of(kernels_artifact)["steps"]]
    assert {"prefill", "decode", "verify", "commit", "snapshot", "restore"} == {*calls}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "validate", kernels_artifact], capture_output=True, text=True, check=True
    )
    assert f"{len(calls)}, all right" in done.stdout
    assert "bit-identical to those where it was exported" in done.stdout
    with Model.open(open_artifact(kernels_artifact)) as model:
        found = model.validate()
    assert found.same_bits
    assert found.instruction_set == found.exported_on == available_instruction_sets()[-1]
    assert 0 < found.worst < found.tolerance / 4


def test_a_flipped_weight_is_found(checkpoint: Path, kernels_artifact: Path, tmp_path: Path, cli: Run) -> None:
    """By the error; and one that changes little by the bits, which the same kernels would repeat."""
    weight = load_file(checkpoint / "model.safetensors")["model.norm.weight"]
    stored = (weight + 1).tobytes() if (weight + 1).tobytes() in (kernels_artifact / PROGRAM).read_bytes() else weight.tobytes()
    for bit, told in ((0x80, "is off by"), (0x01, "other bits")):
        folder = with_file(kernels_artifact, tmp_path / told.replace(" ", ""), GOLDEN, (kernels_artifact / GOLDEN).read_text())
        data = bytearray((folder / PROGRAM).read_bytes())
        place = data.find(stored)
        assert place > 0
        data[place + (3 if bit == 0x80 else 0)] ^= bit
        (folder / PROGRAM).write_bytes(data)
        forge(folder)
        done = cli("validate", folder)
        assert done.code == 1
        assert told in done.err
        assert "golden steps" in done.err


DAMAGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "another version": lambda content: content.update(version=2),
    "no steps": lambda content: content.update(steps=[]),
    "too many steps": lambda content: content.update(steps=content["steps"] * 9),
    "an id outside": lambda content: content["ids"].append(10**9),
    "too many ids": lambda content: content.update(ids=[0] * 65),
    "a negative token": lambda content: content["steps"][0].update(tokens=[-1]),
    "a token outside": lambda content: content["steps"][0].update(tokens=[10**9]),
    "no tokens": lambda content: content["steps"][0].update(tokens=[]),
    "a row less": lambda content: content["steps"][0].update(rows=[]),
    "a short row": lambda content: content["steps"][0]["rows"][0].pop(),
    "a logit that is none": lambda content: content["steps"][0]["rows"][0].__setitem__(0, "1"),
    "no largest logit": lambda content: content.update(largest=0),
    "no tolerance": lambda content: content.update(tolerance=2),
    "another call": lambda content: content["steps"][0].update(call="free"),
    "a commit of nothing": lambda content: content["steps"].insert(0, {"call": "commit", "count": 3, "bits": ""}),
    "a list": lambda content: content.update(steps=3),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused(kernels_artifact: Path, tmp_path: Path, damage: Callable[[dict[str, Any]], object]) -> None:
    folder = changed(kernels_artifact, tmp_path / "artifact", damage)
    with Model.open(open_artifact(folder)) as model, pytest.raises(Exception, match="golden steps") as raised:
        model.validate()
    assert type(raised.value).__module__ == "hybridge.errors"


def test_a_file_that_is_too_large_or_no_json_is_refused(kernels_artifact: Path, tmp_path: Path) -> None:
    for name, text, told in (("large", " " * 300_000, "larger than"), ("none", "[", "damaged")):
        folder = with_file(kernels_artifact, tmp_path / name, GOLDEN, text)
        with Model.open(open_artifact(folder)) as model, pytest.raises(ArtifactError, match=told):
            model.validate()


def test_another_instruction_set_says_so(kernels_artifact: Path, tmp_path: Path, cli: Run) -> None:
    def elsewhere(content: dict[str, Any]) -> None:
        content.update(instruction_set="i8mm")
        for step in content["steps"]:
            step["bits"] = "0" * 16

    done = cli("validate", changed(kernels_artifact, tmp_path / "artifact", elsewhere))
    assert done.code == 0
    assert "here, i8mm there" in done.out


def test_figures_are_written_and_options_of_a_checkpoint_refused(kernels_artifact: Path, tmp_path: Path, cli: Run) -> None:
    done = cli("validate", kernels_artifact, "--report", tmp_path / "report.json", "--json")
    figures = json.loads((tmp_path / "report.json").read_text())
    assert json.loads(done.out) == figures
    assert figures["same_bits"]
    refused = cli("validate", kernels_artifact, "--html", tmp_path / "page.html")
    assert refused.code == 2
    assert "--against" in refused.err
    assert not (tmp_path / "page.html").exists()


def test_without_steps_it_says_what_was_checked(kernels_artifact: Path, tmp_path: Path, cli: Run) -> None:
    folder = with_file(kernels_artifact, tmp_path / "artifact", GOLDEN, "")
    (folder / GOLDEN).unlink()
    forge(folder, lambda content: content["files"].pop(GOLDEN))
    done = cli("validate", folder)
    assert done.code == 0
    assert "checked by hash and reader" in done.out
    assert json.loads(cli("validate", folder, "--json").out) == {"steps": 0}
    with Model.open(open_artifact(folder)) as model, pytest.raises(ArtifactError, match="no golden steps"):
        model.validate()
    assert file_entry(folder / PROGRAM) == open_artifact(folder).manifest.files[PROGRAM]
