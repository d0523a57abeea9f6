"""The number of threads: the fast cores where nobody chooses, as a system describes them, in Python and in C++."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hybridge
from hybridge.cache.errors import UsageError
from hybridge.runtime import pinned
from hybridge.runtime.backends import threads
from hybridge.runtime.kernels import compiling

NATIVE = Path(__file__).parents[1] / "runtime" / "native"
LAYOUTS: dict[str, tuple[str, list[int], int]] = {
    "a phone": ("cpu_capacity", [250, 250, 250, 250, 740, 740, 740, 1024], 4),
    "a phone with small fast cores": ("cpu_capacity", [160, 512, 512, 1024], 3),
    "only frequencies": ("cpufreq/cpuinfo_max_freq", [1_800_000, 1_800_000, 3_700_000], 1),
    "all alike": ("cpu_capacity", [1024, 1024, 1024], 3),
    "nothing is said": ("cpu_capacity", [], 3),
}


def described(folder: Path, layout: str) -> list[int]:
    """Write what /sys says of the cores; returns their numbers."""
    name, speeds, _ = LAYOUTS[layout]
    for core, speed in enumerate(speeds):
        path = folder / f"cpu{core}" / name
        path.parent.mkdir(parents=True)
        path.write_text(f"{speed}\n")
    return list(range(len(speeds) or 3))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_slow_cores_are_left_out(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = described(tmp_path, layout)
    monkeypatch.setattr(threads, "CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(cores), raising=False)
    assert threads.fast_cores() == LAYOUTS[layout][2]


def test_what_the_process_may_not_run_on_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described(tmp_path, "a phone")
    monkeypatch.setattr(threads, "CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 4}, raising=False)
    assert threads.fast_cores() == 1


def test_no_threads_are_refused() -> None:
    with pytest.raises(UsageError, match="0 threads cannot compute; give 1 or more, or none"):
        hybridge.set_threads(0)


def test_the_pool_has_as_many_threads_as_are_asked_for() -> None:
    """In a process of its own: other tests' programs keep the threads that they found."""
    code = """
import json, os
from hybridge.runtime.backends import threads
count = lambda: threads.executorch_runtime()._threadpool_get_thread_count()
found = [count()]
for number in (3, None):
    threads.set_threads(number)
    found.append(count())
print(json.dumps([*found, threads.fast_cores()]))
"""
    one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" if hasattr(os, "sched_setaffinity") else ""
    done = subprocess.run([sys.executable, "-c", one + code], capture_output=True, text=True, check=True, timeout=120)
    first, three, again, fast = json.loads(done.stdout)
    assert (first, three, again) == (fast, 3, fast)
    assert not one or fast == 1


PROGRAM = """
#include <cstdio>
#include <hybridge/threads.h>
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) std::printf("%zu ", hybridge::fast_cores(argv[i]));
  hybridge::set_threads(3);
  std::puts("set");
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="macOS counts fast cores itself")
def test_cpp_counts_the_same(tmp_path: Path) -> None:
    (tmp_path / "count.cpp").write_text(PROGRAM)
    words = [compiling.compiler() or "", "-std=c++20", "-Wall", "-Wextra", "-Werror", *pinned.MACROS, f"-I{NATIVE}"]
    links = compiling.link_flags()
    made = tmp_path / "count"
    subprocess.run([*words, *compiling.include_flags(), tmp_path / "count.cpp", "-o", made, *links], check=True)
    allowed = sorted(os.sched_getaffinity(0))
    speeds = [[1024 if core == allowed[0] else other for core in allowed] for other in (300, 512, 1024)]
    for layout, each in enumerate(speeds):
        for core, speed in zip(allowed, each, strict=True):
            path = tmp_path / str(layout) / f"cpu{core}" / "cpu_capacity"
            path.parent.mkdir(parents=True)
            path.write_text(f"{speed}\n")
    folders = [tmp_path / str(layout) for layout in range(len(speeds))]
    said = subprocess.run([made, *folders], capture_output=True, text=True, check=True).stdout.split()
    assert said == ["1", str(len(allowed)), str(len(allowed)), "set"]
