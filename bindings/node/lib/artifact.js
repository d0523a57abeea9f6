"use strict";

const { Chat } = require("./chat.js");
const { run } = require("./errors.js");
const { Grammar } = require("./grammar.js");
const { Handle, load, native } = require("./native.js");
const { argument, checkedOptions, flag, fromIds, invalid, line, whole } = require("./options.js");
const { PrefixCache, Session } = require("./session.js");
const { Tokenizer } = require("./tokenizer.js");

/** Return what a model says about itself. */
function described(found) {
  const { artifact, model, tokenizer, eosIds, ...info } = found;
  return Object.freeze({ ...info, eosIds: Object.freeze(fromIds(eosIds)) });
}

/** Return how a model is to be used, as the addon takes it. */
function openOptions(options) {
  const known = { context: whole(1), delegateFrom: whole(1), strictReuse: flag };
  const { context = 0, delegateFrom = 0, strictReuse = false } = checkedOptions(options, known);
  return [context, delegateFrom, strictReuse];
}

/** A program and its weights, which its sessions share. */
class Model extends Handle {
  constructor(found, owner) {
    super("model", found.model, owner);
    this.info = described(found);
  }

  /** Open a model.pte without its folder. */
  static async open(path, options = {}) {
    const opening = openOptions(options);
    const addon = await load();
    return new Model(await run(addon.openModel(argument("path", line, path), ...opening)));
  }

  get modelHandle() {
    return this.handle;
  }

  /** Replay the steps that the export stored in `path`, an artifact's golden.json. */
  async validate(path) {
    const { sameBits, ...found } = await run(native().validate(this.handle, argument("path", line, path)));
    return Object.freeze({ ...found, sameBits: sameBits !== 0 });
  }

  async session() {
    return new Session(await run(native().openSession(this.handle)), this.info);
  }

  async prefixCache(bytes) {
    return new PrefixCache(await run(native().openCache(this.handle, argument("bytes", whole(0), bytes))));
  }
}

/** The folder of an artifact: its program, tokenizer and chat template, for any number of chats and sessions. */
class Artifact extends Handle {
  constructor(found) {
    super("artifact", found.artifact);
    this.model = new Model(found, this);
    this.tokenizer = found.tokenizer === 0n ? null : new Tokenizer(found.tokenizer, this);
    this.info = this.model.info;
    this.sampling = Object.freeze(found.sampling);
  }

  static async open(folder, options = {}) {
    const opening = openOptions(options);
    const addon = await load();
    return new Artifact(await run(addon.openArtifact(argument("folder", line, folder), ...opening)));
  }

  get modelHandle() {
    return this.model.handle;
  }

  chat(options = {}) {
    return Chat.over(this, options);
  }

  session() {
    return this.model.session();
  }

  prefixCache(bytes) {
    return this.model.prefixCache(bytes);
  }

  /** Open a picture of RGB or RGBA pixels, such as an ImageData. */
  async picture({ data, width, height }) {
    argument("width", whole(1), width);
    argument("height", whole(1), height);
    if (!ArrayBuffer.isView(data)) throw invalid("a picture's data must be a Uint8Array of its pixels, row by row.");
    const channels = data.byteLength / (width * height);
    if (channels !== 3 && channels !== 4) {
      throw invalid(`${data.byteLength} bytes are no picture of ${width} x ${height} pixels: 3 or 4 bytes a pixel are expected.`);
    }
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    return new Picture(await run(native().openPicture(this.modelHandle, bytes, width, height, channels === 4)));
  }

  /** Open a grammar: JSON that fits a schema (a JSON Schema, or a schema of zod), or what a regular expression matches. */
  grammar(schema) {
    return Grammar.open(this, schema);
  }

  async close() {
    await Promise.all([this.model.close(), this.tokenizer?.close()]);
    await super.close();
  }
}

/** A picture for the chats and sessions of an artifact. */
class Picture extends Handle {
  constructor({ id, ids }) {
    super("picture", id);
    this.ids = Object.freeze(fromIds(ids));
  }
}

/** Set the number of threads that all sessions compute on; 0: one for each fast core. Call it before anything is opened. */
async function setThreads(count) {
  const addon = await load();
  await run(addon.setThreads(argument("count", whole(0), count)));
}

module.exports = { Artifact, Model, Picture, setThreads };
