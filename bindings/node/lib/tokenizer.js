"use strict";

const { asHybridgeError, run } = require("./errors.js");
const { Handle, load, native } = require("./native.js");
const { argument, checkedOptions, flag, fromIds, line, text, toIds } = require("./options.js");

const AROUND = 1; // hybridge_reading of hybridge.h
const PLAIN = 2;

/** The tokens of texts, and the texts of tokens. */
class Tokenizer extends Handle {
  constructor(id, owner) {
    super("tokenizer", id, owner);
  }

  static async open(path) {
    const addon = await load();
    return new Tokenizer(await run(addon.openTokenizer(argument("path", line, path))));
  }

  async encode(words, options = {}) {
    const { around = true, plain = false } = checkedOptions(options, { around: flag, plain: flag });
    const reading = (around ? AROUND : 0) + (plain ? PLAIN : 0);
    return fromIds(await run(native().encode(this.handle, argument("text", text, words), reading)));
  }

  async decode(tokens, options = {}) {
    const { skipSpecial = true } = checkedOptions(options, { skipSpecial: flag });
    return run(native().decodeText(this.handle, toIds(tokens), skipSpecial));
  }

  async stream(options = {}) {
    const { skipSpecial = true } = checkedOptions(options, { skipSpecial: flag });
    return new TextStream(await run(native().openText(this.handle, skipSpecial)));
  }
}

/** The text of tokens that come one after another; a character is held back until it is complete. */
class TextStream extends Handle {
  constructor(id) {
    super("text", id);
  }

  push(token) {
    return this.#text(toIds([token])[0]);
  }

  finish() {
    return this.#text(undefined);
  }

  #text(token) {
    try {
      return native().pushText(this.handle, token);
    } catch (error) {
      throw asHybridgeError(error);
    }
  }
}

module.exports = { TextStream, Tokenizer };
