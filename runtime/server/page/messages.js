// A message on the screen: what was said, how the model came to it, and what can be done with it.

import { button, copyText, counted, made } from "./elements.js";
import { MarkdownView, plainText } from "./markdown.js";
import { thumbnail } from "./pictures.js";

/** The note of an answer that can be continued. */
export const REACHED_LIMIT = "The answer reached its limit of tokens.";
const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };

/** The element of one message. It is changed in place, so that focus, selections and what is unfolded stay. */
export class MessageView {
  /** acts: the functions that the buttons call, each with the message. */
  constructor(node, acts) {
    Object.assign(this, { node, acts, isEditing: false, shown: null });
    this.element = made("article", node.role);
    this.element.setAttribute("aria-label", NAMES[node.role]);
    this.body = made("div", "body");
    this.tools = made("div", "tools");
    this.element.append(this.body, this.tools);
    if (node.role === "assistant") {
      this.reasoning = folded("reasoning", "");
      this.reasoning.addEventListener("toggle", () => this.fillReasoning());
      this.markdown = new MarkdownView();
      this.calls = made("div", "calls");
      this.error = made("p", "error");
      this.error.setAttribute("role", "alert");
      this.body.append(this.reasoning, this.markdown.element, this.calls, this.error);
    } else {
      this.body.append(this.fixed());
    }
  }

  /** Show the message as it is now. state: isLive, isBusy, isLast, origins, and the branches as [this one's place, their number]. */
  update(state) {
    if (this.isEditing) return;
    if (this.node.role === "assistant") this.updateAnswer(state);
    this.updateTools(state);
  }

  fixed() {
    const { role, content, pictures } = this.node;
    const text = plainText(content);
    text.classList.add("text");
    if (role === "tool") {
      const frame = folded("call", "Result of a tool");
      frame.append(text);
      return frame;
    }
    const fragment = new DocumentFragment();
    if (pictures.length) {
      const row = made("div", "pictures");
      row.append(...pictures.map((url, i) => thumbnail(url, i + 1)));
      fragment.append(row);
    }
    if (content) fragment.append(text);
    return fragment;
  }

  updateAnswer({ isLive, isLast, isBusy, origins }) {
    const { node } = this;
    this.reasoning.hidden = !node.reasoning;
    const time = node.thought ? `Thought for ${counted(Math.max(1, Math.round(node.thought)), "second")}` : "Reasoning";
    this.reasoning.firstChild.textContent = isLive && !node.content ? "Thinking…" : time;
    this.fillReasoning();
    const shown = `${node.content.length} ${isLive} ${origins}`;
    if (shown !== this.shown) {
      this.shown = shown;
      this.markdown.element.classList.toggle("origins", origins);
      if (origins) this.showOrigins();
      else this.markdown.update(node.content, !isLive);
    }
    this.element.classList.toggle("waiting", isLive && !node.content && !node.reasoning);
    this.element.setAttribute("aria-busy", String(isLive));
    this.error.textContent = node.error;
    this.error.hidden = !node.error;
    this.updateCalls(isLast && !isBusy);
  }

  /** Colour the text by where its tokens come from: it is shown as written then, because tokens end inside of Markdown's marks. */
  showOrigins() {
    const text = made("div", "plain");
    text.append(...this.node.parts.map(([words, origin]) => made("span", origin, words)));
    this.markdown.clear();
    this.markdown.live.replaceChildren(text);
  }

  fillReasoning() {
    if (!this.reasoning.open || this.reasoningLength === this.node.reasoning.length) return;
    this.reasoningLength = this.node.reasoning.length;
    this.reasoning.lastChild.textContent = this.node.reasoning;
  }

  /** Show the calls of tools; of the last message also fields for their results. */
  updateCalls(isAsking) {
    const shown = `${this.node.calls.length} ${isAsking}`;
    if (shown === this.shownCalls) return;
    this.shownCalls = shown;
    const fields = [];
    this.calls.replaceChildren(...this.node.calls.map((call) => {
      const frame = folded("call", `Called ${call.name}`);
      frame.lastChild.textContent = indented(call.arguments);
      if (isAsking) {
        frame.open = true;
        const field = made("textarea");
        field.placeholder = "What the tool answered";
        field.setAttribute("aria-label", `Result of ${call.name}`);
        fields.push(field);
        frame.append(field);
      }
      return frame;
    }));
    if (!fields.length) return;
    const send = () => this.acts.results(this.node, fields.map((field) => field.value));
    this.calls.append(button("Send results", "Give the results to the model", send));
  }

