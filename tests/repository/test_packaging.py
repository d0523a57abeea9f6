"""What is built and installed is complete, and the part for the device drags in nothing of the rest."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from base_install import WITHOUT_EXECUTORCH, WITHOUT_EXPORT
from checkout import CHECKOUT

import hybridge
from hybridge.runtime.pinned import COPIED, library_folder
from hybridge.runtime.platforms import library_file

PACKAGES = ("cache", "export", "runtime")
REGISTRATION = "optimum/commands/register/register_hybridge.py"
IMPORT_ALL = """
import importlib, json, pkgutil
import hybridge

names = [module.name for module in pkgutil.walk_packages(hybridge.__path__, "hybridge.")]
places = {name: importlib.import_module(name).__file__ for name in names}

from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.export.cli.embedded import EMBEDDED

print(json.dumps({"places": places, "embedded": str(EMBEDDED), "model": load_checkpoint(EMBEDDED).config.model_type}))
"""
RUN = """
import json, sys
from hybridge.runtime import Session

if sys.argv[1:]:
    list(Session.load(sys.argv[1]).generate([1, 2, 3], max_new_tokens=4))
print(json.dumps(list(sys.modules)))
"""


def output_of(*command: object, **environment: str) -> str:
    """What a command says, run where no folder of the checkout can be imported by accident."""
    words, folder = [str(word) for word in command], Path(sys.prefix)
    done = subprocess.run(words, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(code: str, *arguments: object, **environment: str) -> Any:
    """The JSON that is printed last; libraries may say something before."""
    return json.loads(output_of(sys.executable, "-c", code, *arguments, **environment).splitlines()[-1])


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    output_of(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, CHECKOUT)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    return next(distributions.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    output_of(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel)
    return folder


def checkout_files() -> set[str]:
    """All that belongs to the package, as it is named once installed."""
    files = [path for package in PACKAGES for path in (CHECKOUT / package).rglob("*") if path.is_file()]
    names = {f"hybridge/{path.relative_to(CHECKOUT)}" for path in files if "__pycache__" not in path.parts}
    top = CHECKOUT / "src" / "hybridge"
    shared = {f"hybridge/{path.relative_to(top)}" for path in (*top.glob("*.py"), *top.glob("models/*.py"))}
    return names | shared | {"hybridge/py.typed", REGISTRATION}


def test_the_wheel_holds_the_package_compiled_libraries_and_nothing_else(wheel: Path) -> None:
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    libraries = map(library_file, ("hybridge", "hybridge_kernels", *COPIED))
    compiled = {f"hybridge/runtime/kernels/prebuilt/{name}" for name in libraries}
    assert names == checkout_files() | compiled


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux's names")
def test_the_wheel_is_for_the_c_library_that_it_needs(wheel: Path) -> None:
    found = re.fullmatch(rf"hybridge-[\d.]+-py3-none-manylinux_2_(\d+)_{platform.machine()}\.whl", wheel.name)
    assert found, wheel.name
    assert int(found[1]) <= int(platform.libc_ver()[1].split(".")[1])


def test_a_wheel_without_compiled_kernels_is_for_every_platform(tmp_path: Path) -> None:
    output_of(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, CHECKOUT, HYBRIDGE_PREBUILT="0")
    assert [path.name for path in tmp_path.iterdir()] == [f"hybridge-{hybridge.__version__}-py3-none-any.whl"]


@pytest.mark.slow
def test_the_installed_kernels_run_without_a_compiler(installed: Path, kernels_artifact: Path, tmp_path: Path) -> None:
    """On a machine that has none, and has compiled nothing before."""
    without = {"PATH": "", "CXX": "", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(installed)}
    facts = json.loads(output_of(sys.executable, installed / "bin" / "hybridge", "kernels", "info", "--json", **without))
    assert facts["built"]
    assert facts["compiler"] is None
    assert Path(facts["library"]).is_relative_to(installed)
    assert python(RUN, kernels_artifact, **without)
    assert not list(tmp_path.iterdir())


GENERATE = """
import json, sys
from hybridge.runtime import Session

