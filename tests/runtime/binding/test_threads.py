"""The number of threads: the fast cores where nobody chooses, as a system describes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hybridge
from hybridge.errors import UsageError
from hybridge.runtime.binding.library import SOURCES
from hybridge.runtime.kernels import compiling


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_a_number_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"{count} threads cannot compute; give 1 to 1024, or none"):
        hybridge.set_threads(count)


def in_a_process(code: str) -> list[int]:
    """Run code that prints numbers: this process's programs keep the threads that they found."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return list(json.loads(done.stdout))


def test_the_pool_has_as_many_threads_as_are_asked_for() -> None:
    code = """
import json
from hybridge.runtime.binding import library
found = [library.threads()]
for number in (3, None):
    library.set_threads(number)
    found.append(library.threads())
print(json.dumps(found))
"""
    one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" if hasattr(os, "sched_setaffinity") else ""
    fast, three, again = in_a_process(one + code)
    assert (three, again) == (3, fast)
    assert not one or fast == 1


@pytest.mark.slow
def test_a_number_chosen_before_the_core_is_loaded_counts(artifact: Path) -> None:
    """And it stays where a model is opened, which chooses where nobody has."""
    code = f"""
import json, hybridge
from hybridge.runtime.binding import library
hybridge.set_threads(3)
assert not library.load.cache_info().currsize
session = hybridge.runtime.Session.load({str(artifact)!r})
session.decode(1)
print(json.dumps([library.threads()]))
"""
    assert in_a_process("import hybridge.runtime\n" + code) == [3]


PROGRAM = """
#include <cstdio>
#include "engine/processors.h"
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) std::printf("%zu ", hybridge::fast_cores(argv[i]));
}
"""
CPUS = "sys/devices/system/cpu/cpu"
LAYOUTS: dict[str, tuple[str, int, int]] = {
    "a fast core beside slow ones": ("cpu_capacity", 1024, 300),
    "only frequencies": ("cpufreq/cpuinfo_max_freq", 3_700_000, 1_800_000),
    "half as fast is fast": ("cpu_capacity", 1024, 512),
    "all alike": ("cpu_capacity", 1024, 1024),
}
GROUPS: dict[str, dict[str, str]] = {
    "no limit": {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"},
    "one processor": {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "100000 100000\n"},
    "a half": {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"},
    "rounded up": {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "100001 100000\n"},
    "of the group around it": {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/cpu.max": "100000 100000\n",
        "sys/fs/cgroup/a/b/cpu.max": "1600000 100000\n",
    },
    "in a container": {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "90000 100000\n"},
    "of another group": {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/b/cpu.max": "50000 100000\n"},
    "version 1": {
        "proc/self/cgroup": "5:memory:/c\n4:cpu,cpuacct:/docker/b\n0::/\n",
        "sys/fs/cgroup/cpu,cpuacct/docker/b/cpu.cfs_quota_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/docker/b/cpu.cfs_period_us": "100000\n",
    },
    "version 1 in a container": {
        "proc/self/cgroup": "1:cpu:/docker/b\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "20000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    },
    "version 1 without a limit": {
        "proc/self/cgroup": "1:cpu:/b\n",
        "sys/fs/cgroup/cpu/b/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/b/cpu.cfs_period_us": "100000\n",
    },
    "damaged": {"proc/self/cgroup": "0:\n:\n0::a\n0::/a\n", "sys/fs/cgroup/a/cpu.max": "0 0\n"},
}
UNLIMITED = ("no limit", "rounded up", "of another group", "version 1 without a limit", "damaged")
"""On two processors."""


def described(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program that counts the processors of machines, by the files in which Linux describes them."""
    folder = tmp_path_factory.mktemp("count")
    (folder / "count.cpp").write_text(PROGRAM)
    words = [
        compiling.compiler() or "",
        "-std=c++20",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Wconversion",
        "-Werror",
        f"-I{SOURCES}",
    ]
    subprocess.run([*words, folder / "count.cpp", SOURCES / "engine/processors.cpp", "-o", folder / "count"], check=True)
    return folder / "count"


def counted(count: Path, cores: set[int], *machines: Path) -> list[int]:
    """Return the numbers of processors for a process that may run on ``cores``."""
    done = subprocess.run(
        [count, *machines], capture_output=True, text=True, check=True, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )
    return list(map(int, done.stdout.split()))


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="macOS counts fast cores itself")


@pytest.mark.slow
@needs_linux
def test_slow_cores_are_left_out_and_those_that_the_process_may_not_run_on(count: Path, tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    machines = [tmp_path / "nothing is said"]
    for layout, (name, fastest, others) in LAYOUTS.items():
        files = {f"{CPUS}{core}/{name}": f"{fastest if core == allowed[0] else others}\n" for core in allowed}
        machines.append(described(tmp_path / layout, files))
    every = len(allowed)
    assert counted(count, set(allowed), *machines) == [every, 1, 1, every, every]
    assert counted(count, {allowed[-1]}, *machines) == [1, 1, 1, 1, 1]


@pytest.mark.slow
@needs_linux
@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_hyperthreads_of_a_core_are_one(count: Path, tmp_path: Path, name: str) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    pairs = {f"{CPUS}{core}/topology/{name}": f"{place // 2},{place // 2 + 64}\n" for place, core in enumerate(allowed)}
    assert counted(count, set(allowed), described(tmp_path, pairs)) == [(len(allowed) + 1) // 2]


@pytest.mark.slow
@needs_linux
@pytest.mark.skipif(os.cpu_count() == 1, reason="a quota of one processor changes nothing here")
def test_the_quota_of_a_container_is_the_most(count: Path, tmp_path: Path) -> None:
    two = set(sorted(os.sched_getaffinity(0))[:2])
    machines = [described(tmp_path / name, files) for name, files in GROUPS.items()]
    assert counted(count, two, *machines) == [2 if name in UNLIMITED else 1 for name in GROUPS]


def test_another_number_is_refused_while_a_session_holds_the_threads(artifact: Path) -> None:
    """XNNPACK's parts point to the pool, which another number replaced; they then ran on memory that was freed."""
    code = f"""
import json, hybridge
from hybridge.errors import UsageError
from hybridge.runtime.binding import library
hybridge.set_threads(2)
session = hybridge.runtime.Session.load({str(artifact)!r})
found = [library.threads()]
hybridge.set_threads(2)
try:
    hybridge.set_threads(3)
except UsageError as error:
    assert "XNNPACK" in str(error), error
    found.append(library.threads())
session.decode(1)
session.close()
hybridge.set_threads(3)
found.append(library.threads())
print(json.dumps(found))
"""
    assert in_a_process("import hybridge.runtime\n" + code) == [2, 2, 3]
