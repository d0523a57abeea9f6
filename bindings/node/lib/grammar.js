"use strict";

const { run } = require("./errors.js");
const { Handle, native } = require("./native.js");
const { invalid } = require("./options.js");

const JSON_SCHEMA = 0; // hybridge_grammar_kind of hybridge.h
const REGEX = 1;

/** What an answer or a text must be. */
class Grammar extends Handle {
  /** Return the value of a complete text, checked by the schema. */
  read;

  constructor(id, read) {
    super("grammar", id);
    this.read = read;
  }

  static async open({ tokenizer }, wanted) {
    if (tokenizer === null) throw invalid("the artifact has no tokenizer, which a grammar needs.");
    const open = async (kind, words) => run(native().openGrammar(tokenizer.handle, kind, words));
    if (wanted instanceof RegExp) {
      if (wanted.flags.replace(/[gu]/g, "") !== "") throw invalid(`flags of ${wanted} are not followed; write them as (?i) in a text.`);
      return new Grammar(await open(REGEX, wanted.source), (words) => words);
    }
    if (typeof wanted === "string") return new Grammar(await open(REGEX, wanted), (words) => words);
    const { schema, check } = jsonSchema(wanted);
    return new Grammar(await open(JSON_SCHEMA, JSON.stringify(schema)), async (words) => check(JSON.parse(words)));
  }
}

/** Return the JSON Schema of a schema, and what checks a value by it: by the standard that zod and others follow. */
function jsonSchema(wanted) {
  if ((typeof wanted !== "object" && typeof wanted !== "function" && typeof wanted !== "boolean") || wanted === null) {
    throw invalid("a schema must be a JSON Schema, a schema of zod, or a regular expression.");
  }
  const standard = wanted["~standard"];
  if (standard === undefined) return { schema: wanted, check: (value) => value };
  const target = { target: "draft-2020-12" };
  const schema = standard.jsonSchema?.input(target) ?? wanted.toJSONSchema?.(target);
  if (schema === undefined) {
    throw invalid(`a schema of ${standard.vendor} is not known as JSON Schema: convert it, as by z.toJSONSchema(schema).`);
  }
  const check = async (value) => {
    const result = await standard.validate(value);
    if (result.issues) throw invalid(`the answer does not fit the schema: ${result.issues.map((each) => each.message).join("; ")}.`);
    return result.value;
  };
  return { schema, check };
}

module.exports = { Grammar, jsonSchema };
