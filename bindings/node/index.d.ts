// Types of the package hybridge. docs/nodejs.md is its guide.

/** Version of the package and of its native library. */
export const version: string;

/** Set the number of threads that all sessions compute on; 0: one for each fast core. Call it before anything is opened. */
export function setThreads(count: number): Promise<void>;

/** Statuses of hybridge.h; LIBRARY: the native library is missing, damaged or of another version. */
export type Status =
  | "LIBRARY" | "INVALID_ARGUMENT" | "INVALID_HANDLE" | "BUSY" | "NO_ROOM" | "INVALID_STATE" | "INVALID_ARTIFACT"
  | "UNREADABLE_FILE" | "MISSING_OPERATOR" | "OUT_OF_MEMORY" | "INTERNAL" | "CANCELLED" | "NOT_FINITE" | "BROKEN_STATE"
  | "PROGRAM_FAILED" | "INVALID_TOKEN" | "INVALID_COMMIT" | "INVALID_SLOT" | "INVALID_DRAFTER" | "INVALID_PICTURE"
  | "INVALID_GRAMMAR" | "INVALID_TEMPLATE" | "INVALID_SAVED_STATE" | "UNWRITABLE_FILE" | "OTHER_MODEL" | "UNSUPPORTED"
  | "CALLBACK_FAILED";

/** A call that was refused or failed. The message says what is wrong, what was expected and what to do. */
export class HybridgeError extends Error {
  readonly name: "HybridgeError";
  readonly code: Status;
}

/** A token's id; those of pictures are bigints below 0. */
export type Token = number | bigint;
export type Tokens = Iterable<Token> | BigInt64Array;

