// The installed package as an app calls it. $CASES: a JSON file with artifacts, and with what Python's binding gives of them.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { Artifact, HybridgeError, Model, Tokenizer, version } from "hybridge";

const cases = JSON.parse(readFileSync(process.env.CASES, "utf8"));
const folder = mkdtempSync(join(tmpdir(), "hybridge-"));
const QUESTION = "how to read a file";
const CITY = { type: "object", properties: { city: { enum: ["Oslo", "Rome"] } }, required: ["city"], additionalProperties: false };

const refused = (code) => (error) => error instanceof HybridgeError && error.code === code && error.message.length > 10;
const best = (logits) => logits.indexOf(Math.max(...logits));

async function collect(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

test("both kinds of modules give the same objects", () => {
  const required = createRequire(import.meta.url)("hybridge");
  assert.equal(required.Artifact, Artifact);
  assert.equal(version, cases.version);
});

test("a chat streams, goes back and is kept in a file", async () => {
  const artifact = await Artifact.open(cases.demo);
  const chat = await artifact.chat();
  await artifact.close(); // chats keep what they need
  await assert.rejects(chat.undo(), refused("INVALID_STATE"));
  const said = (await collect(chat.send(QUESTION, { maxNewTokens: 40 }))).map((part) => part.text).join("");
  assert.equal(said, cases.said);
  assert.deepEqual((await chat.messages()).map(({ role, content }) => [role, content]), [["user", QUESTION], ["assistant", said]]);
  const file = join(folder, "état 🦜");
  await chat.save(file);
  await chat.undo();
  assert.deepEqual(await chat.messages(), []);
  await chat.load(file);
  const again = await chat.retry({ maxNewTokens: 40 });
  assert.equal(again.content, said);
  assert.equal(again.ending, "length");
  assert.ok(again.cachedTokens > 0 && again.generated.tokens === 40);
  await chat.send("漢字 <|endoftext|> 👩", { maxNewTokens: 5 });
  await assert.rejects(chat.send("word ".repeat(4000)), refused("NO_ROOM"));
  await assert.rejects(chat.load(join(folder, "none")), refused("UNREADABLE_FILE"));
  await chat.reset();
  assert.equal((await chat.send(QUESTION, { stop: ["le"] })).content, said.slice(0, said.indexOf("le")));
  await chat.reset();
  const first = chat.send(QUESTION, { maxNewTokens: 40 });
  const second = chat.send("And then?", { maxNewTokens: 5 }); // after the first
  assert.deepEqual([(await first).content, (await second).generated.tokens], [said, 5]);
  const waiting = chat.send(QUESTION);
  const closed = Promise.all([chat.close(), chat.close()]);
  await Promise.allSettled([waiting, closed]);
  await closed;
  await assert.rejects(chat.reset(), refused("INVALID_HANDLE"));
});

test("an answer ends by a signal, by the loop and by cancel", async () => {
  const artifact = await Artifact.open(cases.demo);
  const chat = await artifact.chat();
  const controller = new AbortController();
  const stream = chat.send(QUESTION, { maxNewTokens: 1500, signal: controller.signal });
  const reading = (async () => {
    for await (const part of stream) if (part.text) controller.abort();
  })();
  await assert.rejects(reading, { name: "AbortError" });
  assert.equal((await chat.messages()).length, 2); // what was said stays
  await assert.rejects(chat.send("x", { signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.equal((await chat.messages()).length, 2);
  await chat.reset();
  for await (const _ of chat.send(QUESTION, { maxNewTokens: 1500 })) break;
  const cut = chat.send(QUESTION, { maxNewTokens: 1500 });
  for await (const _ of cut) cut.cancel();
  assert.equal((await cut).ending, "caller");
  let ticks = 0; // the event loop runs meanwhile
  const timer = setInterval(() => ++ticks, 1);
  await chat.send(QUESTION, { maxNewTokens: 100 }).finally(() => clearInterval(timer));
  assert.ok(ticks > 1);
  await artifact.close();
});

test("tools are called back, and what one throws is thrown on", async () => {
  const artifact = await Artifact.open(cases.tools);
  const seen = [];
  const weather = {
    name: "weather",
    description: "The weather of a city",
    parameters: CITY,
    run: async ({ city }, { id }) => {
      seen.push(city);
      await assert.rejects(chat.undo(), refused("BUSY")); // it waits for this tool
      if (city === "none") throw new Error(id);
      return { city, rain: true };
    },
  };
  const chat = await artifact.chat({ tools: [weather], variables: { tone: "calm" } });
  const parts = await collect(chat.send("Where?", { maxNewTokens: 200, toolChoice: "required", toolRounds: 1 }));
  const results = parts.filter((part) => part.type === "result");
  assert.ok(results.length > 0 && results.length === parts.filter((part) => part.type === "call").length);
  assert.deepEqual(results.map((part) => JSON.parse(part.content)), seen.map((city) => ({ city, rain: true })));
  const { calls } = (await chat.messages()).find((message) => message.role === "assistant");
  assert.deepEqual(calls.map((each) => each.arguments.city), seen);
  const failing = { ...weather, run: () => { throw new RangeError("no such city"); } };
  const other = await artifact.chat({ tools: [failing] });
  await assert.rejects(collect(other.send("Where?", { maxNewTokens: 200, toolChoice: "required" })), RangeError);
  const given = (await other.messages()).at(-1).calls.map(() => "rain");
  await assert.rejects(other.giveResults([...given, "sun"]), refused("INVALID_ARGUMENT"));
  await other.giveResults(given, { maxNewTokens: 5, toolChoice: "none" });
  assert.deepEqual((await other.messages()).filter((each) => each.role === "tool").map((each) => each.content), given);
  await other.undo();
  assert.deepEqual(await other.messages(), []);
  await assert.rejects(other.send("x", { toolChoice: "walk" }), refused("INVALID_GRAMMAR"));
  await assert.rejects(artifact.chat({ tools: [weather, weather] }), refused("INVALID_ARGUMENT"));
  await artifact.close();
});

test("answers fit a schema, of a library too, or an expression", async () => {
  const artifact = await Artifact.open(cases.demo);
  const chat = await artifact.chat();
  const { value } = await chat.send("Where?", { schema: CITY });
  assert.ok(["Oslo", "Rome"].includes(value.city));
  const standard = { version: 1, vendor: "x", jsonSchema: { input: () => CITY }, validate: ({ city }) => ({ value: city.length }) };
  assert.equal((await chat.send("Where?", { schema: { "~standard": standard } })).value, 4);
  const grammar = await artifact.grammar(/[0-9]{3}/);
  assert.match((await chat.send("How many?", { grammar })).value, /^[0-9]{3}$/);
  await grammar.close();
  assert.throws(() => chat.send("x", { grammar }), refused("INVALID_HANDLE"));
  await assert.rejects(chat.send("x", { schema: { type: "walk" } }), refused("INVALID_GRAMMAR"));
  await artifact.close();
});

test("a session verifies, commits, rolls back and generates what Python's does", async () => {
  const model = await Model.open(join(cases.kernels, "model.pte"));
  const { prompt, plain, drawn } = cases;
  const session = await model.session();
  const text = async (options) => {
    await session.reset();
    return (await session.generate(prompt, { maxNewTokens: plain.length, ...options })).tokens;
  };
  assert.deepEqual(await text({ drafter: "none" }), plain);
  assert.deepEqual(await text({ drafter: model, blockLength: 4 }), plain);
  assert.deepEqual(await text(cases.heat), drawn);
  await session.reset();
  assert.equal(best(await session.prefill(prompt)), plain[0]);
  await session.snapshot(0);
  assert.deepEqual((await session.verify(plain.slice(0, 2))).map(best), plain.slice(1, 3));
  await session.commit(1);
  const checkpoint = await session.checkpoint();
  assert.equal(checkpoint.length, prompt.length + 1);
  const file = join(folder, "state");
  await session.save(file, "note");
  await session.restore(0);
  assert.deepEqual(await session.tokens(), prompt);
  const other = await model.session();
  await other.load(file);
  assert.equal(best(await other.decode(plain[1])), plain[2]);
  await other.resume(checkpoint);
  assert.deepEqual(await other.tokens(), [...prompt, plain[0]]);
  const cache = await model.prefixCache(1 << 26);
  await session.reset();
  assert.deepEqual([await session.bringTo(prompt, cache), await session.bringTo([...prompt, 5], cache)], [0, prompt.length]);
  assert.equal(await session.prefill([5], { logits: false }), undefined);
  await Promise.all(Array.from({ length: 20 }, () => session.prefill([1]))); // one after another
  assert.deepEqual(await session.delegated(), []);
  assert.equal(await session.promptsRead(), null); // there is no accelerator
  await assert.rejects(session.decode(-1), refused("INVALID_TOKEN"));
  await assert.rejects(session.prefill([1.5]), refused("INVALID_TOKEN"));
  await assert.rejects(session.verify(Array(model.info.verifyLen + 1).fill(1)), refused("INVALID_TOKEN"));
  await assert.rejects(session.commit(1), refused("INVALID_COMMIT"));
  await assert.rejects(session.restore(99), refused("INVALID_SLOT"));
  await assert.rejects(text({ drafter: "own" }), refused("INVALID_DRAFTER"));
  assert.throws(() => session.generate(prompt, { temprature: 1 }), /no option temprature/);
  assert.throws(() => session.generate(prompt, { maxNewTokens: 0 }), refused("INVALID_ARGUMENT"));
  await model.close();
});

test("each option of a sampling gives what it gives in Python", async () => {
  const artifact = await Artifact.open(cases.demo);
  const session = await artifact.session();
  for (const { options, tokens } of cases.draws) {
    await session.reset();
    const wanted = { maxNewTokens: tokens.length, ...options };
    assert.deepEqual((await session.generate(cases.words, wanted)).tokens, tokens, JSON.stringify(options));
  }
  for (const options of [{ presencePenalty: 3 }, { logitBias: { "-1": 2 } }, { logitBias: [1] }, { dryBreakers: [0.5] }]) {
    await assert.rejects(async () => await session.generate([1], options), refused("INVALID_ARGUMENT"), JSON.stringify(options));
  }
  await assert.rejects(session.generate([1], { logitBias: { [artifact.info.vocabSize]: 1 } }), refused("INVALID_TOKEN"));
  await artifact.close();
});

test("a chat is sampled as the model says, and has no limit but the context", async () => {
  const artifact = await Artifact.open(cases.sampled, { context: 600, strictReuse: true });
  const { temperature, topK, presencePenalty } = artifact.sampling;
  assert.deepEqual([temperature, topK, presencePenalty], [0.9, 5, 0.5]);
  const chat = await artifact.chat();
  assert.equal((await chat.send(QUESTION, { maxNewTokens: 40, seed: 11 })).content, cases.saidByItself);
  await chat.reset();
  assert.equal((await chat.send(QUESTION, { maxNewTokens: 40, temperature: 0, presencePenalty: 0 })).content, cases.said);
  await chat.reset();
  const logitBias = Object.fromEntries(artifact.info.eosIds.map((token) => [token, -100]));
  const { ending, generated } = await chat.send(QUESTION, { logitBias });
  assert.deepEqual([ending, await chat.room()], ["length", 0]);
  assert.ok(generated.tokens > 512);
  await artifact.close();
});

test("a stop string may leave the reasoning alone", async () => {
  const artifact = await Artifact.open(cases.thinks);
  const chat = await artifact.chat();
  const ask = (options) => chat.send(QUESTION, { maxNewTokens: 20, ...options });
  const { reasoning } = await ask({});
  const stop = [reasoning.slice(2, 4)];
  await chat.reset();
  assert.equal((await ask({ stop })).ending, "stop");
  await chat.reset();
  assert.deepEqual((await ask({ stop, stopAfterReasoning: true })).reasoning, reasoning);
  await artifact.close();
});

test("pictures are read by chats and sessions", async () => {
  const artifact = await Artifact.open(cases.pictures);
  const rgb = Uint8Array.from({ length: 3 * 30 * 20 }, (_, i) => (i * i) % 251);
  const picture = await artifact.picture({ data: rgb, width: 30, height: 20 });
  assert.deepEqual(picture.ids.map(String), cases.pictureIds);
  const rgba = new Uint8ClampedArray(30 * 20 * 4).map((_, i) => (i % 4 === 3 ? 9 : rgb[Math.floor(i / 4) * 3 + (i % 4)]));
  assert.deepEqual((await artifact.picture({ data: rgba, width: 30, height: 20 })).ids, picture.ids);
  const session = await artifact.session();
  await session.prefill(picture.ids);
  assert.deepEqual(await session.tokens(), [...picture.ids]);
  const chat = await artifact.chat();
  await chat.send("What is this?", { maxNewTokens: 5, pictures: [picture] });
  assert.equal((await chat.messages())[0].pictures, 1);
  await assert.rejects(artifact.picture({ data: rgb, width: 30, height: 21 }), refused("INVALID_ARGUMENT"));
  await artifact.close();
});

test("a tokenizer reads text, and writes it token by token", async () => {
  const tokenizer = await Tokenizer.open(join(cases.demo, "tokenizer.json"));
  const words = "漢字 👩 <|endoftext|>";
  const tokens = await tokenizer.encode(words, { plain: true });
  assert.deepEqual(tokens, cases.tokens);
  assert.equal(await tokenizer.decode(tokens), words);
  const stream = await tokenizer.stream();
  assert.equal(tokens.map((token) => stream.push(token)).join("") + stream.finish(), words);
  await tokenizer.close();
  await assert.rejects(tokenizer.encode("x"), refused("INVALID_HANDLE"));
});
