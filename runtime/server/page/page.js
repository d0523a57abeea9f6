// The page: one conversation on the screen, and what its buttons and keys do.

import { describe, streamChat } from "./api.js";
import { Composer } from "./composer.js";
import { Conversation, exported } from "./conversation.js";
import { at, counted, download } from "./elements.js";
import { laidOut } from "./markdown.js";
import { MessageView, REACHED_LIMIT } from "./messages.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Store } from "./store.js";

/** The latest messages that are laid out at first, and their characters together; a button shows as many earlier ones. */
const SHOWN = 40, SHOWN_CHARACTERS = 300_000;
const SAVED_EVERY = 1000, LONGEST_ANNOUNCED = 600;

class Page {
  constructor(store) {
    this.store = store;
    this.conversation = null;
    this.running = null;  // the answer that is being written: { abort, conversation, node, began, … }
    this.views = new Map();
    this.most = SHOWN;
    this.server = { name: "hybridge", takesPictures: true };
    this.settings = new Settings(() => this.draw());
    this.composer = new Composer((text, pictures) => this.say(text, pictures), (words) => this.tell(words));
    this.sidebar = new Sidebar(store, () => this.conversation?.chat.id, {
      open: (id) => { location.hash = id; },
      removing: (id) => {
        if (id !== this.running?.conversation.chat.id) return;
        this.running.conversation.isDeleted = true;  // what is written of the answer would bring it back
        this.running.abort.abort();
      },
      removed: (id) => { if (id === this.conversation.chat.id) this.startNew(); },
      renamed: (chat) => {
        if (chat.id === this.conversation.chat.id) this.conversation.chat.title = chat.title;
        this.drawTitle();
      },
      failed: (words) => this.tell(words),
    });
    this.acts = {
      edit: (node, text) => this.answer(this.conversation.add(node.parent, "user", text, { pictures: node.pictures })),
      retry: (node) => this.answer(this.conversation.nodes.get(node.parent)),
      continue: (node) => this.answer(this.conversation.nodes.get(node.parent), node),
      undo: (node) => this.undo(node),
      turn: (node, by) => this.turn(node, by),
      results: (node, texts) => this.sendResults(node, texts),
    };
    this.listen();
  }

  listen() {
    at("new").addEventListener("click", () => this.startNew());
    at("stop").addEventListener("click", () => this.running?.abort.abort());
    at("open-settings").addEventListener("click", () => this.openSettings());
    at("system").addEventListener("change", () => {
      this.conversation.chat.system = at("system").value;
      this.settings.set("system", at("system").value);
      if (this.conversation.nodes.size) this.save([]);
    });
    at("key").addEventListener("change", () => {
      sessionStorage.setItem("key", at("key").value);
      this.greet();
    });
    at("export-markdown").addEventListener("click", () => this.exportAs("md", this.conversation.markdown(), "text/markdown"));
    at("export-json").addEventListener("click", () => this.exportAs("json", exported([this.conversation]), "application/json"));
    at("earlier").addEventListener("click", () => this.showEarlier());
    at("latest").addEventListener("click", () => { at("chat").scrollTop = at("chat").scrollHeight; });
    at("chat").addEventListener("scroll", () => { at("latest").hidden = this.isAtEnd(); });
    addEventListener("hashchange", () => this.openFromAddress());
    addEventListener("keydown", (event) => {
      if (document.querySelector("dialog[open]")) return;
      if (event.key === "Escape" && document.body.classList.contains("side-open")) this.sidebar.open(false);
      else if (event.key === "Escape") this.running?.abort.abort();
      if (event.altKey && event.code === "KeyN") { event.preventDefault(); this.startNew(); }
      if (event.altKey && event.code === "KeyF") { event.preventDefault(); this.sidebar.open(true); at("search").focus(); }
    });
  }

  // Conversations

  /** Open the conversation that the address names, or a new one. */
  async openFromAddress() {
    const id = location.hash.slice(1);
    if (id === this.conversation?.chat.id) return;
    const running = this.running?.conversation;
    const chat = id && id !== running?.chat.id ? await this.store.chat(id) : null;
    if (id && id === running?.chat.id) this.show(running);
    else if (chat) this.show(new Conversation(chat, await this.store.messages(id)));
    else this.startNew();
  }

  startNew() {
    if (location.hash) history.pushState(null, "", location.pathname);
    this.show(Conversation.start(this.settings.values.system ?? ""));
    this.sidebar.open(false);
    at("text").focus();
  }

  show(conversation) {
    this.conversation = conversation;
    this.most = SHOWN;
    this.views.clear();
    this.tell("");
    this.draw();
    at("chat").scrollTop = at("chat").scrollHeight;
    this.sidebar.draw();
  }

