// Markdown that a model wrote, as elements. Three things keep it harmless: HTML in it is shown as text, DOMPurify lets
// through a short list of elements, and the page's policy (Trusted Types) runs no script and loads nothing from elsewhere.

import hljs from "./vendor/highlight.min.js";
import { Marked } from "./vendor/marked.esm.js";
import "./vendor/purify.min.js";
import { button, copyText, made } from "./elements.js";

const LONGEST_HIGHLIGHTED = 100_000, LONGEST_HIGHLIGHTED_LIVE = 8_000;
/** Characters of a text that is laid out at once; layout of a longer one would stop the page. */
const LONGEST_TEXT = 200_000, BEGINNING = 20_000;
const CLEAN = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "input", "li", "ol", "p", "pre", "span",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "checked", "class", "disabled", "href", "start", "title", "type"],
  ADD_URI_SAFE_ATTR: ["align", "start", "type"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_ARIA_ATTR: false, ALLOW_DATA_ATTR: false, RETURN_DOM_FRAGMENT: true,
};

const marked = new Marked({
  gfm: true, breaks: true,
  renderer: {
    html({ text }) {
      return /^<br\s*\/?>\s*$/i.test(text) ? "<br>" : escaped(text);
    },
    // A picture's address may tell its host who reads: it becomes a link.
    image({ href, text }) {
      return `<a href="${escaped(href)}">${escaped(text || href)}</a>`;
    },
  },
});

function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}

/** Return sanitized elements of an HTML text. */
function clean(html) {
  return globalThis.DOMPurify.sanitize(html, CLEAN);
}

/** Return the blocks of a text. One that is nested deeper than the stack is a single block, shown as it is. */
function parsed(text) {
  try { return marked.lexer(text); } catch { return [{ type: "unreadable", raw: text }]; }
}

/** Return blocks of Markdown as elements, with tools for code. isLive: more text of the last block may follow. */
function rendered(tokens, isLive) {
  let fragment;
  try {
    fragment = clean(marked.parser(tokens));
  } catch {
    fragment = new DocumentFragment();
    fragment.append(made("p", "plain", tokens.map((token) => token.raw).join("")));
  }
  for (const link of fragment.querySelectorAll("a[href]")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const pre of fragment.querySelectorAll("pre")) pre.replaceWith(codeBlock(pre, isLive));
  for (const table of fragment.querySelectorAll("table")) {
    const frame = made("div", "table");
    frame.tabIndex = 0;
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", "Table");
    table.replaceWith(frame);
    frame.append(table);
  }
  return fragment;
}

function codeBlock(pre, isLive) {
  const text = pre.textContent;
  const language = /language-([\w+#.-]+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
  const code = made("code", "hljs", text), frame = made("pre"), head = made("figcaption"), block = made("figure", "code");
  if (hljs.getLanguage(language) && text.length < (isLive ? LONGEST_HIGHLIGHTED_LIVE : LONGEST_HIGHLIGHTED)) {
    code.replaceChildren(clean(hljs.highlight(text, { language, ignoreIllegals: true }).value));
  }
  frame.tabIndex = 0;  // wide code is scrolled by keyboard
  frame.setAttribute("aria-label", language ? `Code in ${language}` : "Code");
  frame.append(code);
  const copy = button("Copy", "Copy this code", async () => {
    copy.textContent = (await copyText(text)) ? "Copied" : "Not copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  head.append(made("span", "", language || "code"), copy);
  block.append(head, frame);
  return block;
}

/** A Markdown text that grows. Only its last block is made again with each piece. */
export class MarkdownView {
  constructor() {
    this.element = made("div", "markdown");
    this.live = made("div", "live");
    this.element.append(this.live);
    this.settled = 0;  // characters whose elements stay
  }

  /** Show a text, which begins like the one before. isDone: nothing will follow. */
  update(text, isDone) {
    if (text.length > LONGEST_TEXT) return this.showPlain(text, isDone);
    if (isDone && /^ {0,3}\[[^\]\n]+\]:/m.test(text)) this.clear();  // links may be defined after their use
    const tokens = parsed(text.slice(this.settled));
    const last = isDone ? tokens.length : tokens.findLastIndex((token) => token.type !== "space");
    const done = tokens.slice(0, Math.max(0, last));
    if (done.length) {
      this.live.before(rendered(done, false));
      this.settled += done.reduce((length, token) => length + token.raw.length, 0);
    }
    this.live.replaceChildren(rendered(tokens.slice(done.length), true));
  }

  clear() {
    this.element.replaceChildren(this.live);
    this.settled = 0;
  }

  showPlain(text, isDone) {
    this.clear();
    this.live.replaceChildren(plainText(text, isDone));
  }
}

/** Return an element with a text as it is; of a very long one its end while it grows, and its beginning and a button later. */
export function plainText(text, isDone = true) {
  if (text.length <= LONGEST_TEXT) return made("div", "plain", text);
  const part = made("div", "plain", isDone ? text.slice(0, BEGINNING) : text.slice(-BEGINNING));
  if (!isDone) return part;
  const frame = made("div"), size = (text.length / 1e6).toFixed(1);
  const more = button("Show more", `This text has ${size} million characters`, () => {
    const from = part.textContent.length;
    part.append(text.slice(from, from + LONGEST_TEXT));
    more.hidden = from + LONGEST_TEXT >= text.length;
  });
  frame.append(part, more);
  return frame;
}

/** Return how many characters of a text are laid out at first. */
export function laidOut(text) {
  return text.length > LONGEST_TEXT ? BEGINNING : text.length;
}
