"use strict";

const { AsyncLocalStorage } = require("node:async_hooks");

const { HybridgeError, run } = require("./errors.js");
const { Grammar, jsonSchema } = require("./grammar.js");
const { Handle, native } = require("./native.js");
const {
  GENERATION, anything, argument, call, checkedOptions, flag, generation, invalid, line, listOf, object, text, whole,
} = require("./options.js");
const { Stream } = require("./stream.js");

const TOOL_ROUNDS = 16;
const ENDINGS = ["model", "stop", "length", "caller"]; // hybridge_ending of hybridge.h
const THINKING = { undefined: 0, true: 1, false: 2 }; // hybridge_thinking

/** The chat whose tool runs, in the calls that come of it. */
const toolOf = new AsyncLocalStorage();

/** The parts of an answer; its result is the whole of it. */
class Answer extends Stream {}

const CHAT = {
  system: line, thinking: flag, checkpointBytes: whole(0), variables: object, tools: listOf(object), now: line,
  cache: { words: "a PrefixCache", fits: (value) => typeof value?.handle === "bigint" },
};

const ANSWER = {
  ...GENERATION, stop: listOf(line), stopAfterReasoning: flag, toolChoice: line, schema: anything, pictures: listOf(object),
  toolRounds: whole(0),
};

/** A conversation, whose state stays between its turns. */
class Chat extends Handle {
  #artifact;
  #tools;

  constructor(id, artifact, tools) {
    super("chat", id);
    this.#artifact = artifact;
    this.#tools = tools;
  }

  static async over(artifact, options) {
    const { system, thinking, checkpointBytes, variables, cache, now, tools = [] } = checkedOptions(options, CHAT);
    const offered = new Map(tools.map((each) => readTool(each)).map((each) => [each.function.name, each]));
    if (offered.size < tools.length) throw invalid("two tools have the same name.");
    const words = JSON.stringify([...offered.values()].map((each) => ({ type: "function", function: each.function })));
    const wanted = {
      system, checkpointBytes, now, cache: cache?.handle ?? 0n, thinking: THINKING[thinking],
      variables: variables && JSON.stringify(variables), tools: offered.size > 0 ? words : undefined,
    };
    return new Chat(await run(native().openChat(artifact.handle, wanted)), artifact, offered);
  }

  /** Answer a message: its parts by `for await`, the whole by `await`. */
  send(message, options = {}) {
    argument("message", text, message);
    const pictures = (options?.pictures ?? []).map((each) => each.handle);
    return this.#answer(options, (wanted, take) => native().send(this.handle, { text: message, pictures }, wanted, take));
  }

  /** Answer the results of the tools that the last answer called, one for each of its calls. */
  giveResults(results, options = {}) {
    const texts = argument("results", { words: "a list", fits: Array.isArray }, results).map(resultText);
    return this.#answer(options, (wanted, take) => native().giveResults(this.handle, texts, wanted, take));
  }

  /** Answer the last message, or the last results, again. */
  retry(options = {}) {
    return this.#answer(options, (wanted, take) => native().retry(this.handle, undefined, wanted, take));
  }

  /** Go on with the last answer, such as one that ended by its length. */
  continueAnswer(options = {}) {
    return this.#answer(options, (wanted, take) => native().continueAnswer(this.handle, undefined, wanted, take));
  }

  /** Tell the model something else before the first message; an empty text for nothing. */
  setSystem(system) {
    return this.call("setSystem", argument("system", text, system));
  }

  undo() {
    return this.call("undo");
  }

  reset() {
    return this.call("resetChat");
  }

  save(path) {
    return this.call("saveChat", argument("path", line, path));
  }

  load(path) {
    return this.call("loadChat", argument("path", line, path));
  }

  /** Return the conversation so far. */
  async messages() {
    const { messages } = await this.call("messages");
    return messages.map(({ calls, ...message }) => ({ ...message, calls: calls.map(readCall) }));
  }

