"""The memory of a container is what its control groups leave it, and not the host's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny import tiny_config

from hybridge.errors import UsageError
from hybridge.export.program.build import build_cache
from hybridge.export.program.memory import memory_bytes
from hybridge.runtime.artifact.options import ExportOptions

MACHINE = 1000 * 4096


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)


def machine(root: Path, groups: str | None, files: dict[str, object]) -> Path:
    """A root whose process is in these groups, with these files under sys/fs/cgroup."""
    contents = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    if groups is not None:
        contents["proc/self/cgroup"] = groups
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


CASES: dict[str, tuple[str | None, dict[str, object], int]] = {
    "no control groups": (None, {"memory.max": 5}, MACHINE),
    "version 2, its own namespace": ("0::/", {"memory.max": 3000}, 3000),
    "version 2, no limit": ("0::/", {"memory.max": "max"}, MACHINE),
    "version 2, more than the machine has": ("0::/", {"memory.max": 10 * MACHINE}, MACHINE),
    "version 2, its own limit": ("0::/app/job", {"app/memory.max": "max", "app/job/memory.max": 7000}, 7000),
    "version 2, a lower limit around it": ("0::/app/job", {"app/memory.max": 4000, "app/job/memory.max": 7000}, 4000),
    "version 2, a neighbour's limit": ("0::/app/job", {"app/other/memory.max": 4000, "job/memory.max": 4000}, MACHINE),
    "version 2, outside of its namespace": ("0::/../../job", {"memory.max": 6000}, 6000),
    "version 2 beside version 1": ("4:memory:/\n0::/job", {"unified/job/memory.max": 5000}, 5000),
    "version 1": ("9:name=systemd:/\n4:memory:/job\n", {"memory/job/memory.limit_in_bytes": 8000}, 8000),
    "version 1 with other controllers": ("4:cpu,memory:/a:b", {"memory/a:b/memory.limit_in_bytes": 8000}, 8000),
    "version 1, the host's path": ("4:memory:/docker/4a44", {"memory/memory.limit_in_bytes": 8000}, 8000),
    "version 1, no limit": ("4:memory:/", {"memory/memory.limit_in_bytes": 9223372036854771712}, MACHINE),
    "a limit on something else": ("3:cpuset:/job", {"memory/job/memory.limit_in_bytes": 8000}, MACHINE),
}


@pytest.mark.parametrize("case", CASES)
def test_the_lowest_limit_around_the_process_counts(tmp_path: Path, case: str) -> None:
    groups, files, expected = CASES[case]
    assert memory_bytes(machine(tmp_path, groups, files)) == expected


def test_an_export_goes_by_the_containers_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/", {"memory.max": 2000})
    monkeypatch.setattr("hybridge.export.program.build.memory_bytes", lambda: memory_bytes(root))
    with pytest.raises(UsageError, match="lower --max-seq-len or --snapshot-slots"):
        build_cache(tiny_config("llama"), ExportOptions(max_seq_len=96))
