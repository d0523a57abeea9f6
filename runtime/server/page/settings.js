// Settings: kept in this browser, but for the API key, which is forgotten with its tab.

import { at, made } from "./elements.js";

/** Fields of a request that are numbers, by their names in it. Left empty, the server's default holds. */
const NUMBERS = [
  { name: "temperature", words: "Temperature", min: 0, max: 2, step: 0.1, help: "0 takes the likeliest words; more is more varied." },
  { name: "max_completion_tokens", words: "Longest answer, in tokens", min: 1, step: 1, help: "The answer ends there." },
];
const MORE_NUMBERS = [
  { name: "top_p", words: "Top p", min: 0.01, max: 1, step: 0.01, help: "Only the likeliest words, up to this probability together." },
  { name: "top_k", words: "Top k", min: 0, max: 1000, step: 1, help: "Only this many of the likeliest words; 0 for all." },
  { name: "min_p", words: "Min p", min: 0, max: 1, step: 0.01, help: "Only words at least this share as likely as the likeliest." },
  { name: "repetition_penalty", words: "Repetition penalty", min: 0.1, max: 2, step: 0.05, help: "Above 1, used words become less likely." },
  { name: "presence_penalty", words: "Presence penalty", min: -2, max: 2, step: 0.1, help: "Above 0, words of the answer come back less often." },
  { name: "frequency_penalty", words: "Frequency penalty", min: -2, max: 2, step: 0.1, help: "The same, more with each time that a word was used." },
  { name: "seed", words: "Seed", min: 0, step: 1, help: "The same number gives the same answer again." },
];
const KEPT = "hybridge.settings";

export class Settings {
  /** changed: called after each change. */
  constructor(changed) {
    this.values = read();
    this.changed = changed;
    this.dialog = at("settings");
    at("numbers").append(...NUMBERS.map(fieldOf));
    at("more-numbers").append(...MORE_NUMBERS.map(fieldOf));
    for (const field of this.dialog.querySelectorAll("[data-setting]")) {
      const name = field.dataset.setting;
      if (field.type === "checkbox") field.checked = this.values[name] === true;
      else field.value = this.values[name] ?? "";
      field.addEventListener("change", () => this.set(name, field.type === "checkbox" ? field.checked : field.value));
    }
    at("close-settings").addEventListener("click", () => this.dialog.close());
    at("key").value = sessionStorage.getItem("key") ?? "";
    this.applyColours();
  }

  get key() {
    return at("key").value;
  }

  set(name, value) {
    this.values[name] = value;
    localStorage.setItem(KEPT, JSON.stringify(this.values));
    this.applyColours();
    this.changed(name);
  }

  applyColours() {
    document.documentElement.dataset.colours = this.values.colours || "system";
  }

  /** Return the fields of a request that are set. Throws Error for tools that are no JSON. */
  request() {
    const fields = {};
    for (const { name } of [...NUMBERS, ...MORE_NUMBERS]) {
      const text = this.values[name] ?? "";
      if (text !== "" && Number.isFinite(Number(text))) fields[name] = Number(text);
    }
    if (this.values.thinking) fields.chat_template_kwargs = { enable_thinking: this.values.thinking === "on" };
    if (this.values.drops) fields.truncation = "auto";
    if (this.values.tools?.trim()) fields.tools = toolsOf(this.values.tools);
    return fields;
  }
}

function read() {
  try {
    const values = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
    return values && typeof values === "object" ? values : {};
  } catch {
    return {};
  }
}

function toolsOf(text) {
  try {
    const tools = JSON.parse(text);
    if (Array.isArray(tools)) return tools;
  } catch { /* said below */ }
  throw new Error("The tools in the settings are not a list in JSON. Correct them, or leave the field empty.");
}

function fieldOf({ name, words, help, ...limits }) {
  const label = made("label", "field", words), field = made("input"), hint = made("small", "", help);
  field.type = "number";
  field.id = name;
  field.placeholder = "the server's";
  field.dataset.setting = name;
  hint.id = `${name}-help`;
  field.setAttribute("aria-describedby", hint.id);
  Object.assign(field, limits);
  const frame = made("div");
  label.append(field);
  frame.append(label, hint);
  return frame;
}