  async save(nodes, conversation = this.conversation) {
    if (conversation.isDeleted) return;
    try {
      await this.store.save(conversation.chat, nodes);
    } catch (error) {
      this.tell(`This browser could not save the conversation: ${error?.message ?? "no space"}.`);
    }
  }

  exportAs(ending, text, type) {
    const name = this.conversation.chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation";
    download(`${name}.${ending}`, text, type);
  }

  // The screen

  /** Show the messages of the branches that are chosen. Elements that are there stay. */
  draw() {
    const nodes = this.conversation.shown(), hidden = this.hidden(nodes), wasAtEnd = this.isAtEnd();
    const views = nodes.slice(hidden).map((node) => {
      if (!this.views.has(node.id)) this.views.set(node.id, new MessageView(node, this.acts));
      const view = this.views.get(node.id);
      this.updateView(view, node === nodes.at(-1));
      return view.element;
    });
    const log = at("log"), wanted = new Set(views);
    for (const element of [...log.children]) if (!wanted.has(element)) element.remove();
    views.forEach((element, i) => { if (log.children[i] !== element) log.insertBefore(element, log.children[i] ?? null); });
    at("earlier").hidden = hidden === 0;
    at("earlier").textContent = `Show earlier messages (${hidden.toLocaleString("en")})`;
    at("welcome").hidden = nodes.length > 0;
    const isHere = this.running?.conversation === this.conversation;
    at("send").hidden = isHere;
    at("stop").hidden = !isHere;
    at("send").disabled = this.running !== null;
    this.drawTitle();
    if (wasAtEnd) at("chat").scrollTop = at("chat").scrollHeight;
  }

  /** Return how many of the messages are not laid out: the first ones. */
  hidden(nodes) {
    let first = nodes.length, characters = 0;
    while (first > 0 && nodes.length - first < this.most && characters < (SHOWN_CHARACTERS * this.most) / SHOWN) {
      first -= 1;
      characters += laidOut(nodes[first].content);
    }
    return first;
  }

  updateView(view, isLast) {
    const branches = this.conversation.branches(view.node);
    view.update({
      isLast, isBusy: this.running !== null, isLive: this.running?.node === view.node,
      origins: this.settings.values.origins === true, branches: [branches.indexOf(view.node), branches.length],
    });
  }

  drawTitle() {
    const title = this.conversation.chat.title;
    at("title").textContent = title || "New conversation";
    document.title = title ? `${title} – ${this.server.name}` : this.server.name;
    at("model").textContent = this.server.name;
    at("export").hidden = this.conversation.nodes.size === 0;
  }

  isAtEnd() {
    const chat = at("chat");
    return chat.scrollHeight - chat.scrollTop - chat.clientHeight < 80;
  }

  showEarlier() {
    const chat = at("chat"), below = chat.scrollHeight - chat.scrollTop;
    this.most += SHOWN;
    this.draw();
    chat.scrollTop = chat.scrollHeight - below;  // what was read stays in its place
    at("log").querySelector("button")?.focus({ preventScroll: true });
  }

  /** Show words above the field. */
  tell(words) {
    at("status").textContent = words;
  }

  openSettings() {
    at("system").value = this.conversation.chat.system;
    at("settings").showModal();
  }

  // Messages

  /** Take a message of the user's. Return false while another answer is written. */
  say(text, pictures) {
    if (this.running) return false;
    const parent = this.conversation.shown().at(-1)?.id ?? "";
    this.answer(this.conversation.add(parent, "user", text, { pictures }));
    return true;
  }

  sendResults(node, texts) {
    let last = node;
    const results = node.calls.map((call, i) => {
      last = this.conversation.add(last.id, "tool", texts[i], { call: call.id });
      return last;
    });
    this.save(results);
    this.answer(last);
  }

  turn(node, by) {
    const branches = this.conversation.branches(node);
    const next = branches[(branches.indexOf(node) + by + branches.length) % branches.length];
    this.conversation.choose(next);
    this.save([this.conversation.nodes.get(node.parent)].filter(Boolean));
    this.draw();
    this.views.get(next.id).tools.querySelector(`[data-act=${by < 0 ? "before" : "after"}]`).focus();
  }

  /** Take back the last message of the user's with what followed it; its text returns to the field. */
  async undo(node) {
    const asked = this.conversation.upTo(node).findLast((each) => each.role === "user");
    const parent = this.conversation.nodes.get(asked.parent);
    const ids = this.conversation.remove(asked);
    this.composer.set(asked.content, asked.pictures);
    this.draw();
    at("text").focus();
    await this.store.removeMessages(this.conversation.chat, ids);
    if (parent) await this.save([parent]);
  }

