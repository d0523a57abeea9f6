"""The C and C++ library for apps, built as an app builds it: from the installed packages, with warnings as errors."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from checkout import CHECKOUT
from cross_compiled import emulator
from documents import Document
from forgery import forge
from native_programs import native_program
from store import demo_folder
from typer.testing import CliRunner

import hybridge
from hybridge.__main__ import tree
from hybridge.runtime import Sampling, Session
from hybridge.runtime.binding.library import SOURCES
from hybridge.runtime.pinned import executorch
from hybridge.runtime.platforms import library_file
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings, open_text_model

EXAMPLE = CHECKOUT / "examples/native"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
ONE_SET = "-DHYBRIDGE_INSTRUCTION_SETS=plain"  # four take two minutes of processor time
PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]
HEAT = Sampling(temperature=0.9, top_p=0.95, top_k=30, repetition_penalty=1.2, seed=11)
"""That of the C program."""
QUESTION = "how to read a file"


def run(*words: object, typed: Sequence[str] = (), folder: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, words)), check=False, capture_output=True, encoding="latin-1", timeout=900, env=os.environ | environment,
        input="".join(f"{line}\n" for line in typed), cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, f"{words[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("name", [pytest.param("c_api", marks=pytest.mark.thorough), "c_api_sanitized"])
@pytest.mark.slow
def test_a_c_program_does_all_that_a_session_can(kernels_artifact: Path, tmp_path: Path, name: str) -> None:
    program = native_program(name)
    version, eos, tokens, drawn = run(program, kernels_artifact / "model.pte", tmp_path / "state", *PROMPT).splitlines()
    assert version == f"version {hybridge.__version__}"
    assert [int(token) for token in eos.split()[1:]] == list(Session.load(kernels_artifact).manifest.eos_ids)
    python = Session.load(kernels_artifact)
    assert [int(token) for token in tokens.split()] == list(python.generate(PROMPT, max_new_tokens=20))
    python.reset()
    assert [int(token) for token in drawn.split()] == list(python.generate(PROMPT, max_new_tokens=20, sampling=HEAT))


@pytest.mark.slow
def test_a_c_program_drafts_with_the_models_own_drafter(tmp_path: Path) -> None:
    """The program compares its text with plain decoding's."""
    demo = demo_folder() / "hybridge-demo"
    program = native_program("c_api_sanitized")
    *_, tokens, _ = run(program, demo / "model.pte", tmp_path / "state", *PROMPT).splitlines()
    assert [int(token) for token in tokens.split()] == list(Session.load(demo).generate(PROMPT, max_new_tokens=20))


@pytest.mark.slow
def test_the_example_says_what_a_chat_in_python_says(tmp_path: Path) -> None:
    """Through undo, retry, and a file; special tokens in a message are text."""
    program, demo = native_program("talk_sanitized"), demo_folder() / "hybridge-demo"
    lines = [
        QUESTION,
        "/retry",
        f"/save {tmp_path / 'state'}",
        "/undo",
        "<|endoftext|>",
        f"/load {tmp_path / 'state'}",
        "/retry",
    ]
    shown = run(program, demo, typed=lines)
    first, spelled = conversation(demo, QUESTION), conversation(demo, "<|endoftext|>")
    assert shown == "\n".join([first, first, "", "", spelled, "", first, ""])
    assert (tmp_path / "state").stat().st_size > 1000


def test_the_example_says_what_is_wrong(kernels_artifact: Path, tmp_path: Path) -> None:
    """kernels_artifact has no chat template."""
    program, newer = native_program("talk_sanitized"), shutil.copytree(kernels_artifact, tmp_path / "newer")
    forge(newer, lambda content: content.update(format_version=999))
    for words, code, why in (
        ([], 2, "usage"),
        ([newer], 1, "has format version 999"),
        ([tmp_path], 1, "manifest.json is missing"),
        ([kernels_artifact], 1, "there is no chat template"),
    ):
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (code, "")
        assert why in done.stderr