  /** Return how many tokens still fit. */
  async room() {
    return (await this.call("messages")).room;
  }

  inTurn(body) {
    if (toolOf.getStore() === this) {
      const words = "this chat waits for the tool that calls it: use it after the answer, or another chat.";
      return Promise.reject(new HybridgeError("BUSY", words));
    }
    return super.inTurn(body);
  }

  #answer(options, ask) {
    const { signal, schema, grammar, toolRounds = TOOL_ROUNDS } = checkedOptions(options, ANSWER);
    if (schema !== undefined && grammar !== undefined) throw invalid("give a schema or a grammar, not both.");
    const wanted = generation(options, this.#artifact.sampling);
    const round = new Round(this, this.#tools, wanted, signal);
    const begin = (push) =>
      this.inTurn(async () => {
        const own = schema === undefined ? undefined : await Grammar.open(this.#artifact, schema);
        try {
          if (own !== undefined) wanted.grammar = own.handle;
          const answer = await round.all(ask, push, toolRounds);
          if (answer.ending !== "model") return answer;
          const value = await (own ?? grammar)?.read?.(answer.content);
          return value === undefined ? answer : { ...answer, value };
        } finally {
          await own?.close();
        }
      });
    return new Answer(begin, () => round.cancel(), signal, (answer) => answer.ending === "caller" || round.stopped);
  }
}

/** An answer with the rounds of its tools. */
class Round {
  stopped = false;

  constructor(chat, tools, wanted, signal) {
    Object.assign(this, { chat, tools, wanted, signal });
  }

  cancel() {
    this.stopped = true;
    this.chat.cancel();
  }

  async all(ask, push, rounds) {
    let answer = await this.one(ask, push);
    for (; answer.calls.length > 0 && !this.stopped; --rounds) {
      const chosen = answer.calls.map((each) => this.tools.get(each.name)?.run);
      if (rounds === 0 || chosen.includes(undefined)) break;
      const results = await Promise.all(answer.calls.map((each, i) => this.runTool(chosen[i], each, push)));
      if (this.stopped) break;
      if (this.wanted.toolChoice !== "none") this.wanted.toolChoice = undefined; // a required call was made
      answer = await this.one((wanted, take) => native().giveResults(this.chat.handle, results, wanted, take), push);
    }
    return answer;
  }

  async one(ask, push) {
    if (this.stopped) throw new HybridgeError("CANCELLED", "it was cancelled before it began; nothing has changed.");
    const parts = { content: "", reasoning: "", calls: [] };
    const take = (content, reasoning, calls) => {
      parts.content += content;
      parts.reasoning += reasoning;
      if (reasoning !== "") push({ type: "reasoning", text: reasoning });
      if (content !== "") push({ type: "content", text: content });
      for (const each of calls.map(readCall)) {
        parts.calls.push(each);
        push({ type: "call", ...each });
      }
    };
    const { ending, ...counts } = await run(ask(this.wanted, take));
    return { ...parts, ending: ENDINGS[ending], ...counts };
  }

  async runTool(tool, { id, name, arguments: given }, push) {
    const content = resultText(await toolOf.run(this.chat, () => tool(given, { id, name, signal: this.signal })));
    push({ type: "result", id, name, content });
    return content;
  }
}

/** Return a tool as OpenAI's API has it, with what runs it. */
function readTool(tool) {
  const { name, description, parameters } = tool.function ?? tool;
  argument("the name of a tool", text, name);
  if (tool.run !== undefined) argument(`run of the tool ${name}`, call, tool.run);
  const schema = parameters === undefined ? { type: "object", properties: {} } : jsonSchema(parameters).schema;
  return { function: { name, description, parameters: schema }, run: tool.run };
}

function readCall({ id, name, arguments: words }) {
  return { id, name, arguments: words === "" ? {} : JSON.parse(words) };
}

function resultText(result) {
  return typeof result === "string" ? result : (JSON.stringify(result) ?? "");
}

module.exports = { Answer, Chat };
