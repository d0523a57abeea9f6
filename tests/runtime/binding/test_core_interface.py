"""The binding's numbers and structures are those of the headers, as a C compiler reads them; what callers may do wrong."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from babbling import fresh_session
from c_functions import functions

from hybridge.errors import UsageError
from hybridge.runtime import Session
from hybridge.runtime.binding import interface, library

HEADER, DEV = (library.SOURCES / "hybridge" / name for name in ("hybridge.h", "hybridge_dev.h"))
HANDLES = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", each.__name__.removesuffix("Handle")).lower(): each
    for each in interface.Handle.__subclasses__()
}
STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "context": interface.ContextStruct,
    "proposal": interface.ProposalStruct,
    "array": interface.ArrayStruct,
    "program": interface.ProgramStruct,
    "drafted": interface.DraftedStruct,
    "pictured": interface.PicturedStruct,
    "encoded": interface.EncodedStruct,
    "part": interface.PartStruct,
    "info": interface.InfoStruct,
    "prompts_read": interface.PromptsReadStruct,
    "validation": interface.ValidationStruct,
    "bias": interface.BiasStruct,
    "sampling": interface.SamplingStruct,
    "generation": interface.GenerationStruct,
    "dev_generation": interface.DevGenerationStruct,
    "generated": interface.GeneratedStruct,
    "kept": interface.KeptStruct,
    "cached": interface.CachedStruct,
    "span": interface.SpanStruct,
    "vocabulary": interface.VocabularyStruct,
    "chat_options": interface.ChatOptionsStruct,
    "call": interface.CallStruct,
    "result": interface.ResultStruct,
    "piece": interface.PieceStruct,
    "answer": interface.AnswerStruct,
    "message": interface.MessageStruct,
    **HANDLES,
}
DRAFTERS = {
    "NONE": "NO_DRAFTER",
    "PROMPT_LOOKUP": "PROMPT_LOOKUP",
    "OWN": "OWN_DRAFTER",
    "MODEL": "DRAFT_MODEL",
    "CALLBACK": "CALLBACK_DRAFTER",
    "AUTO": "AUTO_DRAFTER",
}


@pytest.mark.slow
def test_structures_and_numbers_are_the_headers(tmp_path: Path) -> None:
    """Each field's place and size, and each enumerator."""
    wanted, lines = [], []
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(hybridge_{name}));')
        wanted.append(f"{name} {ctypes.sizeof(structure)}")
        for field, *_ in structure._fields_:
            place = getattr(structure, field)
            size = f"sizeof(((hybridge_{name}*)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof(hybridge_{name}, {field}), {size});')
            wanted.append(f"{name}.{field} {place.offset} {place.size}")
    lines.append('printf("%d\\n", HYBRIDGE_MOST_DIMENSIONS);')
    wanted.append(str(interface.MOST_DIMENSIONS))
    for number in (*interface.Status, *interface.Type, *interface.Reading, *interface.GrammarKind):
        lines.append(f'printf("{number.name} %d\\n", HYBRIDGE_{number.name});')
        wanted.append(f"{number.name} {number.value}")
    for thinking in interface.Thinking:
        lines.append(f'printf("{thinking.name} %d\\n", HYBRIDGE_THINKING_{thinking.name});')
        wanted.append(f"{thinking.name} {thinking.value}")
    for ending in interface.Ending:
        lines.append(f'printf("{ending.name} %d\\n", HYBRIDGE_ENDED_{ending.name});')
        wanted.append(f"{ending.name} {ending.value}")
    for kind in interface.DrafterKind:
        lines.append(f'printf("{kind.name} %d\\n", HYBRIDGE_{DRAFTERS[kind.name]});')
        wanted.append(f"{kind.name} {kind.value}")
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <hybridge/hybridge_dev.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    subprocess.run(["cc", f"-I{library.SOURCES}", source, "-o", tmp_path / "layout"], check=True)
    done = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == wanted