@pytest.mark.slow
def test_a_cpp_program_generates_and_chats_by_the_header_over_the_c_functions() -> None:
    """The program compares its texts by a drafter of its own with plain decoding's, and moves, resumes and fails."""
    demo = demo_folder() / "hybridge-demo"
    tokens, said, *_ = run(native_program("cpp_api"), demo, QUESTION, *PROMPT).split("\n", 1)
    session = Session.load(demo)
    assert [int(token) for token in tokens.split()] == list(session.generate(PROMPT, max_new_tokens=20, drafter=None))
    assert said == conversation(demo, QUESTION) + "\n"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `hybridge bundle` writes."""
    folder = tmp_path_factory.mktemp("bundle") / "app"
    shown = CliRunner().invoke(tree(), ["bundle", str(folder), "--json"])
    assert json.loads(shown.stdout)["bytes"] < 30e6
    return folder


@pytest.mark.slow
def test_the_tutorials_program_goes_on_with_the_sessions_text(bundle: Path, kernels_artifact: Path, tmp_path: Path) -> None:
    """Built by the oldest CMake that is here, and run where there is nothing but the bundle, a C library and the artifact."""
    tutorial = Document.read(CHECKOUT / "docs/tutorial.md")
    (source,), (cmake,) = tutorial.blocks("cpp"), tutorial.blocks("cmake")
    (tmp_path / "main.cpp").write_text(source, encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(cmake, encoding="utf-8")
    strict = f"-DCMAKE_CXX_FLAGS={' '.join(STRICT)} -Wconversion"
    tool = "/usr/bin/cmake" if Path("/usr/bin/cmake").exists() else Path(sys.executable).with_name("cmake")
    run(tool, "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={bundle}", strict)
    run(tool, "--build", tmp_path / "build")
    root = shipped(tmp_path / "root", bundle, tmp_path / "build/talk", kernels_artifact / "model.pte")
    words = [*inside(root), "/bin/talk", "/model.pte", QUESTION]
    done = subprocess.run(words, capture_output=True, encoding="latin-1", check=True)
    session = Session.load(kernels_artifact)
    tokens = session.generate([ord(each) for each in QUESTION], max_new_tokens=55)
    assert done.stdout.rpartition("\n[")[0] == "".join(map(chr, tokens))
    assert done.stderr == ""  # a healthy start says nothing


def shipped(root: Path, bundle: Path, program: Path, *data: Path) -> Path:
    """A folder that is the root of a system with a program, its bundle's libraries, and those of C and C++."""
    for name in ("bin", "proc"):
        (root / name).mkdir(parents=True)
    shutil.copytree(bundle / "lib", root / "lib")
    for path in (program, *data):
        shutil.copy(path, root / "bin" if path == program else root)
    needed = re.findall(r"(/\S+) \(0x", run("ldd", program, *(bundle / "lib").glob("*.so")))
    for path in {Path(each) for each in needed if not Path(each).is_relative_to(bundle)}:
        (place := root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    return root


def inside(root: Path) -> list[str]:
    """The words before a command that is run with ``root`` as its file system."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--map-root-user", "true"], check=False).returncode:
        pytest.skip("needs unshare and user namespaces")
    return ["unshare", "--map-root-user", "--fork", "--pid", "--mount-proc=/proc", f"--root={root}"]


@pytest.mark.slow
def test_pkg_config_links_a_program_to_the_bundle(bundle: Path, tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("needs pkg-config")
    (tmp_path / "version.c").write_text(
        "#include <hybridge/hybridge.h>\n#include <stdio.h>\n"
        'int main(void) { return printf("%s %d", hybridge_version(), hybridge_has_operator("hybridge::linear.out")) < 0; }\n'
    )
    flags = run("pkg-config", "--cflags", "--libs", "hybridge", PKG_CONFIG_PATH=str(bundle / "lib/pkgconfig")).split()
    assert run("pkg-config", "--modversion", "hybridge", PKG_CONFIG_PATH=str(SOURCES / "cmake")).strip() == hybridge.__version__
    run("cc", tmp_path / "version.c", "-o", tmp_path / "version", *flags)
    assert run(tmp_path / "version") == f"{hybridge.__version__} 1"


@pytest.mark.slow
@pytest.mark.parametrize(("language", "name"), [("c", "main.c"), ("cpp", "main.cpp"), ("python", "main.py")])
def test_the_chat_of_the_page_answers(bundle: Path, tmp_path: Path, language: str, name: str) -> None:
    """Of docs/apps.md, whose other languages are in the tests of their packages."""
    (source,) = Document.read(CHECKOUT / "docs/apps.md").blocks(language)
    (tmp_path / name).write_text(source, encoding="utf-8")
    (tmp_path / "OUT").symlink_to(demo_folder() / "hybridge-demo")
    program: list[object] = [sys.executable, "-X", "utf8", name]
    if language != "python":
        flags = [*STRICT, f"-I{bundle / 'include'}", f"-L{bundle / 'lib'}", f"-Wl,-rpath,{bundle / 'lib'},--no-as-needed"]
        compiler = ["cc", "-std=c11"] if language == "c" else ["c++", "-std=c++20"]
        run(*compiler, tmp_path / name, "-o", tmp_path / "app", *flags, "-lhybridge", "-lhybridge_kernels")
        program = [tmp_path / "app"]
    said = conversation(demo_folder() / "hybridge-demo", QUESTION) + "\n"
    assert run(*program, typed=[QUESTION], folder=tmp_path) == said


@pytest.mark.slow
def test_libraries_that_are_loaded_answer_or_say_what_is_missing(bundle: Path, tmp_path: Path) -> None:
    """Two copies in a process, a processor without AVX2, a process without kernels for its instruction set, or any."""
    program = tmp_path / "loads"
    run("c++", "-std=c++20", *STRICT, f"-I{bundle / 'include'}", CHECKOUT / "tests/apps/loads.cpp", "-o", program, "-ldl")
    words = [program, demo_folder() / "hybridge-demo"]
    libraries = [bundle / "lib" / library_file(name) for name in ("hybridge_kernels", "hybridge")]
    said = run(*words, *libraries)
    assert said.strip()
    shutil.copytree(bundle / "lib", tmp_path / "lib")
    copies = [tmp_path / "lib" / library.name for library in libraries]
    assert run(*words, *libraries, *copies) == said + said, "two copies in one process"
    if (qemu := emulator("x86_64")) and platform.machine() == "x86_64":
        assert run(qemu, "-cpu", "Nehalem", *words, *libraries) == said
    assert run(*words, *libraries, HYBRIDGE_ISA="z80").endswith(
        "does not load: HYBRIDGE_ISA is z80, for which there are no kernels here: unset it\n"
    )
    assert run(*words, libraries[1]).endswith("no kernels of hybridge in this process: link or load libhybridge_kernels too\n")


def test_a_bundle_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    refused = CliRunner().invoke(tree(), ["bundle", str(tmp_path)])
    assert "is not empty" in str(refused.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_checkout_without_a_compiled_library_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(none LANGUAGES NONE)\nfind_package(hybridge REQUIRED)\n"
    )
    words = [Path(sys.executable).with_name("cmake"), "-S", tmp_path, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={SOURCES}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "`hybridge bundle FOLDER`" in " ".join(done.stderr.split())


@pytest.mark.thorough
@pytest.mark.slow
def test_cmake_builds_the_example_from_sources(tmp_path: Path) -> None:
    cmake = Path(sys.executable).with_name("cmake")
    prefix = CliRunner().invoke(tree(), ["native", "--cmake-prefix"]).stdout.strip()
    flags = f"-DCMAKE_CXX_FLAGS={' '.join(STRICT)} -Wno-pedantic"
    sources = "-DHYBRIDGE_FROM_SOURCE=ON"
    run(cmake, "-S", EXAMPLE, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}", flags, sources, ONE_SET)
    run(cmake, "--build", tmp_path / "build", "--parallel", 2, "--target", "talk", "hybridge_shared")
    program = tmp_path / "build/talk"
    assert not re.search(r"not found|lib(python|torch|c10)", listed := run("ldd", program)), listed
    demo = demo_folder() / "hybridge-demo"
    assert run(program, demo, typed=[QUESTION]) == conversation(demo, QUESTION) + "\n"
    chosen = os.environ | {"HYBRIDGE_ISA": "avx2"}
    answer = subprocess.run([program, demo], env=chosen, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert "HYBRIDGE_ISA is avx2, but this processor has plain; no kernels" in answer.stderr


@pytest.mark.thorough
@pytest.mark.slow
def test_an_instruction_set_that_there_is_not_is_refused(tmp_path: Path) -> None:
    words = [Path(sys.executable).with_name("cmake"), "-S", SOURCES, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={executorch()}"]
    done = subprocess.run([*words, "-DHYBRIDGE_INSTRUCTION_SETS=plain;avx3"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert re.search(r"there is no avx3\s+for\s+\S+;\s+see\s+\S+instruction_sets.txt", done.stderr)


@pytest.mark.thorough
@pytest.mark.slow
def test_an_installed_hybridge_is_found_without_its_sources(kernels_artifact: Path, tmp_path: Path) -> None:
    """cmake --install, and the example against what came of it: a moved folder with no way back to where it was built."""
    cmake, built, installed, moved = Path(sys.executable).with_name("cmake"), *(tmp_path / name for name in "bim")
    flags = f"-DCMAKE_CXX_FLAGS={' '.join(STRICT)} -Wno-pedantic"
    run(cmake, "-S", SOURCES, "-B", built, f"-DCMAKE_PREFIX_PATH={executorch()}", f"-DCMAKE_INSTALL_PREFIX={installed}", flags)
    run(cmake, "--build", built, "--parallel", 2)
    run(cmake, "--install", built)
    shutil.rmtree(built)
    installed.rename(moved)
    assert not re.search(re.escape(str(tmp_path)), "".join(map(read, moved.rglob("*.cmake"))))
    run(cmake, "-S", EXAMPLE, "-B", tmp_path / "app", f"-DCMAKE_PREFIX_PATH={moved};{executorch()}", flags)
    run(cmake, "--build", tmp_path / "app")
    demo = demo_folder() / "hybridge-demo"
    assert run(tmp_path / "app/talk", demo, typed=[QUESTION]) == conversation(demo, QUESTION) + "\n"


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def conversation(artifact: Path, message: str) -> str:
    """The answer of a chat with the example's settings."""
    model = open_text_model(artifact)
    settings = GenerationSettings(drafter=model.drafter, max_new_tokens=None)
    said = Conversation(model.session, model.tokenizer, load_template(model.artifact), settings).say(message)
    return said.encode().decode("latin-1")


def test_the_command_says_where_cmake_finds_it() -> None:
    shown = json.loads(CliRunner().invoke(tree(), ["native", "--json"]).stdout)
    ours, executorch = (Path(folder) for folder in shown["cmake_prefix"].split(";"))
    assert (ours / "cmake/hybridge-config.cmake").is_file()
    assert (executorch / "lib/cmake/executorch/executorch-config.cmake").is_file()
    assert (Path(shown["include"]) / "hybridge/hybridge.h").is_file()
    assert "find_package(hybridge)" in CliRunner().invoke(tree(), ["native"]).stdout