  /** Ask for an answer to a message, or for the rest of the one that has begun, and show it as it comes. */
  async answer(asked, begun = null) {
    if (this.running) return;
    const { conversation } = this;
    let fields;
    try {
      fields = this.settings.request();
    } catch (error) {
      this.draw();
      return this.tell(error.message);
    }
    const node = begun ?? conversation.add(asked.id, "assistant", "");
    Object.assign(node, { note: "", error: "" });
    const run = this.running = { abort: new AbortController(), conversation, node, began: performance.now(), first: 0, last: 0, cost: 0 };
    const body = {
      ...fields, messages: conversation.messages(begun ?? asked), stream: true, stream_options: { include_usage: true }, token_origins: true,
    };
    const before = [conversation.nodes.get(asked.parent), asked, node].filter(Boolean);
    location.hash = conversation.chat.id;
    this.tell("");
    at("announce").textContent = "The model is answering.";
    this.draw();
    at("chat").scrollTop = at("chat").scrollHeight;
    await this.save(before, conversation);
    this.sidebar.draw();
    const saving = setInterval(() => this.save([node], conversation), SAVED_EVERY);
    try {
      for await (const chunk of streamChat(body, this.settings.key, run.abort.signal)) this.take(chunk, run);
    } catch (error) {
      if (error.name === "AbortError") node.note = "Stopped.";
      else node.error = error.message;
    }
    clearInterval(saving);
    cancelAnimationFrame(run.due);
    this.running = null;
    await this.save([node], conversation);
    at("announce").textContent = announced(node.error || node.content || "The answer has no text.");
    this.draw();
  }

  /** Add a piece of an answer. */
  take(chunk, run) {
    const { node } = run, choice = chunk.choices[0], delta = choice?.delta ?? {}, now = performance.now();
    if (delta.content || delta.reasoning_content || delta.tool_calls) run.last = now;
    run.first ||= run.last;
    node.reasoning += delta.reasoning_content ?? "";
    if (delta.content) {
      if (node.reasoning && !node.content) node.thought = (now - run.first) / 1000;
      node.content += delta.content;
      const origin = delta.origin ?? "own", part = node.parts.at(-1);
      if (part?.[1] === origin) part[0] += delta.content;
      else node.parts.push([delta.content, origin]);
    }
    for (const { id, function: called } of delta.tool_calls ?? []) {
      node.calls.push({ id, name: called.name, arguments: called.arguments });
    }
    if (choice?.finish_reason === "length") node.note = REACHED_LIMIT;
    if (chunk.usage) node.figures = figures(chunk.usage, run);
    run.due ||= requestAnimationFrame((time) => this.drawLive(run, time));
  }

  /** Show the new text, but spend at most a quarter of the time with it. */
  drawLive(run, time) {
    run.due = 0;
    if (time < run.next) {
      run.due = requestAnimationFrame((later) => this.drawLive(run, later));
      return;
    }
    const view = this.views.get(run.node.id), wasAtEnd = this.isAtEnd(), began = performance.now();
    if (!view || run.conversation !== this.conversation) return;
    this.updateView(view, true);
    if (wasAtEnd) at("chat").scrollTop = at("chat").scrollHeight;
    run.next = time + 4 * (performance.now() - began);
  }

  /** Learn what the server has. */
  async greet() {
    try {
      this.server = await describe(this.settings.key);
      this.composer.takesPictures = this.server.takesPictures;
      at("attach").hidden = !this.server.takesPictures;
      this.tell("");
    } catch (error) {
      this.tell(`${error.message[0].toUpperCase()}${error.message.slice(1)}`);
    }
    this.drawTitle();
  }
}

/** Return what a screen reader says of an answer once it is complete. */
function announced(text) {
  return text.length > LONGEST_ANNOUNCED ? `The answer is complete. It begins: ${text.slice(0, LONGEST_ANNOUNCED)}…` : text;
}

/** Return the figures of an answer. */
function figures(usage, { began, first, last }) {
  const seconds = (last - first) / 1000, tokens = usage.completion_tokens, details = usage.completion_tokens_details ?? {};
  return {
    tokens, speed: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : 0, seconds: (last - began) / 1000, first: (first - began) / 1000,
    prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    accepted: details.accepted_prediction_tokens ?? 0, rejected: details.rejected_prediction_tokens ?? 0,
  };
}

const page = new Page(await Store.open());
await page.openFromAddress();
await page.greet();
at("text").focus();