def test_every_function_and_field_is_bound() -> None:
    header = HEADER.read_text(encoding="utf-8") + DEV.read_text(encoding="utf-8")
    bound = {f"hybridge_{name}" for name in (*interface.FUNCTIONS, "version", "status_text", "failure")}
    assert bound == set(functions(header))
    for name, structure in STRUCTURES.items():
        body = re.search(rf"typedef struct hybridge_{name} \{{(.*?)\n\}}", header, re.DOTALL)
        assert body
        lines = re.sub(r" *//.*", "", body[1])
        fields = re.findall(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])?(?=,|;)", re.sub(r"\)\([^)]*\)", ")", lines))
        assert [one or other for one, other in fields] == [field for field, *_ in structure._fields_]
    assert set(STRUCTURES) == set(re.findall(r"typedef struct hybridge_(\w+)", header))
    statuses = re.findall(r"^  HYBRIDGE_(\w+) = \d+", header.partition("hybridge_status;")[0], re.MULTILINE)
    assert statuses == [each.name for each in interface.Status]


def test_apps_have_few_functions() -> None:
    declared = re.findall(r"^[\w ]+[ *](hybridge_\w+)\(", HEADER.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(set(declared)) <= 75


# Options


OPTIONS = {
    "sampling": interface.SamplingStruct,
    "generation": interface.GenerationStruct,
    "chat_options": interface.ChatOptionsStruct,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_defaults_are_the_cores(name: str) -> None:
    """Also for a struct of a later version, whose further fields are zero."""
    kind = OPTIONS[name]
    size = ctypes.sizeof(kind)
    room = (ctypes.c_uint8 * (size + 16))(*[255] * (size + 16))
    written = ctypes.cast(room, ctypes.POINTER(kind))
    library.run(f"{name}_init", written, size)
    assert bytes(room) == bytes(kind()) + bytes([255] * 16)
    library.run(f"{name}_init", written, size + 8)
    assert bytes(room) == bytes(kind(struct_size=size + 8)) + bytes(8) + bytes([255] * 8)
    for wrong in (0, size - 8, 1 << 40):
        with pytest.raises(UsageError, match=f"hybridge_{name} has a struct_size of {wrong}, but this library knows {size}"):
            library.run(f"{name}_init", written, wrong)


class LaterStruct(ctypes.Structure):
    """Options of a later version of the header."""

    _fields_ = (("known", interface.GenerationStruct), ("further", ctypes.c_uint64))


def generate(session: Session, options: object) -> None:
    library.run("generate", session.handle, (ctypes.c_int64 * 1)(1), 1, options, interface.OnToken(), None, None)


@pytest.mark.slow
def test_options_of_another_size() -> None:
    session, size = fresh_session(), ctypes.sizeof(interface.GenerationStruct)
    later = LaterStruct(interface.GenerationStruct(struct_size=size + 8, max_new_tokens=2), 0)
    generate(session, ctypes.byref(later.known))
    before = session.tokens
    assert before
    later.further = 1
    wrong = [later.known, *(interface.GenerationStruct(struct_size=each) for each in (0, size - 1, 1 << 40))]
    for part in (interface.SamplingStruct(struct_size=1), interface.DevGenerationStruct(struct_size=1)):
        field = "sampling" if isinstance(part, interface.SamplingStruct) else "dev"
        wrong.append(interface.GenerationStruct(**{field: ctypes.pointer(part)}))
    for options in wrong:
        with pytest.raises(UsageError, match=r"hybridge_\w+ has a struct_size of \d+, but this library knows \d+ bytes"):
            generate(session, ctypes.byref(options))
    assert session.tokens == before


def test_a_handle_of_another_kind_is_refused() -> None:
    """By ctypes, and by the core: a number alone does not say what it is of."""
    session = fresh_session()
    with pytest.raises(ctypes.ArgumentError):
        library.run("decode", session.model.handle, 1, None)
    for other in (
        interface.SessionHandle(session.model.handle.id),
        interface.SessionHandle(),
        interface.SessionHandle(1 << 60),
    ):
        with pytest.raises(UsageError, match="closed"):
            library.run("decode", other, 1, None)
    session.close()
    with pytest.raises(UsageError, match="closed"):
        library.run("decode", session.handle, 1, None)


@pytest.mark.slow
@pytest.mark.parametrize(("call", "compiles"), [("decode(session, 1, 0)", True), ("decode(model, 1, 0)", False)])
def test_a_compiler_knows_kinds_of_handles(tmp_path: Path, call: str, compiles: bool) -> None:
    source = tmp_path / "kinds.c"
    source.write_text(
        "#include <hybridge/hybridge.h>\n"
        f"int f(hybridge_model model, hybridge_session session) {{ (void)model, (void)session; return hybridge_{call}; }}\n"
    )
    words = ["cc", "-std=c11", "-fsyntax-only", f"-I{library.SOURCES}", source]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == compiles, done.stderr
