"""The chat page in a browser: what a person does in it, and a server in its own script that answers at once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from browser import Browser

DONE = "document.getElementById('stop').hidden"
SAID = (
    "[...document.querySelectorAll('#log article')].map((each) => (each.querySelector('.text, .markdown') ?? each).textContent)"
)
SIZES = {"phone": (390, 844), "desk": (1280, 800)}

FAKE = """
window.sent = [];
window.replies = %s;
window.fetch = async (path, options) => {
  if (path === "/v1/models") return Response.json({ data: [{ id: "fake", input_modalities: %s }] });
  sent.push(JSON.parse(options.body));
  const events = (replies.length > 1 ? replies.shift() : replies[0]).map((each) => `data: ${JSON.stringify(each)}\\n\\n`);
  const stream = new ReadableStream({
    async pull(at) {
      const event = events.shift();
      if (event === undefined) return at.close();
      await new Promise((go) => setTimeout(go, 1));
      at.enqueue(new TextEncoder().encode(event));
    },
  });
  return new Response(stream);
};
"""
"""Takes the place of requests: ``sent`` has their bodies, and each is answered by the next list of chunks."""


def reply(*deltas: dict[str, Any], tokens: int = 39) -> list[dict[str, Any]]:
    """Return the chunks of an answer."""
    usage = {"prompt_tokens": 1300, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 1204}}
    return [*({"choices": [{"delta": delta}]} for delta in deltas), {"choices": [], "usage": usage}]


def words(text: str) -> list[dict[str, Any]]:
    """Return the chunks of an answer in words."""
    return reply(*({"content": text[at : at + 4]} for at in range(0, len(text), 4)))


def open_with(
    page: Browser, url: str, replies: Iterable[list[dict[str, Any]]], modalities: Iterable[str] = ("text", "image")
) -> None:
    """Open the page with a server in its script."""
    script = FAKE % (json.dumps(list(replies)), json.dumps(list(modalities)))
    page.scripts.append(page.tell("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"])
    page.open(url)
    page.wait_for("document.getElementById('model').textContent === 'fake'")


def open_page(page: Browser, url: str) -> None:
    """Open the page of a server, and wait until it is ready."""
    page.open(url)
    page.wait_for("document.getElementById('model').textContent === 'babble'")


def say(page: Browser, text: str) -> None:
    page.run("document.getElementById('text').focus()")
    page.type(text)
    page.press("Enter", 13)


def click(page: Browser, words: str, number: int = -1) -> None:
    """Click a button by its words; several have the same in a conversation."""
    found = "[...document.querySelectorAll('button')].filter((each) => each.textContent === '{}' && each.checkVisibility())"
    page.wait_for(f"{found.format(words)}.length")
    page.run(f"{found.format(words)}.at({number}).click()")


def answered(page: Browser, texts: int) -> list[str]:
    """Return the texts on the screen, once there are so many and the last is complete."""
    page.wait_for(f"{DONE} && {SAID}.length === {texts}")
    found: list[str] = page.run(SAID)
    return found


def settings(page: Browser, **values: Any) -> None:
    """Open the page again with settings that were kept."""
    page.run(f"localStorage.setItem('hybridge.settings', JSON.stringify({json.dumps(values)}))")
    reload(page)


def reload(page: Browser) -> None:
    page.run("window.isOld = true")
    page.tell("Page.reload")
    page.wait_for("!window.isOld && document.readyState === 'complete'")
    page.wait_for("document.getElementById('model').textContent !== 'hybridge'")


def bring_in(page: Browser, *messages: dict[str, Any], repeat: int = 1) -> None:
    """Import a conversation as the page exports it. repeat: each text so many times, made in the page."""
    nodes = [{"id": str(i), "parent": str(i - 1) if i else "", **each} for i, each in enumerate(messages)]
    chat = {"title": "Brought in", "messages": nodes}
    page.run(f"""{{
      const chat = {json.dumps(chat)};
      for (const each of chat.messages) each.content = each.content.repeat({repeat});
      const transfer = new DataTransfer(), text = JSON.stringify({{ format: "hybridge-conversations-1", chats: [chat] }});
      transfer.items.add(new File([text], "conversations.json"));
      const field = document.getElementById("import");
      field.files = transfer.files;
      field.dispatchEvent(new Event("change"));
    }}""")
    page.wait_for(
        "document.getElementById('title').textContent === 'Brought in' && document.querySelectorAll('#log article').length"
    )


VISIBLE = """[...document.querySelectorAll('body *')].filter((each) => each.checkVisibility({ visibilityProperty: true })
  && !each.closest('.unseen') && !each.closest('[inert]'))"""
CONTRASTS = f"""(() => {{
  const pen = document.createElement('canvas').getContext('2d', {{ willReadFrequently: true }});
  const painted = (colours) => {{
    for (const colour of ['#fff', ...colours]) {{ pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }}
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }};
  return {VISIBLE}
    .filter((each) => !each.disabled && [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((each) => {{
      const backs = [];
      for (let at = each; at; at = at.parentElement) backs.unshift(getComputedStyle(at).backgroundColor);
      const back = painted(backs), text = painted([...backs, getComputedStyle(each).color]);
      return [(Math.max(back, text) + 0.05) / (Math.min(back, text) + 0.05), each.textContent.slice(0, 40)];
    }});
}})()"""
"""Each visible text with the ratio of its colour to what is behind it, as WCAG 2 defines it."""
