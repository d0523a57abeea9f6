// A conversation is a tree of messages: an edit or another answer is a branch, and each message knows which of the
// messages after it is shown.

const LONGEST_TITLE = 60;
const FORMAT = "hybridge-conversations-1";
const ROLES = ["user", "assistant", "tool"];

/** Return a new id. crypto.randomUUID needs a secure context, which a server in the local network is not. */
function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Conversation {
  /** chat: the record of the conversation. messages: records, each after its parent. */
  constructor(chat, messages = []) {
    this.chat = chat;
    this.nodes = new Map();
    this.children = new Map([["", []]]);
    this.order = 0;
    for (const message of messages) this.insert(message);
  }

  /** Start an empty conversation. */
  static start(system) {
    const now = Date.now();
    return new Conversation({ id: newId(), title: "", system, created: now, changed: now, chosen: "" });
  }

  /** Put a message into the tree; one whose parent is missing is left out. */
  insert(node) {
    if (!this.children.has(node.parent)) return;
    this.nodes.set(node.id, node);
    this.children.get(node.parent).push(node.id);
    this.children.set(node.id, []);
    this.order = Math.max(this.order, node.order + 1);
  }

  /** Add a message after another one ("" for the first) and show it. */
  add(parent, role, content, more = {}) {
    const node = {
      id: newId(), chat: this.chat.id, parent, role, content, order: this.order, made: Date.now(), chosen: "",
      pictures: [], reasoning: "", parts: [], calls: [], call: "", error: "", note: "", figures: null, ...more,
    };
    this.insert(node);
    this.choose(node);
    if (!this.chat.title && role === "user") this.chat.title = titleOf(content);
    this.chat.changed = node.made;
    return node;
  }

  /** Show a message, rather than the others after the same one. */
  choose(node) {
    (this.nodes.get(node.parent) ?? this.chat).chosen = node.id;
  }

  /** Return the messages that are shown, the oldest first. */
  shown() {
    const nodes = [];
    for (let at = this.chat; ; ) {
      const next = this.nodes.get(at.chosen) ?? this.nodes.get(this.children.get(at === this.chat ? "" : at.id).at(-1));
      if (!next) return nodes;
      nodes.push(at = next);
    }
  }

  /** Return the messages after the same one as this, itself among them. */
  branches(node) {
    return this.children.get(node.parent).map((id) => this.nodes.get(id));
  }

  /** Return a message and those before it, the oldest first. */
  upTo(node) {
    const nodes = [];
    for (let at = node; at; at = this.nodes.get(at.parent)) nodes.unshift(at);
    return nodes;
  }

  /** Delete a message and all after it. Return their ids. */
  remove(node) {
    const ids = [node.id];
    for (const id of ids) ids.push(...this.children.get(id));
    const siblings = this.children.get(node.parent);
    siblings.splice(siblings.indexOf(node.id), 1);
    (this.nodes.get(node.parent) ?? this.chat).chosen = siblings.at(-1) ?? "";
    for (const id of ids) {
      this.nodes.delete(id);
      this.children.delete(id);
    }
    return ids;
  }

  /** Return what the server is asked: the messages up to one, in the form of OpenAI's API. */
  messages(last) {
    const messages = this.upTo(last).map(asMessage);
    return this.chat.system ? [{ role: "system", content: this.chat.system }, ...messages] : messages;
  }

  /** Return the shown messages as Markdown. */
  markdown() {
    const names = { user: "You", assistant: "Answer", tool: "Result of a tool" };
    const texts = this.shown().map((node) => {
      const pictures = node.pictures.length ? `*${node.pictures.length} pictures*\n\n` : "";
      const calls = node.calls.map((call) => `\`${call.name}(${call.arguments})\`\n\n`).join("");
      return `## ${names[node.role]}\n\n${pictures}${node.content}\n\n${calls}`.trimEnd();
    });
    const system = this.chat.system ? [`## System message\n\n${this.chat.system}`] : [];
    return [`# ${this.chat.title || "Conversation"}`, ...system, ...texts].join("\n\n") + "\n";
  }
}

function asMessage(node) {
  if (node.role === "tool") return { role: "tool", tool_call_id: node.call, content: node.content };
  if (node.role === "assistant") {
    const calls = node.calls.map(({ id, ...called }) => ({ id, type: "function", function: called }));
    return { role: "assistant", content: node.content, ...(calls.length ? { tool_calls: calls } : {}) };
  }
  if (!node.pictures.length) return { role: "user", content: node.content };
  const pictures = node.pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: [...pictures, ...(node.content ? [{ type: "text", text: node.content }] : [])] };
}

function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > LONGEST_TITLE ? `${line.slice(0, LONGEST_TITLE - 1)}…` : line;
}

/** Return the content of an export file. */
export function exported(conversations) {
  const chats = conversations.map(({ chat, nodes }) => ({ ...chat, messages: [...nodes.values()] }));
  return JSON.stringify({ format: FORMAT, chats }, null, 1);
}

/** Read an export file: conversations with ids of their own, so that nothing that is there is overwritten. Throws Error. */
export function imported(text) {
  let file = null;
  try { file = JSON.parse(text); } catch { /* refused below */ }
  if (file?.format !== FORMAT || !Array.isArray(file.chats)) throw new Error("This is not a file that this page exported.");
  return file.chats.map((from) => {
    const conversation = Conversation.start(textOf(from?.system));
    const ids = new Map([["", ""]]), copies = [[from, conversation.chat]];
    for (const message of listOf(from?.messages)) {
      const parent = ids.get(message?.parent);
      if (parent === undefined || !ROLES.includes(message.role)) continue;
      const node = conversation.add(parent, message.role, textOf(message.content), {
        pictures: listOf(message.pictures).filter((url) => textOf(url).startsWith("data:image/")),
        reasoning: textOf(message.reasoning), call: textOf(message.call), note: textOf(message.note),
        calls: listOf(message.calls).map((call) => ({
          id: textOf(call?.id), name: textOf(call?.name), arguments: textOf(call?.arguments),
        })),
      });
      ids.set(message.id, node.id);
      copies.push([message, node]);
    }
    for (const [old, copy] of copies) copy.chosen = ids.get(old?.chosen) ?? "";
    conversation.chat.title = textOf(from?.title).slice(0, 200);
    return conversation;
  });
}

function textOf(value) {
  return typeof value === "string" ? value : "";
}

function listOf(value) {
  return Array.isArray(value) ? value : [];
}