/** What the library has open for an object. Close it; one that nothing refers to is closed after some time. */
interface Closable {
  /** End what runs, wait for that, and give the memory back. A second call does nothing. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Sizes of a model in tokens. */
export interface ModelInfo {
  /** Most tokens of a text. */
  readonly maxSeqLen: number;
  readonly vocabSize: number;
  readonly prefillChunk: number;
  /** Most tokens of a verified block. */
  readonly verifyLen: number;
  readonly snapshotSlots: number;
  /** Most draft tokens of the drafter inside the model; 0 without one. */
  readonly draftLen: number;
  /** Pixels along a token's square; 0 for a model without pictures. */
  readonly pictureUnit: number;
  readonly maxPictureTokens: number;
  readonly placeholder: number;
  /** Tokens after which a generation ends. */
  readonly eosIds: readonly number[];
}

export interface OpenOptions {
  /** Most tokens of a text, up to what the program holds, which is the default. */
  context?: number;
  /** Fewest tokens of a prompt that the model's accelerator reads; as many as its export says by default. */
  delegateFrom?: number;
  /**
   * Continue only from states whose tokens were read by the method, the accelerator's or the CPU's, that would read them now; the
   * others are read again, and resume and load reject with UNSUPPORTED. False by default.
   */
  strictReuse?: boolean;
}

/** The folder of an artifact: its program, tokenizer and chat template, for any number of chats and sessions. */
export class Artifact implements Closable {
  private constructor();
  static open(folder: string, options?: OpenOptions): Promise<Artifact>;
  readonly info: ModelInfo;
  /** How the model is meant to be sampled, the defaults of its chats. Greedy if its generation_config.json does not say. */
  readonly sampling: Sampling;
  /** Closed with the artifact. */
  readonly model: Model;
  /** Null for an artifact without a tokenizer. */
  readonly tokenizer: Tokenizer | null;
  /** Begin a chat, with a state of its own. */
  chat(options?: ChatOptions): Promise<Chat>;
  /** Open a session: an empty state over the weights. */
  session(): Promise<Session>;
  prefixCache(bytes: number): Promise<PrefixCache>;
  /** Open a picture of RGB or RGBA pixels, of any size; `data` must not change until the promise resolves. */
  picture(picture: Pixels): Promise<Picture>;
  /** Open a grammar: JSON that fits a schema, or what a regular expression matches as a whole (Rust's syntax, if in a text). */
  grammar<T = unknown>(schema: Schema<T> | RegExp | string): Promise<Grammar<T>>;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A program and its weights, which its sessions share. */
export class Model implements Closable {
  private constructor();
  /** Open a model.pte without its folder. */
  static open(path: string, options?: OpenOptions): Promise<Model>;
  readonly info: ModelInfo;
  /**
   * Replay the steps that the export stored with the logits of the eager model. path: of an artifact's golden.json. Rejected with
   * INVALID_ARTIFACT for a damaged file, an error above the tolerance, or other bits than there must be.
   */
  validate(path: string): Promise<Validation>;
  session(): Promise<Session>;
  prefixCache(bytes: number): Promise<PrefixCache>;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Errors of logits as shares of the largest one. sameBits: all steps answered the same bits as where the model was exported. */
export interface Validation {
  readonly steps: number;
  readonly worst: number;
  readonly tolerance: number;
  readonly sameBits: boolean;
}

export interface Pixels {
  data: Uint8Array | Uint8ClampedArray;
  width: number;
  height: number;
}

/** A picture for the chats and sessions of an artifact. */
export class Picture implements Closable {
  private constructor();
  /** What stands for it among the tokens of a prompt. */
  readonly ids: readonly Token[];
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A JSON Schema, or a schema of a library that follows Standard JSON Schema, such as zod. */
export type Schema<T = unknown> =
  | { readonly [keyword: string]: unknown }
  | boolean
  | { readonly "~standard": { readonly types?: { readonly output: T } | undefined } };

/** What an answer or a text must be. It serves any number of answers. */
export class Grammar<T = unknown> implements Closable {
  private constructor();
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * How tokens are drawn: biases, penalties, temperature, topNSigma, topK, topP, minP, in transformers' order where it has them. What
 * a chat is not given is that of its artifact's `sampling`; the defaults of a session, and of what a model does not say, are below.
 */
export interface Sampling {
  /** 0, the default: greedy. */
  temperature?: number;
  /** 0, the default, for all tokens. */
  topK?: number;
  /** 1, the default, for all tokens. */
  topP?: number;
  /** 0, the default, for all tokens. */
  minP?: number;
  /** Standard deviations of the logits that a token may be below the best; 0, the default, for all tokens. */
  topNSigma?: number;
  /** 1, the default: none. */
  repetitionPenalty?: number;
  /** From -2 to 2; subtracted from the logit of each token that the generation has written. */
  presencePenalty?: number;
  /** From -2 to 2; the same for each time that it has written the token. */
  frequencyPenalty?: number;
  /** Latest tokens of the text that penalties see; -1, the default, for all. */
  repeatLastN?: number;
  /**
   * 0, the default: none. DRY subtracts dryMultiplier * dryBase ** (n - dryAllowedLength) from the logit of a token that would
   * continue a repetition of the text's last n tokens.
   */
  dryMultiplier?: number;
  /** 1.75 by default. */
  dryBase?: number;
  /** 2 by default. */
  dryAllowedLength?: number;
  /** Tokens across which no repetition goes. */
  dryBreakers?: readonly number[];
  /** Numbers from -100 to 100 that are added to the logits of tokens. */
  logitBias?: Readonly<Record<number, number>>;
  /** Gives the same text with every drafter and without one; drawn from the system by default. */
  seed?: number | bigint;
}

/** Where draft tokens come from; an Artifact or a Model is a smaller model over the same tokens. They change no text. */
export type Drafter = "auto" | "none" | "prompt-lookup" | "own" | Artifact | Model;

interface CommonOptions<T> extends Sampling {
  /** Of a chat without a limit by default, to the end of the answer or of the context; 64 for a session. */
  maxNewTokens?: number;
  drafter?: Drafter;
  grammar?: Grammar<T>;
  /** Ends the generation; the promise is then rejected with the signal's reason, and what was generated stays. */
  signal?: AbortSignal;
}

export interface GenerateOptions extends CommonOptions<unknown> {
  /** Tokens that are verified at once; 0, the default, for what is measured to be fastest. */
  blockLength?: number;
}

/** Counts and seconds of a generation. */
export interface Counts {
  tokens: number;
  proposed: number;
  accepted: number;
  verifies: number;
  decodes: number;
  rollbacks: number;
  forced: number;
  prefillSeconds: number;
  draftSeconds: number;
  verifySeconds: number;
  commitSeconds: number;
  decodeSeconds: number;
  newSeconds: number;
}

/**
 * A generation: its parts by `for await`, once, and its result by `await`. It begins at once and waits for no reader. Leaving the
 * loop early ends it; what was generated by then stays, which may be more than was read.
 */
declare class Stream<Part, Result> implements PromiseLike<Result>, AsyncIterable<Part> {
  protected constructor();
  cancel(): void;
  then<A = Result, B = never>(
    fulfilled?: ((result: Result) => A | PromiseLike<A>) | null,
    rejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B>;
  catch<B = never>(rejected?: ((reason: unknown) => B | PromiseLike<B>) | null): Promise<Result | B>;
  finally(settled?: (() => void) | null): Promise<Result>;
  [Symbol.asyncIterator](): AsyncGenerator<Part, void, undefined>;
}

export class Generation extends Stream<number, { tokens: number[]; counts: Counts }> {}

/** How the prompts of a session were read, in tokens. reason: why the accelerator is not in use; empty while it is. */
export interface PromptsRead {
  readonly delegateInUse: boolean;
  readonly delegateTokens: number;
  readonly cpuTokens: number;
  readonly reason: string;
}

/** A state over a model's weights. Its calls run one after another, in the order in which they are made. */
export class Session implements Closable {
  private constructor();
  /** Return the committed tokens. */
  tokens(): Promise<Token[]>;
  /** Return the runs of the text that the model's accelerator has read, each from its first place to before its end. */
  delegated(): Promise<[number, number][]>;
  /** Return how prompts were read: by the model's accelerator and by the CPU; null for a model without one. */
  promptsRead(): Promise<PromptsRead | null>;
  /** Commit tokens; return the logits after the last one. */
  prefill(tokens: Tokens, options?: { logits?: true }): Promise<Float32Array>;
  prefill(tokens: Tokens, options: { logits: boolean }): Promise<Float32Array | undefined>;
  /** Commit a token; return the logits after it. */
  decode(token: number, options?: { logits?: true }): Promise<Float32Array>;
  decode(token: number, options: { logits: boolean }): Promise<Float32Array | undefined>;
  /** Return the logits after each token of a block, and commit none of them. */
  verify(tokens: Tokens, options?: { logits?: true }): Promise<Float32Array[]>;
  verify(tokens: Tokens, options: { logits: boolean }): Promise<Float32Array[] | undefined>;
  /** Commit the first `count` tokens of the verified block; 0 rejects all of them. */
  commit(count: number): Promise<void>;
  /** Keep the committed state in a slot, or go back to it. */
  snapshot(slot: number): Promise<void>;
  restore(slot: number): Promise<void>;
  reset(): Promise<void>;
  /** Write the state with its slots to a file, which appears whole or not at all; restore one of the same model. */
  save(path: string, note?: string): Promise<void>;
  load(path: string): Promise<void>;
  /** Make a state in memory; go back to one of this model. */
  checkpoint(): Promise<Checkpoint>;
  resume(checkpoint: Checkpoint): Promise<void>;
  /** Bring the session to a text; return the number of tokens that did not have to be read. */
  bringTo(tokens: Tokens, cache?: PrefixCache): Promise<number>;
  /** Continue a prompt. */
  generate(prompt: Tokens, options?: GenerateOptions): Generation;
  cancel(): void;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A state in memory, from which any session of its model can continue. */
export class Checkpoint implements Closable {
  private constructor();
  readonly length: number;
  readonly bytes: number;
  readonly sharedBytes: number;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Checkpoints of a model by their texts; the least recently used go first. */
export class PrefixCache implements Closable {
  private constructor();
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A tool that the model may call. Without `run` its calls end the answer, and `Chat.giveResults` continues. */
export interface Tool<Arguments = any> {
  name: string;
  description?: string;
  parameters?: Schema<Arguments>;
  /** Return the result, as a text or as what becomes JSON. What it throws ends the answer and is thrown on. */
  run?(given: Arguments, call: { id: string; name: string; signal?: AbortSignal }): unknown;
}

/** A tool as OpenAI's API has it. */
export interface FunctionTool {
  type: "function";
  function: { name: string; description?: string; parameters?: Schema };
  run?: Tool["run"];
}

export interface ChatOptions {
  /** What the model is told before the first message. */
  system?: string;
  /** Whether the model thinks before it answers; as its chat template does by default. */
  thinking?: boolean;
  tools?: (Tool | FunctionTool)[];
  /** More variables for the chat template, such as `{ reasoning_effort: "low" }`. */
  variables?: Record<string, unknown>;
  /** Most memory for states to go back to; 256 MB by default. */
  checkpointBytes?: number;
  cache?: PrefixCache;
  /** The local time that the chat template sees, such as 2026-01-31T12:00:00. */
  now?: string;
}

export interface AnswerOptions<T = unknown> extends CommonOptions<T> {
  /** Texts before the first of which the answer ends. */
  stop?: string[];
  /** Whether they end the answer, but not the reasoning before it; false by default. */
  stopAfterReasoning?: boolean;
  /** In a chat with tools: "auto", "none", "required", or the name of one. */
  toolChoice?: string;
  /** What the answer must be; its value is then in the result. */
  schema?: Schema<T> | RegExp | string;
  /** Put before the message, in `send`. */
  pictures?: Picture[];
  /** How often the results of tools may be answered; 16 by default. */
  toolRounds?: number;
}

export interface Call {
  id: string;
  name: string;
  arguments: any;
}

export type Part =
  | { type: "reasoning"; text: string }
  | { type: "content"; text: string }
  | ({ type: "call" } & Call)
  | { type: "result"; id: string; name: string; content: string };

/** The whole answer: after tools were called, the last one. */
export interface AnswerResult<T = unknown> {
  content: string;
  reasoning: string;
  /** Calls that no tool of the chat has answered. */
  calls: Call[];
  /** The model, a stop text, maxNewTokens or a full context, or the caller. */
  ending: "model" | "stop" | "length" | "caller";
  promptTokens: number;
  cachedTokens: number;
  /** The oldest messages, which left no room for the answer and are forgotten. */
  droppedMessages: number;
  generated: Counts;
  /** The answer by its schema or grammar; undefined if it was cut off. */
  value?: T;
}

export class Answer<T = unknown> extends Stream<Part, AnswerResult<T>> {}

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  reasoning: string;
  /** The number of pictures before its content. */
  pictures: number;
  calls: Call[];
}

/** A conversation. Its calls run one after another; a failed or cancelled answer without a token changes nothing. */
export class Chat implements Closable {
  private constructor();
  send<T = unknown>(message: string, options?: AnswerOptions<T>): Answer<T>;
  /** Answer the results of the last answer's calls, in their order. */
  giveResults<T = unknown>(results: unknown[], options?: AnswerOptions<T>): Answer<T>;
  /** Answer the last message, or the last results, again. */
  retry<T = unknown>(options?: AnswerOptions<T>): Answer<T>;
  /** Go on with the last answer, such as one that ended by its length; the parts are what is new. */
  continueAnswer<T = unknown>(options?: AnswerOptions<T>): Answer<T>;
  /** Tell the model something else before the first message; an empty text for nothing. */
  setSystem(system: string): Promise<void>;
  /** Take the last message back, with all that followed. */
  undo(): Promise<void>;
  /** Begin again after the system's message. */
  reset(): Promise<void>;
  /** Write the conversation and the state to a file; continue one of this artifact, also of `hybridge chat`. */
  save(path: string): Promise<void>;
  load(path: string): Promise<void>;
  messages(): Promise<Message[]>;
  /** Return how many tokens still fit. */
  room(): Promise<number>;
  /** End the answer that runs. */
  cancel(): void;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** The tokens of texts, and the texts of tokens. */
export class Tokenizer implements Closable {
  private constructor();
  /** Open a tokenizer.json. */
  static open(path: string): Promise<Tokenizer>;
  /** around: with what begins and ends every text, such as bos; plain: texts of special tokens are text like any other. */
  encode(text: string, options?: { around?: boolean; plain?: boolean }): Promise<number[]>;
  decode(tokens: Tokens, options?: { skipSpecial?: boolean }): Promise<string>;
  stream(options?: { skipSpecial?: boolean }): Promise<TextStream>;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** The text of tokens that come one after another; a character is held back until it is complete. */
export class TextStream implements Closable {
  private constructor();
  push(token: number): string;
  finish(): string;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}