generated = list(Session.load(sys.argv[1]).generate([5, 6, 7], max_new_tokens=3))
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "libexecutorch" in line or "libhybridge" in line}
print(json.dumps([generated, sorted(loaded)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_installed_core_runs_on_the_wheels_own_libraries(installed: Path, kernels_artifact: Path, tmp_path: Path) -> None:
    """Without a compiler, ExecuTorch's wheel and PyTorch."""
    without = {"PATH": "", "CXX": "", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(installed)}
    tokens, loaded = python(WITHOUT_EXECUTORCH + WITHOUT_EXPORT + GENERATE, kernels_artifact, **without)
    assert len(tokens) == 3
    assert {Path(path).parent for path in loaded} == {installed / "hybridge" / "runtime" / "kernels" / "prebuilt"}
    assert len(loaded) == 6
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_beside_an_installed_executorch_the_wheels_copies_are_not_loaded(
    installed: Path, kernels_artifact: Path, tmp_path: Path
) -> None:
    without = {"PATH": "", "CXX": "", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(installed)}
    _, loaded = python(GENERATE, kernels_artifact, **without)
    places = {Path(path).parent for path in loaded if "libexecutorch" in path}
    assert places == {library_folder().resolve()}


def test_the_wheel_holds_the_embedded_model_and_the_license(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    model = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    embedded = (*model, *(f"draft/{name}" for name in model), "mtp.safetensors", "chat_template.jinja")
    assert {f"hybridge/export/embedded/{name}" for name in embedded} <= names
    for name in ("LICENSE", "THIRD_PARTY_LICENSES"):
        assert any(each.endswith(f".dist-info/licenses/{name}") for each in names)


def test_the_source_distribution_holds_no_tests_and_every_file_once(distributions: Path) -> None:
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames()]
    assert len([name for name in names if name.endswith("embedded/model.safetensors")]) == 1
    assert not [name for name in names if name.startswith("tests")]


@pytest.fixture(scope="module")
def imported_modules(installed: Path) -> dict[str, Any]:
    return dict(python(IMPORT_ALL, PYTHONPATH=str(installed)))


@pytest.mark.thorough
def test_every_module_imports_from_the_installed_wheel(installed: Path, imported_modules: dict[str, Any]) -> None:
    expected = {name for name in checkout_files() if name.endswith(".py")} - {"hybridge/__init__.py", REGISTRATION}
    assert {f"{Path(place).relative_to(installed)}" for place in imported_modules["places"].values()} == expected


@pytest.mark.slow
@pytest.mark.thorough
def test_the_installed_demo_finds_its_model(installed: Path, imported_modules: dict[str, Any]) -> None:
    assert Path(imported_modules["embedded"]) == installed / "hybridge" / "export" / "embedded"
    assert imported_modules["model"] == "qwen3_5_text"


@pytest.mark.slow
def test_the_installed_script_answers(installed: Path) -> None:
    usage = output_of(sys.executable, installed / "bin" / "hybridge", "--help", PYTHONPATH=str(installed))
    assert "Usage: hybridge" in usage


@pytest.mark.slow
def test_optimum_finds_the_installed_command(installed: Path) -> None:
    """Its register namespace spans several folders of the path; the checkout's own, where it is installed, is one more."""
    usage = output_of(
        sys.executable, "-m", "optimum.commands.optimum_cli", "export", "hybridge", "--help", PYTHONPATH=str(installed)
    )
    assert "Usage: optimum-cli export hybridge [OPTIONS] {output}" in usage


def test_importing_hybridge_alone_is_quick() -> None:
    loaded = python("import json, sys, hybridge; print(json.dumps(list(sys.modules)))")
    assert [name for name in loaded if name in ("torch", "transformers", "executorch", "hybridge.export")] == []


@pytest.mark.slow
@pytest.mark.parametrize("running", [False, True], ids=["imported", "running"])
def test_the_runtime_loads_nothing_of_the_export(running: bool, request: pytest.FixtureRequest) -> None:
    artifact = [request.getfixturevalue("artifact")] if running else []
    loaded = python(RUN, *artifact)
    assert "hybridge.runtime.binding.session" in loaded
    assert [name for name in loaded if name.startswith(("transformers", "torchao", "hybridge.export", "typer"))] == []
