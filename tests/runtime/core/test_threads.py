"""The number of threads: the fast cores where nobody chooses, as a system describes them."""

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
from hybridge.runtime.core.library import SOURCES
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
from hybridge.runtime.core import library
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
from hybridge.runtime.core import library
hybridge.set_threads(3)
assert not library.load.cache_info().currsize
session = hybridge.runtime.Session.load({str(artifact)!r})
session.decode(1)
print(json.dumps([library.threads()]))
"""
    assert in_a_process("import hybridge.runtime\n" + code) == [3]


PROGRAM = """
#include <cstdio>
#include <hybridge/threads.h>
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) std::printf("%zu ", hybridge::fast_cores(argv[i]));
  hybridge::set_threads(3);
  std::puts("set");
}
"""
LAYOUTS: dict[str, tuple[str, int, int]] = {
    "a fast core beside slow ones": ("cpu_capacity", 1024, 300),
    "only frequencies": ("cpufreq/cpuinfo_max_freq", 3_700_000, 1_800_000),
    "half as fast is fast": ("cpu_capacity", 1024, 512),
    "all alike": ("cpu_capacity", 1024, 1024),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="macOS counts fast cores itself")
def test_slow_cores_are_left_out_and_those_that_the_process_may_not_run_on(tmp_path: Path) -> None:
    (tmp_path / "count.cpp").write_text(PROGRAM)
    words = [compiling.compiler() or "", "-std=c++20", "-Wall", "-Wextra", "-Werror", *pinned.MACROS, f"-I{SOURCES}"]
    made, links = tmp_path / "count", compiling.plugin_flags(*pinned.OPERATORS_AND_BACKENDS)
    subprocess.run([*words, *compiling.include_flags(), tmp_path / "count.cpp", "-o", made, *links], check=True)
    allowed = sorted(os.sched_getaffinity(0))
    folders = [tmp_path / "nothing is said"]
    for layout, (name, fastest, others) in LAYOUTS.items():
        folders.append(tmp_path / layout)
        for core in allowed:
            path = tmp_path / layout / f"cpu{core}" / name
            path.parent.mkdir(parents=True)
            path.write_text(f"{fastest if core == allowed[0] else others}\n")

    def counted(cores: set[int]) -> list[str]:
        return subprocess.run(
            [made, *folders],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"LD_LIBRARY_PATH": str(pinned.library_folder())},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        ).stdout.split()

    every = str(len(allowed))
    assert counted(set(allowed)) == [every, "1", "1", every, every, "set"]
    assert counted({allowed[-1]}) == ["1", "1", "1", "1", "1", "set"]