  updateTools({ isLive, isBusy, isLast, branches: [place, number] }) {
    const { node, acts } = this;
    const shown = JSON.stringify([isLive, isBusy, isLast, place, number, node.note, node.figures]);
    if (shown === this.shownTools) return;
    this.shownTools = shown;
    const focused = this.tools.contains(document.activeElement) ? document.activeElement.dataset.act : "";
    const act = (name, words, title, run) => {
      const element = button(words, title, run);
      element.dataset.act = name;
      element.disabled = isBusy && name !== "copy";
      return element;
    };
    const tools = [];
    if (number > 1) {
      tools.push(act("before", "‹", "The version before", () => acts.turn(node, -1)), made("span", "place", `${place + 1}/${number}`));
      tools.push(act("after", "›", "The next version", () => acts.turn(node, 1)));
      for (const element of [tools[0], tools[2]]) element.setAttribute("aria-label", element.title);
    }
    if (!isLive && node.role !== "tool") {
      if (node.content) tools.push(act("copy", "Copy", "Copy the text", (event) => copyWith(event.currentTarget, node.content)));
      if (node.role === "user") tools.push(act("edit", "Edit", "Change this message; the old one stays as a branch", () => this.edit()));
      else tools.push(act("retry", "Retry", "Ask for another answer; this one stays as a branch", () => acts.retry(node)));
      if (isLast && node.note === REACHED_LIMIT) {
        tools.push(act("continue", "Continue", "Go on with this answer", () => acts.continue(node)));
      }
      if (isLast) tools.push(act("undo", "Undo", "Take back the last message and its answer", () => acts.undo(node)));
    }
    if (node.note) tools.push(made("span", "note", node.note));
    if (node.figures) tools.push(figuresOf(node.figures));
    this.tools.replaceChildren(...tools);
    if (focused) this.tools.querySelector(`[data-act=${focused}]`)?.focus();
  }

  /** Put a field in the place of the message. */
  edit() {
    const field = made("textarea"), row = made("div", "tools");
    const end = () => {
      this.isEditing = false;
      this.element.replaceChildren(this.body, this.tools);
      this.tools.querySelector("[data-act=edit]")?.focus();
    };
    const send = () => {
      if (!field.value.trim() && !this.node.pictures.length) return;
      end();
      this.acts.edit(this.node, field.value);
    };
    field.value = this.node.content;
    field.rows = Math.min(12, field.value.split("\n").length + 1);
    field.setAttribute("aria-label", "Edited message");
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
      if (event.key === "Escape") { event.stopPropagation(); end(); }
    });
    row.append(button("Send", "Enter", send), button("Cancel", "Esc", end));
    this.isEditing = true;
    this.element.replaceChildren(field, row);
    field.focus();
  }
}

function folded(name, words) {
  const frame = made("details", name);
  frame.append(made("summary", "", words), made("div", "plain"));
  return frame;
}

async function copyWith(element, text) {
  element.textContent = (await copyText(text)) ? "Copied" : "Not copied";
  setTimeout(() => { element.textContent = "Copy"; }, 1500);
}

function indented(json) {
  try { return JSON.stringify(JSON.parse(json), null, 2); } catch { return json; }
}

/** Return the figures of an answer: its speed in words, the rest folded. */
function figuresOf({ tokens, speed, seconds, first, cached, prompt, accepted, rejected }) {
  const pace = speed < 10 ? speed.toFixed(1) : Math.round(speed);
  const frame = folded("figures", speed ? `${pace} tokens a second` : counted(tokens, "token"));
  const lines = [
    `${counted(tokens, "token")} in ${seconds.toFixed(1)} seconds, the first after ${first.toFixed(1)} seconds.`,
    `${counted(prompt, "token")} before the answer, ${cached.toLocaleString("en")} of them remembered and not read again.`,
  ];
  const guessed = accepted + rejected;
  if (guessed) lines.push(`${counted(guessed, "token")} guessed ahead, ${accepted.toLocaleString("en")} of them right.`);
  frame.lastChild.append(...lines.map((line) => made("div", "", line)));
  return frame;
}
