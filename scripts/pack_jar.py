"""Build the jar of the Kotlin module for a JVM on a computer, with the native libraries of this platform in it, and its POM.

The module is examples/android/hybridge; the jar's classes load the libraries from it (Bundled.kt).
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
import zipfile
from pathlib import Path

from pack_node import pack_command, run, tool

from hybridge.runtime.binding import bundle
from hybridge.runtime.kernels import compiling
from hybridge.runtime.platforms import library_file
from hybridge.runtime.version import __version__

MAIN = Path(__file__).parents[1] / "examples/android/hybridge/src/main"
KOTLIN, COROUTINES = "2.4.20", "1.10.2"
"""The versions that a user's build resolves."""
COMPILE = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-Werror", "-no-reflect", "-jvm-target", "17")
"""Options of the compiler: a run this short ends before Java's second compiler pays."""
FIRST_DATE = (1980, 1, 1, 0, 0, 0)
"""That of all files in a jar: the same sources make the same bytes."""

POM = f"""<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dev.hybridge</groupId>
  <artifactId>hybridge</artifactId>
  <version>{__version__}</version>
  <licenses><license><name>Apache-2.0</name></license></licenses>
  <dependencies>
    <dependency><groupId>org.jetbrains.kotlin</groupId><artifactId>kotlin-stdlib</artifactId><version>{KOTLIN}</version></dependency>
    <dependency>
      <groupId>org.jetbrains.kotlinx</groupId><artifactId>kotlinx-coroutines-core-jvm</artifactId><version>{COROUTINES}</version>
    </dependency>
  </dependencies>
</project>
"""


def compiler_libraries() -> Path:
    """Return the folder of the Kotlin compiler's libraries. Raises PackError without a compiler."""
    return tool("kotlinc", "npm install --global kotlin-compiler").resolve().parents[1] / "lib"


def compile_jni(folder: Path, java_home: Path) -> list[Path]:
    """Compile the library for JNI in ``folder``; return what is loaded, it last. Raises PackError."""
    prefix, build = bundle.write(folder / "bundle"), folder / "jni"
    options = {
        "CMAKE_PREFIX_PATH": prefix,
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_COMPILER": compiling.compiler(),
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
        "CMAKE_INSTALL_RPATH": "$ORIGIN",
        "JAVA_HOME": java_home,
    }
    run(compiling.cmake(), "-S", MAIN / "cpp", "-B", build, *(f"-D{name}={value}" for name, value in options.items()))
    run(compiling.cmake(), "--build", build)
    return [*sorted((prefix / "lib").glob(library_file("*"))), build / library_file("hybridge_jni")]


def compile_classes(folder: Path) -> Path:
    """Compile the module into ``folder``; return the folder of its classes. Raises PackError."""
    coroutines = compiler_libraries() / "kotlinx-coroutines-core-jvm.jar"
    run(tool("kotlinc"), *COMPILE, "-Xexplicit-api=strict", "-cp", coroutines, MAIN / "kotlin", "-d", folder / "classes")
    return folder / "classes"


def pack(out: Path, java_home: Path | None = None) -> Path:
    """Write the jar and its POM into the folder ``out``; return the jar. Raises PackError."""
    home = java_home or Path(os.environ.get("JAVA_HOME") or tool("javac", "apt-get install default-jdk").resolve().parents[1])
    out.mkdir(parents=True, exist_ok=True)
    kind = f"{platform.system().lower()}-{platform.machine()}"
    jar = out / f"hybridge-{__version__}-{kind}.jar"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        libraries, classes = compile_jni(folder, home), compile_classes(folder)
        place = f"dev/hybridge/native/{kind}"
        files = {str(path.relative_to(classes)): path for path in sorted(classes.rglob("*")) if path.is_file()}
        files |= {f"{place}/{path.name}": path for path in libraries}
        files |= {f"META-INF/{path.name}": path for path in bundle.licences()}
        hashes = [f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.name}" for path in libraries]
        texts = {
            "META-INF/MANIFEST.MF": f"Manifest-Version: 1.0\nImplementation-Version: {__version__}\n",
            f"{place}/libraries.txt": "\n".join([__version__, *hashes, ""]),
        }
        contents = {name: text.encode() for name, text in texts.items()} | {
            name: path.read_bytes() for name, path in files.items()
        }
        with zipfile.ZipFile(partial := jar.with_suffix(".partial"), "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(zipfile.ZipInfo(name, FIRST_DATE), content, zipfile.ZIP_DEFLATED)
        partial.replace(jar)
    (out / f"hybridge-{__version__}.pom").write_text(POM, encoding="utf-8")
    return jar


if __name__ == "__main__":
    sys.exit(pack_command("scripts/pack-jar", __doc__, pack, files="files go"))
