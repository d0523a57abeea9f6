// The same objects as by require(), so that a program may use both.
import hybridge from "./index.js";

export const {
  Answer, Artifact, Chat, Checkpoint, Generation, Grammar, HybridgeError, Model, Picture, PrefixCache, Session, TextStream,
  Tokenizer, setThreads, version,
} = hybridge;
