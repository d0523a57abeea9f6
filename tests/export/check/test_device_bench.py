"""``hybridge bench --device``: its figures belong together, and name what they were measured on."""

from __future__ import annotations

import json
import platform
import re
from dataclasses import replace
from pathlib import Path

import pytest
from compiler_flags import instruction_sets
from typer.testing import CliRunner

from hybridge.__main__ import tree
from hybridge.errors import UsageError
from hybridge.export.profile import device
from hybridge.runtime import platforms
from hybridge.runtime.artifact.folder import open_artifact

REPORT = device.DeviceReport(
    processor="Cortex-X4", cores=8, threads=4, instruction_set="i8mm", instruction_sets=["plain", "dotprod", "i8mm"],
    model_type="qwen3_5_text", quantize="8da4w", kernels="hybridge", megabytes=450.0, context=128, decode_milliseconds=20.0,
    verify_len=8, verify_milliseconds=30.0, commit_milliseconds=0.9, prefill_tokens_per_second=250.0, decode_bytes=400_000_000,
    bandwidth=40e9,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "SECONDS", 0.05)


def test_derived_figures() -> None:
    assert REPORT.decode_tokens_per_second == 50.0
    assert REPORT.share_of_bandwidth == pytest.approx(0.5)


def test_the_row_of_the_table() -> None:
    assert REPORT.row() == (
        "| Cortex-X4, 8 cores | i8mm, 4 threads | qwen3_5_text 8da4w, 450 MB | 50.0 | 1.50 | 3.0% | 250 | 50% of 40.0 GB/s |"
    )
    assert "| --kernels llm, 4 threads |" in replace(REPORT, instruction_set="", kernels="llm").row()


@pytest.mark.slow
def test_what_is_measured_on_this_machine(kernels_artifact: Path) -> None:
    answer = CliRunner().invoke(tree(), ["bench", str(kernels_artifact), "--device", "--context", "20", "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["instruction_set"] in found["instruction_sets"]
    assert set(found["instruction_sets"]) <= {each.name for each in instruction_sets()}
    assert found["processor"] != ""
    assert min(found[name] for name in ("decode_milliseconds", "verify_milliseconds", "commit_milliseconds", "bandwidth")) > 0
    weights = open_artifact(kernels_artifact).manifest.weight_bytes
    assert 0.5 * weights < found["decode_bytes"] < 2 * weights


@pytest.mark.slow
def test_a_table_and_a_row(kernels_artifact: Path) -> None:
    shown = (
        CliRunner()
        .invoke(tree(), ["bench", str(kernels_artifact), "--device", "--context", "20"], env={"COLUMNS": "200"})
        .stdout
    )
    assert re.search(r"verify of 5 .*commit of 2 .*prefill .*A decode after 20 tokens moves", shown, flags=re.DOTALL)
    assert shown.strip().splitlines()[-1].count("|") == 9


@pytest.mark.slow
def test_a_context_without_room_is_refused(kernels_artifact: Path) -> None:
    with pytest.raises(UsageError, match="a context of 95 tokens leaves no room in 96; give a smaller --context"):
        device.measure_device(open_artifact(kernels_artifact), 95)


def test_an_onnx_artifact_is_refused(onnx_artifact: Path) -> None:
    with pytest.raises(UsageError, match="is for onnxruntime, which --device is not for"):
        device.measure_device(open_artifact(onnx_artifact), 1)


@pytest.mark.parametrize(
    ("cpuinfo", "board", "wanted"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC\n", "", "AMD EPYC"),
        ("processor\t: 0\nHardware\t: Qualcomm Technologies, Inc SM8550\n", "", "Qualcomm Technologies, Inc SM8550"),
        ("processor\t: 0\nFeatures\t: fp asimd\n", "Raspberry Pi 5 Model B Rev 1.0\0", "Raspberry Pi 5 Model B Rev 1.0"),
        ("", "", platform.machine()),
    ],
)
def test_the_processor_has_a_name(cpuinfo: str, board: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/proc/cpuinfo": cpuinfo, "/proc/device-tree/model": board}
    monkeypatch.setattr(platforms, "_read", texts.__getitem__)
    monkeypatch.setattr(platforms, "_apple_name", str)
    assert platforms.processor_name() == wanted


def test_two_kinds_of_figures_at_once_are_refused(kernels_artifact: Path) -> None:
    answer = CliRunner().invoke(tree(), ["bench", str(kernels_artifact), "--device", "--profile"])
    assert isinstance(answer.exception, UsageError)
