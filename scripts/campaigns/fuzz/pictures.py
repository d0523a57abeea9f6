"""Pictures from hostile hands: files, rows of pictures in texts, saved conversations, and requests of a server."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from picture_files import chunk, file_of, noise
from PIL import Image

from campaigns.fuzz.driver import Compiled, Input
from campaigns.fuzz.files import Files, changed_bytes, changed_json, work
from campaigns.fuzz.files import artifact as text_artifact

CHAT, PICTURE, REQUEST, ROWS = "talk.state", "picture", "request", "rows.json"
MESSAGES = ("What is this?", "And this?")
"""Messages of the saved conversation; the first one has a picture."""
KINDS = ("PNG", "PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "ICO", "PPM", "PDF", "TGA", "PCX")
"""Formats of files, of which the last six are refused."""
DECODED = ("PNG", "JPEG", "GIF", "BMP")
"""Formats that hybridge-cli decodes."""
MODES = ("RGB", "RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16")
SIDES = (1, 1, 2, 3, 4, 7, 8, 9, 20, 31, 32, 33, 50, 100, 101, 257, 800)
STRANGE = ((20_000, 1), (1, 20_000), (1, 300), (200, 1), (201, 1), (3000, 2000), (65_535, 2))
"""Width and height of files beyond ``SIDES``."""


@cache
def artifact(kind: str) -> Path:
    """Return an artifact of a family's form, with a good file for each target in it."""
    import public_folders as public

    from hybridge.export.api import export_model
    from hybridge.runtime.text.chat_template import load_template
    from hybridge.runtime.text.conversation import Conversation
    from hybridge.runtime.text.generate import GenerationSettings, open_text_model

    save, options = {
        "lfm2_vl": (public.save_lfm2_vl, public.LFM2_VL_OPTIONS),
        "lfm3_vl": (public.save_lfm3_vl, public.LFM3_VL_OPTIONS),
        "qwen3_5": (public.save_qwen3_5_pictures, public.QWEN_OPTIONS),
        "gemma3": (public.save_gemma3, public.GEMMA3_OPTIONS),
        "gemma4": (public.save_gemma4, public.GEMMA_OPTIONS),
        "glm5_next": (public.save_glm5_next, public.GLM_OPTIONS),
        "nemotron_h_omni": (public.save_nemotron_h_omni, public.OMNI_OPTIONS),
    }[kind]
    text_artifact("hybridge")  # a server of a model without pictures is beside the one of a model with some
    folder, checkpoint = work() / kind, work() / f"{kind}-checkpoint"
    save(checkpoint)
    export_model(checkpoint, folder, options)
    (folder / PICTURE).write_bytes(GOOD)
    (folder / ROWS).write_text(json.dumps({"call": "prefill", "pieces": [[1, 2], [0, 0, 99], [3]]}))
    (folder / REQUEST).write_bytes(request("chat", [user("Look: ", [GOOD])]))
    model = open_text_model(folder, plain=True)
    talk = Conversation(
        model.session, model.tokenizer, load_template(model.artifact), GenerationSettings(max_new_tokens=4),
    )  # fmt: skip
    talk.say(MESSAGES[0], pictures=[model.pictures.prepare(GOOD)])
    talk.say(MESSAGES[1])
    talk.save(folder / CHAT)
    return folder


GOOD = file_of(noise(24, 16))


# Files


def some_picture(rng: random.Random) -> bytes:
    """Return the file of a picture as somebody might send it: any format, mode and size, with EXIF now and then."""
    width, height = rng.choice(STRANGE) if rng.random() < 0.1 else (rng.choice(SIDES), rng.choice(SIDES))
    image, kind = noise(width, height, seed=rng.randrange(1 << 30)), rng.choice(KINDS)
    mode = rng.choice(MODES)
    image = image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)
    options: dict[str, Any] = {}
    if kind in ("PNG", "JPEG", "WEBP") and rng.random() < 0.4:
        exif = Image.Exif()
        exif[0x0112] = rng.choice((1, 3, 6, 8, 5, 0, 9, 65_535))
        options["exif"] = exif.tobytes() if rng.random() < 0.7 else b"Exif\0\0" + rng.randbytes(rng.randint(0, 60))
    try:
        return file_of(image, kind, **options)
    except (OSError, ValueError, OverflowError, struct.error):  # not every format has every mode and size
        return file_of(image.convert("RGB").resize((min(width, 255), min(height, 255))), kind)


