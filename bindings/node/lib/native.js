"use strict";

const fs = require("node:fs");
const path = require("node:path");

const { HybridgeError, run } = require("./errors.js");

const PLATFORM = `${process.platform}-${process.arch}`;
const FOLDER = path.join(__dirname, "..", "native", PLATFORM);
const LIBRARY_FILE = process.platform === "darwin" ? (name) => `lib${name}.dylib` : (name) => `lib${name}.so`;

/** Libraries that libhybridge names, in an order in which they can be loaded; one that is not beside it is not needed. */
const COMPANIONS = [
  "executorch", "executorch_threadpool", "executorch_kernels_optimized", "executorch_backend_xnnpack",
  "executorch_kernels_quantized", "hybridge_kernels",
];

/** Kinds of handles, in the addon's order. */
const KINDS = ["model", "picture", "session", "checkpoint", "cache", "tokenizer", "text", "grammar", "artifact", "chat"];

let addon;
let loading;

/** Return the addon, with the library loaded. The first call loads it, on another thread. */
async function load() {
  loading ??= loadOnce().catch((error) => {
    loading = undefined; // HYBRIDGE_LIBRARY may be set right
    throw error;
  });
  return loading;
}

async function loadOnce() {
  const file = path.join(FOLDER, "hybridge.node");
  if (!fs.existsSync(file)) {
    throw new HybridgeError(
      "LIBRARY", `this package of hybridge is not for ${PLATFORM}: ${file} is missing. Install the package of this platform.`,
    );
  }
  const found = require(file);
  const core = process.env.HYBRIDGE_LIBRARY || path.join(FOLDER, LIBRARY_FILE("hybridge"));
  const beside = COMPANIONS.map((name) => path.join(path.dirname(core), LIBRARY_FILE(name)));
  try {
    await found.load([...beside.filter((each) => fs.existsSync(each)), core]);
  } catch (error) {
    throw new HybridgeError("LIBRARY", error.message);
  }
  addon = found;
  process.once("exit", () => found.stop());
  return found;
}

/** Return the addon. Something was opened before, so it is loaded. */
function native() {
  return addon;
}

const forgotten = new FinalizationRegistry(({ kind, id }) => addon.close(kind, id).catch(() => {}));

/** What the library has open for an object; given back by close(), or some time after nothing refers to the object. */
class Handle {
  #kind;
  #id;
  #owner;
  #last = Promise.resolve();

  /** owner: the object that closes this one, or undefined. */
  constructor(kind, id, owner) {
    this.#kind = KINDS.indexOf(kind);
    this.#id = id;
    this.#owner = owner;
    if (owner === undefined) forgotten.register(this, { kind: this.#kind, id }, this);
  }

  /** The library's id. Throws after close(). */
  get handle() {
    if (this.#id === 0n) {
      throw new HybridgeError("INVALID_HANDLE", `this ${KINDS[this.#kind]} is closed: open another one.`);
    }
    return this.#id;
  }

  /** Run a call after those that this object began before; an object does one thing at a time. */
  async inTurn(body) {
    const before = this.#last;
    let end;
    this.#last = new Promise((resolve) => {
      end = resolve;
    });
    await before;
    try {
      return await body();
    } finally {
      end();
    }
  }

  /** Call a function of the addon with this handle, in turn. */
  async call(name, ...values) {
    return await this.inTurn(async () => await run(addon[name](this.handle, ...values)));
  }

  /** End the generation that runs. It does nothing if none does. */
  cancel() {
    if (this.#id !== 0n) addon.cancel(this.#kind, this.#id);
  }

  /** End what runs, wait for that, and give the memory back. A second call does nothing. */
  close() {
    this.cancel();
    return this.inTurn(async () => {
      if (this.#id === 0n) return;
      const id = this.#id;
      this.#id = 0n;
      if (this.#owner !== undefined) return;
      forgotten.unregister(this);
      await run(addon.close(this.#kind, id));
    });
  }
}

if (Symbol.asyncDispose) Handle.prototype[Symbol.asyncDispose] = Handle.prototype.close;

module.exports = { Handle, load, native };
