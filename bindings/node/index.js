"use strict";

const { version } = require("./package.json");
const { Artifact, Model, Picture, setThreads } = require("./lib/artifact.js");
const { Answer, Chat } = require("./lib/chat.js");
const { HybridgeError } = require("./lib/errors.js");
const { Grammar } = require("./lib/grammar.js");
const { Checkpoint, Generation, PrefixCache, Session } = require("./lib/session.js");
const { TextStream, Tokenizer } = require("./lib/tokenizer.js");

module.exports = {
  Answer, Artifact, Chat, Checkpoint, Generation, Grammar, HybridgeError, Model, Picture, PrefixCache, Session, TextStream,
  Tokenizer, setThreads, version,
};