def film(rng: random.Random) -> bytes:
    """Return a file of up to hundreds of frames."""
    frames = [noise(16, 16, seed=rng.randrange(1 << 30)) for _ in range(rng.choice((2, 30, 600)))]
    return file_of(frames[0], rng.choice(("GIF", "PNG", "WEBP")), save_all=True, append_images=frames[1:])


def forged_png(rng: random.Random, width: int, height: int) -> bytes:
    """Return a PNG that says it has these sides, with lines of one colour that may be fewer or more."""
    depth, colour = rng.choice(((8, 2), (8, 6), (16, 2), (16, 6), (1, 0), (8, 3), (4, 0), (8, 99)))
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, rng.choice((0, 0, 1, 7)))
    lines = zlib.compress(bytes(rng.choice((0, 10, 100_000, 30_000_000))), 9)
    return b"".join((b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", head), chunk(b"IDAT", lines), chunk(b"IEND", b"")))


def bomb(rng: random.Random) -> bytes:
    """Return a small file that would become a large picture, or large texts beside one."""
    side = rng.choice((8_000, 8_192, 8_193, 20_000, 65_535, 2**31 - 1, 2**32 - 1, 0))
    kind = rng.randrange(6)
    if kind == 0:
        return forged_png(rng, side, rng.choice((side, 1, 8_000)))
    if kind == 1:  # the sides of a JPEG's first frame
        data = bytearray(file_of(noise(16, 16), "JPEG"))
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", side % 65_536, rng.choice((side, 16)) % 65_536)
        return bytes(data)
    if kind == 2:  # the sides of a BMP
        data = bytearray(file_of(noise(16, 16), "BMP"))
        struct.pack_into("<ii", data, 18, *(min(side, 2**31 - 1) * sign for sign in (1, rng.choice((1, -1)))))
        return bytes(data)
    if kind == 3:  # the screen of a GIF, or its first frame
        data = bytearray(file_of(noise(16, 16), "GIF"))
        struct.pack_into("<HH", data, rng.choice((6, data.index(b"\x2c") + 5)), side % 65_536, side % 65_536)
        return bytes(data)
    if kind == 4:  # a text or a colour profile of many MB in a small PNG
        name = rng.choice((b"zTXt", b"iCCP", b"iTXt"))
        text = b"a\0" + (b"\1\0\0\0" if name == b"iTXt" else b"\0") + zlib.compress(bytes(rng.choice((10**5, 10**8))), 9)
        return GOOD[:33] + chunk(name, text) + GOOD[33:]
    return file_of(Image.new("1", (8_192, rng.choice((8_192, 8_193)))), "PNG", optimize=True)


NO_PICTURES = (
    *(b"", b"\0", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"BM", b"RIFF\x10\0\0\0WEBPVP8 "),
    b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
)


def changed_picture(rng: random.Random, good: bytes) -> bytes:
    """Return another picture, a damaged one, a part of one, a film, a bomb, or no picture."""
    kind = rng.random()
    if kind < 0.3:
        return some_picture(rng)
    if kind < 0.35:
        return film(rng)
    if kind < 0.45:
        return bomb(rng)
    if kind < 0.5:
        return rng.choice((*NO_PICTURES, rng.randbytes(rng.randint(1, 4000))))
    if kind < 0.55:
        return forged_png(rng, rng.choice(SIDES), rng.choice(SIDES))
    data = some_picture(rng)
    if kind < 0.85:
        return changed_bytes(rng, data, end=min(len(data), 600) if rng.random() < 0.6 else None)
    other = some_picture(rng)
    at = rng.randrange(len(data))
    return rng.choice((data[:at], data[:at], data + other, data[:at] + other[at:], data[:at] + rng.randbytes(400)))


class PictureFiles(Compiled):
    """See ``Target``: the same files for hybridge-cli's decoder, under the sanitizers; those of ``GOOD``'s form are taken."""

    name = "native-picture-files"

    def prepare(self) -> None:
        """Compile the decoder: a minute, once for each state of the sources."""
        from native_programs import native_program

        self.program = native_program("picture_files")

    def make(self, seed: int, index: int) -> Input:
        """Return a file as ``changed_picture`` makes it, or a good one."""
        rng = random.Random(f"{self.name} {seed} {index}")
        good = rng.random() < 0.1
        if good:
            image = noise(rng.choice(SIDES), rng.choice(SIDES), seed=rng.randrange(1 << 30))
            data = file_of(image, rng.choice(DECODED))
        else:
            data = changed_picture(rng, GOOD)
        return Input(data, f"{len(data)} bytes: {data[:24]!r}", good=good)


# Rows of pictures in texts


def changed_rows(rng: random.Random, good: bytes) -> bytes:
    """Return a call of a session and the pieces of its text: tokens [id, …], or rows [picture, begin, end] of a picture.

    The child's pictures are 0 to 3, of which the last one is closed. Rows are a whole picture's half of the time.
    """
    pieces = list[list[int]]()
    for _ in range(rng.randint(1, 6)):
        if rng.random() < 0.4:
            pieces.append(rng.choices((0, 1, 2, 5, 6, 7, 100, 339, 340, 10**6, 2**31, -1, -(2**63)), (9,) * 8 + (1,) * 5, k=2))
        elif rng.random() < 0.6:
            pieces.append([rng.choices(range(4), (5, 5, 5, 1))[0], 0, 99])
        else:
            begin = rng.randrange(6)
            pieces.append([rng.randrange(4), begin, begin + rng.randint(0, 9)])
    if rng.random() < 0.1:
        pieces *= 9
    return json.dumps({"call": rng.choice(("prefill", "generate", "verify")), "pieces": pieces}).encode()


# Saved conversations


def changed_chat(rng: random.Random, good: bytes) -> bytes:
    """Return a saved conversation with other pictures in it, or with its note changed otherwise, and the right checksum."""
    from state_files import forge_state

    path = work() / "forged"
    path.write_bytes(good)

    def change(content: bytearray) -> None:
        at = content.index(b'{"messages"')
        note = json.loads(content[at:])
        turns = [turn for turn in note["turns"] if turn.get("pictures")]
        if rng.random() < 0.6:
            files = rng.choice(turns)["pictures"]
            saved = base64.b64decode(files[0])
            other = changed_bytes(rng, saved, end=min(len(saved), 64) if rng.random() < 0.6 else None)
            data = base64.b64encode(rng.choice((other, other, saved[: rng.randrange(len(saved))], saved + GOOD))).decode()
            choices: Sequence[list[Any]] = ([data], [data], [data], [*files, data], [], ["@" + data], [""], [None], files * 30)
            files[:] = rng.choice(choices)
        else:
            note = changed_json(rng, note)
        written = json.dumps(note).encode("utf-8", "replace")
        content[at - 8 :] = struct.pack("<Q", len(written)) + written

    forge_state(path, change)
    return path.read_bytes()


# Requests


def url_of(data: bytes, kind: str = "image/png") -> str:
    """Return the ``data:`` URL of a file."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def user(text: str, files: Sequence[bytes], urls: Sequence[str] = ()) -> dict[str, Any]:
    """Return a user's message with pictures."""
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in (*map(url_of, files), *urls)]
    return {"role": "user", "content": [{"type": "text", "text": text}, *pictures]}


def request(path: str, messages: Any) -> bytes:
    """Return a request as the child reads it: ``chat`` or ``responses``, and its body in the next line."""
    body: dict[str, Any] = {"model": "babble", "max_tokens": 3, "messages": messages}
    if path == "responses":
        body = {"model": "babble", "max_output_tokens": 3, "input": list(map(_for_responses, messages))}
    return path.encode() + b"\n" + json.dumps(body).encode()


def _for_responses(message: dict[str, Any]) -> dict[str, Any]:
    parts = [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": part["image_url"]["url"]}
        for part in message["content"]
    ]
    return {"role": message["role"], "content": parts}


URLS = (
    *("https://example.org/cat.jpg", "http://127.0.0.1:1/cat.png", "file:///etc/passwd", "/etc/passwd", "cat.png", ""),
    *("data:", "data:,", "data:image/png;base64,", "data:image/png;base64,@@@@", "data:image/png,hello"),
    *("DATA:IMAGE/PNG;BASE64,aGVsbG8=", "data:image/png;base64," + "A" * 100_001, "data:image/png;base64,\u00e9"),
    *("javascript:alert(1)", "data:;base64,aGVsbG8="),
)
TEXTS = ("Look: ", "", "<image>", "<image><image>Say it", "<|image_start|><image><|image_end|>", "a\0b", "a" * 3000)


def changed_request(rng: random.Random, good: bytes) -> bytes:
    """Return a request with other pictures, addresses and texts, or with its JSON changed."""
    path, messages = rng.choice(("chat", "chat", "responses")), list[dict[str, Any]]()
    for turn in range(rng.choice((1, 1, 1, 2, 3))):
        files = [changed_picture(rng, GOOD) if rng.random() < 0.5 else GOOD for _ in range(rng.choice((0, 1, 1, 1, 2, 5)))]
        urls = rng.choices(URLS, k=rng.choice((0, 0, 0, 1)))
        if turn:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": "Yes."}]})
        role = rng.choice(("system", "assistant", "tool")) if rng.random() < 0.1 else "user"
        messages.append({**user(rng.choice(TEXTS), files, urls), "role": role})
    made = request(path, messages * (30 if rng.random() < 0.03 else 1))
    if rng.random() < 0.3:
        head, _, body = made.partition(b"\n")
        content = json.loads(body)
        if rng.random() < 0.3:
            content["stream"] = True
        elif rng.random() < 0.3:
            content["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        else:
            content = changed_json(rng, content)
        made = head + b"\n" + json.dumps(content).encode("utf-8", "replace")
    return made


def _files(name: str, kind: str, file: str, change: Callable[[random.Random, bytes], bytes], action: str) -> Files:
    return Files(name, action, lambda: artifact(kind), file, change)


OTHERS = ("lfm3_vl", "gemma3", "gemma4", "glm5_next", "nemotron_h_omni")
"""Families beside those of LFM2-VL and Qwen3.5."""
TARGETS = (
    _files("pictures", "lfm2_vl", PICTURE, changed_picture, "picture"),
    _files("pictures-on-a-grid", "qwen3_5", PICTURE, changed_picture, "picture"),
    _files("picture-rows", "lfm2_vl", ROWS, changed_rows, "picture-rows"),
    _files("picture-rows-on-a-grid", "qwen3_5", ROWS, changed_rows, "picture-rows"),
    _files("picture-chats", "lfm2_vl", CHAT, changed_chat, "picture-chat"),
    _files("picture-requests", "lfm2_vl", REQUEST, changed_request, "picture-request"),
    *(_files(f"pictures-{kind}", kind, PICTURE, changed_picture, "picture") for kind in OTHERS),
    *(_files(f"picture-rows-{kind}", kind, ROWS, changed_rows, "picture-rows") for kind in OTHERS),
)
