"use strict";

const { HybridgeError, run } = require("./errors.js");
const { Handle, native } = require("./native.js");
const { GENERATION, argument, checkedOptions, flag, fromIds, generation, instanceOf, line, text, toIds, whole } = require("./options.js");
const { Stream } = require("./stream.js");

const DEFAULTS = { maxNewTokens: 64 };

/** The tokens of Session.generate, one by one; its result has all of them, and counts. */
class Generation extends Stream {}

/** A state over a model's weights: the tokens that were read, and what the model remembers of them. */
class Session extends Handle {
  #info;

  constructor(id, info) {
    super("session", id);
    this.#info = info;
  }

  /** Return the committed tokens; ids of pictures are bigints. */
  async tokens() {
    return fromIds(await this.call("tokens"));
  }

  /** Return the runs of the text that the model's accelerator has read, each from its first place to before its end. */
  async delegated() {
    const places = fromIds(await this.call("delegated"));
    return Array.from({ length: places.length / 2 }, (_, i) => places.slice(2 * i, 2 * i + 2));
  }

  /** Return how prompts were read: by the model's accelerator and by the CPU; null for a model without one. */
  async promptsRead() {
    try {
      const { delegateInUse, ...read } = await this.call("promptsRead");
      return { delegateInUse: delegateInUse !== 0, ...read };
    } catch (error) {
      if (error.code === "UNSUPPORTED") return null;
      throw error;
    }
  }

  /** Commit tokens; return the logits after the last one, or undefined if they are not wanted. */
  async prefill(tokens, options = {}) {
    const logits = this.#logits(options);
    await this.call("prefill", toIds(tokens), logits);
    return logits;
  }

  /** Commit a token; return the logits after it. */
  async decode(token, options = {}) {
    const logits = this.#logits(options);
    await this.call("decode", toIds([token])[0], logits);
    return logits;
  }

  /** Return the logits after each token of a block, and commit none. */
  async verify(tokens, options = {}) {
    const ids = toIds(tokens);
    if (ids.length > this.#info.verifyLen) {
      throw new HybridgeError("INVALID_TOKEN", `${ids.length} tokens, and a block has at most ${this.#info.verifyLen}.`);
    }
    const logits = this.#logits(options, ids.length);
    await this.call("verify", ids, logits);
    const size = this.#info.vocabSize;
    return logits && Array.from(ids, (_, i) => logits.subarray(i * size, (i + 1) * size));
  }

  #logits(options, count = 1) {
    const { logits = true } = checkedOptions(options, { logits: flag });
    return logits ? new Float32Array(count * this.#info.vocabSize) : undefined;
  }

  commit(count) {
    return this.call("commit", argument("count", whole(0), count));
  }

  snapshot(slot) {
    return this.call("snapshot", argument("slot", whole(0), slot));
  }

  restore(slot) {
    return this.call("restore", argument("slot", whole(0), slot));
  }

  reset() {
    return this.call("reset");
  }

  save(path, note = "") {
    return this.call("save", argument("path", line, path), argument("note", line, note));
  }

  load(path) {
    return this.call("loadState", argument("path", line, path));
  }

  async checkpoint() {
    return new Checkpoint(await this.call("makeCheckpoint"));
  }

  resume(checkpoint) {
    return this.call("resume", argument("checkpoint", instanceOf(Checkpoint), checkpoint).handle);
  }

  /** Bring the session to a text; return the number of tokens that did not have to be read. */
  bringTo(tokens, cache) {
    if (cache !== undefined) argument("cache", instanceOf(PrefixCache), cache);
    return this.inTurn(() => run(native().bringTo(this.handle, cache?.handle ?? 0n, toIds(tokens))));
  }

  generate(prompt, options = {}) {
    const { signal } = checkedOptions(options, { ...GENERATION, blockLength: whole(0) });
    const ids = toIds(prompt);
    const wanted = generation(options, DEFAULTS);
    const tokens = [];
    let stopped = false;
    const begin = (push) =>
      this.inTurn(async () => {
        if (stopped) throw new HybridgeError("CANCELLED", "it was cancelled before it began; nothing has changed.");
        const take = (token) => {
          tokens.push(token);
          push(token);
        };
        return { tokens, counts: await run(native().generate(this.handle, ids, wanted, take)) };
      });
    const cancel = () => {
      stopped = true;
      this.cancel();
    };
    return new Generation(begin, cancel, signal, () => stopped);
  }
}

/** A state in memory, from which any session of its model can continue. */
class Checkpoint extends Handle {
  constructor({ id, length, bytes, sharedBytes }) {
    super("checkpoint", id);
    Object.assign(this, { length, bytes, sharedBytes });
  }
}

/** Checkpoints of a model by their texts; the least recently used go first. */
class PrefixCache extends Handle {
  constructor(id) {
    super("cache", id);
  }
}

module.exports = { Checkpoint, Generation, PrefixCache, Session };
