// The list of saved conversations: search, rename, delete, export and import.

import { exported, imported, Conversation } from "./conversation.js";
import { at, button, download, made } from "./elements.js";

const MOST_LISTED = 500, LARGEST_IMPORT = 256 << 20;

export class Sidebar {
  /** acts: open(id), removing(id), removed(id), renamed(chat), failed(words). current: returns the id of the conversation that is shown. */
  constructor(store, current, acts) {
    Object.assign(this, { store, current, acts, searching: null });
    at("search").addEventListener("input", () => {
      clearTimeout(this.due);
      this.due = setTimeout(() => this.draw(), 150);
    });
    at("export-all").addEventListener("click", () => this.exportAll());
    at("import").addEventListener("change", (event) => this.import(event.target));
    at("open-side").addEventListener("click", () => this.open(!document.body.classList.contains("side-open")));
    at("close-side").addEventListener("click", () => this.open(false));
    at("shade").addEventListener("click", () => this.open(false));
    this.wide = matchMedia("(min-width: 800px)");
    this.wide.addEventListener("change", () => this.open(false));
    this.open(false);
  }

  /** Show or hide the list on a narrow screen; on a wide one it is always there. */
  open(isOpen) {
    const isShown = isOpen && !this.wide.matches, had = at("side").contains(document.activeElement);
    document.body.classList.toggle("side-open", isShown);
    at("side").inert = !isShown && !this.wide.matches;
    at("talk").inert = isShown;
    at("open-side").setAttribute("aria-expanded", String(isShown));
    if (isShown) at("new").focus();
    else if (had && !this.wide.matches) at("open-side").focus();
  }

  /** Write the list again, with what is searched for. */
  async draw() {
    this.searching?.abort();
    const search = this.searching = new AbortController(), words = at("search").value.trim();
    const found = words ? await this.store.search(words, search.signal) : null;
    const chats = (await this.store.chats()).filter((chat) => !found || found.has(chat.id));
    if (search.signal.aborted) return;
    at("chats").replaceChildren(...chats.slice(0, MOST_LISTED).map((chat) => this.entry(chat, found?.get(chat.id) ?? "")));
    const nothing = this.store.keeps ? "No conversations yet." : "This browser window keeps no conversations.";
    at("found").textContent = found ? `${chats.length} found` : chats.length ? "" : nothing;
  }

  entry(chat, piece) {
    const item = made("li"), link = made("a", "", chat.title || "Untitled");
    link.href = `#${chat.id}`;
    link.addEventListener("click", () => this.open(false));
    link.append(made("small", "", piece || dateOf(chat.changed)));
    if (chat.id === this.current()) link.setAttribute("aria-current", "page");
    const tools = made("span", "tools");
    tools.append(
      button("Rename", "", () => this.rename(item, chat)),
      button("Delete", "", () => this.remove(chat)),
    );
    for (const each of tools.children) each.setAttribute("aria-label", `${each.textContent} ${chat.title || "Untitled"}`);
    item.append(link, tools);
    return item;
  }

  rename(item, chat) {
    const field = made("input");
    field.value = chat.title;
    field.maxLength = 200;
    field.setAttribute("aria-label", "Title of the conversation");
    const end = async (isKept) => {
      if (isKept && field.value.trim()) {
        chat.title = field.value.trim();
        await this.store.save(chat);
        this.acts.renamed(chat);
      }
      await this.draw();
      at("chats").querySelector(`a[href="#${chat.id}"]`)?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") { event.stopPropagation(); end(false); }
    });
    item.replaceChildren(field);
    field.focus();
    field.select();
  }

  async remove(chat) {
    if (!(await confirmed(`Delete “${chat.title || "Untitled"}”? It cannot be brought back.`))) return;
    this.acts.removing(chat.id);
    await this.store.remove(chat.id);
    this.acts.removed(chat.id);
    await this.draw();
    at("new").focus();
  }

  async exportAll() {
    const conversations = [];
    for (const chat of await this.store.chats()) conversations.push(new Conversation(chat, await this.store.messages(chat.id)));
    download("conversations.json", exported(conversations), "application/json");
  }

  async import(field) {
    const file = field.files[0];
    field.value = "";
    try {
      if (!file) return;
      if (file.size > LARGEST_IMPORT) throw new Error("This file is larger than 256 MB.");
      const conversations = imported(await file.text());
      for (const { chat, nodes } of conversations) await this.store.save(chat, [...nodes.values()]);
      await this.draw();
      if (conversations.length) this.acts.open(conversations[0].chat.id);
    } catch (error) {
      this.acts.failed(error.message);
    }
  }
}

/** Ask a question that is answered with yes or no. */
function confirmed(words) {
  const dialog = at("confirm");
  at("confirm-words").textContent = words;
  dialog.returnValue = "";
  dialog.showModal();
  at("confirm-no").focus();
  return new Promise((resolve) => {
    at("confirm-yes").onclick = () => dialog.close("yes");
    at("confirm-no").onclick = () => dialog.close("");
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
  });
}

function dateOf(time) {
  const date = new Date(time), isToday = date.toDateString() === new Date().toDateString();
  return isToday ? date.toLocaleTimeString("en", { timeStyle: "short" }) : date.toLocaleDateString("en", { dateStyle: "medium" });
}
