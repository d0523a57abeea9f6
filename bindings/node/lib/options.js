"use strict";

const { HybridgeError } = require("./errors.js");

function invalid(message) {
  return new HybridgeError("INVALID_ARGUMENT", message);
}

/** Checks of a value: each has words for what is expected. */
const text = { words: "a text", fits: (value) => typeof value === "string" };
const line = { words: "a text without the character NUL", fits: (value) => typeof value === "string" && !value.includes("\0") };
const real = { words: "a number", fits: (value) => typeof value === "number" && !Number.isNaN(value) };
const flag = { words: "true or false", fits: (value) => typeof value === "boolean" };
const call = { words: "a function", fits: (value) => typeof value === "function" };
const object = { words: "an object", fits: (value) => typeof value === "object" && value !== null && !Array.isArray(value) };
const signal = { words: "an AbortSignal", fits: (value) => value instanceof AbortSignal };
const anything = { words: "a value", fits: () => true };

function whole(least) {
  return { words: `a whole number from ${least} on`, fits: (value) => Number.isSafeInteger(value) && value >= least };
}

function listOf(each) {
  return { words: `a list, each element ${each.words}`, fits: (value) => Array.isArray(value) && value.every(each.fits) };
}

function oneOf(...names) {
  return { words: names.map((name) => JSON.stringify(name)).join(" or "), fits: (value) => names.includes(value) };
}

function instanceOf(...classes) {
  return {
    words: `of class ${classes.map((each) => each.name).join(" or ")}`,
    fits: (value) => classes.some((each) => value instanceof each),
  };
}

/** Return a value that fits. Throws INVALID_ARGUMENT. */
function argument(name, check, value) {
  if (!check.fits(value)) throw invalid(`${name} must be ${check.words}, and is ${shown(value)}.`);
  return value;
}

/** Return options that are all known and fit; those that are not given are undefined. Throws INVALID_ARGUMENT. */
function checkedOptions(options, known) {
  argument("options", object, options);
  for (const [name, value] of Object.entries(options)) {
    if (!Object.hasOwn(known, name)) throw invalid(`there is no option ${name}; there are ${Object.keys(known).join(", ")}.`);
    if (value !== undefined) argument(name, known[name], value);
  }
  return options;
}

function shown(value) {
  if (typeof value === "function") return "a function";
  if (typeof value === "object" && value !== null) return `of class ${value.constructor?.name ?? "Object"}`;
  return typeof value === "string" ? JSON.stringify(value.slice(0, 40)) : String(value);
}

/** Return token ids as the addon takes them: numbers, and bigints for those of pictures. */
function toIds(tokens) {
  if (tokens instanceof BigInt64Array) return tokens;
  try {
    return BigInt64Array.from(tokens, BigInt);
  } catch {
    throw new HybridgeError("INVALID_TOKEN", "tokens must be an array of whole numbers, or of a picture's ids.");
  }
}

/** Return token ids of the addon as numbers, those of pictures as bigints. */
function fromIds(ids) {
  return Array.from(ids, (id) => (id >= 0n ? Number(id) : id));
}

const DRAFTERS = { none: 0, "prompt-lookup": 1, own: 2, auto: 5 };
const DRAFT_MODEL = 3;
const drafter = {
  words: `${Object.keys(DRAFTERS).map((name) => JSON.stringify(name)).join(", ")}, or an Artifact or Model with a smaller model`,
  fits: (value) => Object.hasOwn(DRAFTERS, value) || typeof value?.modelHandle === "bigint",
};
const grammar = { words: "a Grammar", fits: (value) => typeof value?.handle === "bigint" };

const biases = {
  words: "an object with a number for each token, such as { 17: -100 }",
  fits: (value) => object.fits(value) && Object.entries(value).every(([token, bias]) => /^\d{1,15}$/.test(token) && real.fits(bias)),
};

/** How tokens are drawn, by hybridge_sampling of hybridge.h. */
const SAMPLING = {
  temperature: real, topK: whole(0), topP: real, minP: real, topNSigma: real,
  repetitionPenalty: real, presencePenalty: real, frequencyPenalty: real, repeatLastN: whole(-1),
  dryMultiplier: real, dryBase: real, dryAllowedLength: whole(0), dryBreakers: listOf(whole(0)), logitBias: biases,
  seed: { words: "a whole number or a bigint", fits: (value) => Number.isSafeInteger(value) || typeof value === "bigint" },
};

/** Options of each generation. */
const GENERATION = { maxNewTokens: whole(1), drafter, ...SAMPLING, grammar, signal };

/**
 * Return the generation that the addon takes.
 *
 * @param defaults of maxNewTokens, which has no limit without one, and of the sampling, which is greedy without them.
 */
function generation(options, defaults) {
  const from = options.drafter ?? "auto";
  const chosen = Object.fromEntries(Object.keys(SAMPLING).map((name) => [name, options[name] ?? defaults[name]]));
  return {
    ...chosen,
    dryBreakers: toIds(chosen.dryBreakers ?? []),
    logitBias: Object.entries(chosen.logitBias ?? {}).map(([token, bias]) => ({ token: Number(token), bias })),
    seed: chosen.seed === undefined ? undefined : BigInt(chosen.seed),
    maxNewTokens: options.maxNewTokens ?? defaults.maxNewTokens ?? Number.MAX_SAFE_INTEGER,
    stopAfterReasoning: options.stopAfterReasoning ?? false,
    blockLength: options.blockLength ?? 0,
    drafter: DRAFTERS[from] ?? DRAFT_MODEL,
    draft: from.modelHandle ?? 0n,
    grammar: options.grammar?.handle ?? 0n,
    toolChoice: options.toolChoice,
    stop: options.stop ?? [],
  };
}

module.exports = {
  GENERATION, anything, argument, call, checkedOptions, flag, fromIds, generation, instanceOf, invalid, line, listOf, object, oneOf,
  real, text, toIds, whole,
};
