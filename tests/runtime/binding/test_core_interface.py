"""The binding's numbers and structures are those of ``hybridge.h``, as a C compiler reads it."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from c_functions import functions

from hybridge.runtime.binding import interface, library

HEADER = library.SOURCES / "hybridge/hybridge.h"
STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "context": interface.ContextStruct, "proposal": interface.ProposalStruct, "array": interface.ArrayStruct,
    "program": interface.ProgramStruct, "drafted": interface.DraftedStruct, "vision": interface.VisionStruct,
    "pictured": interface.PicturedStruct, "encoded": interface.EncodedStruct, "part": interface.PartStruct,
    "info": interface.InfoStruct, "sampling": interface.SamplingStruct, "generation": interface.GenerationStruct,
    "generated": interface.GeneratedStruct, "kept": interface.KeptStruct, "cached": interface.CachedStruct,
    "span": interface.SpanStruct, "vocabulary": interface.VocabularyStruct, "chat_options": interface.ChatOptionsStruct,
    "call": interface.CallStruct, "result": interface.ResultStruct, "piece": interface.PieceStruct,
    "answer": interface.AnswerStruct, "message": interface.MessageStruct,
}  # fmt: skip
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
    for number in (*interface.Status, *interface.Type, *interface.Reading):
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
        "#include <hybridge/hybridge.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    subprocess.run(["cc", f"-I{library.SOURCES}", source, "-o", tmp_path / "layout"], check=True)
    done = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == wanted


def test_every_function_and_field_is_bound() -> None:
    header = HEADER.read_text(encoding="utf-8")
    bound = {f"hybridge_{name}" for name in (*interface.FUNCTIONS, "version", "status_text", "failure")}
    assert bound == set(functions(header))
    for name, structure in STRUCTURES.items():
        body = re.search(rf"typedef struct hybridge_{name} \{{(.*?)\}}", header, re.DOTALL)
        assert body
        fields = re.findall(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])?(?=,|;)", re.sub(r"\)\([^)]*\)", ")", body[1]))
        assert [one or other for one, other in fields] == [field for field, *_ in structure._fields_]
    assert set(STRUCTURES) == set(re.findall(r"typedef struct hybridge_(\w+)", header))
    statuses = re.findall(r"^  HYBRIDGE_(\w+) = \d+", header.partition("hybridge_status;")[0], re.MULTILINE)
    assert statuses == [each.name for each in interface.Status]
