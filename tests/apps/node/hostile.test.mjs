// What must be an Error with our words, and never a crash. Each case is a process of its own; $CASES as in package.test.mjs.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { test } from "node:test";

const cases = JSON.parse(readFileSync(process.env.CASES, "utf8"));
const home = dirname(createRequire(import.meta.url).resolve("hybridge/package.json"));
const native = join(home, "native", `${process.platform}-${process.arch}`);
const folder = mkdtempSync(join(tmpdir(), "hybridge-"));

const OPEN = `
  const { Artifact } = require(${JSON.stringify(home)});
  const answer = async (artifact, options) => (await (await artifact.chat()).send("how to read a file", options)).content;
`;

/** Run a program; return its exit code and what it printed. */
function run(body, environment = {}) {
  const program = `${OPEN} (async () => { ${body} })().catch((error) => console.log(error.code + ": " + error.message));`;
  const env = { ...process.env, ...environment, NODE_OPTIONS: "", NODE_TEST_CONTEXT: undefined };
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, ["-e", program], { encoding: "utf8", timeout: 120_000, env });
  assert.equal(signal, null, `${signal}\n${stdout}${stderr}`);
  if (!environment.HYBRIDGE_ISA) assert.equal(stderr, ""); // the kernels warn of a wrong one
  return { status, said: stdout.trim() };
}

const opened = (artifact) => `await Artifact.open(${JSON.stringify(artifact)})`;

test("a library of another version, or none", () => {
  const file = basename(cases.library);
  const core = readFileSync(join(native, file));
  const [right, wrong] = [Buffer.from(`\0${cases.version}\0`), Buffer.from(`\0${cases.version.replace(/\d+$/, "9")}\0`)];
  for (let at = core.indexOf(right); at >= 0; at = core.indexOf(right, at)) wrong.copy(core, at);
  writeFileSync(join(folder, file), core);
  for (const name of cases.companions) symlinkSync(join(native, name), join(folder, name));
  const another = run(opened(cases.demo), { HYBRIDGE_LIBRARY: join(folder, file) });
  assert.match(another.said, /^LIBRARY: .* is of hybridge 0\.3\.9, and this package is 0\.3\.0/);
  const missing = run(opened(cases.demo), { HYBRIDGE_LIBRARY: join(folder, "none.so") });
  assert.match(missing.said, /^LIBRARY: .*none\.so cannot be loaded/);
  const foreign = run(opened(cases.demo), { HYBRIDGE_LIBRARY: join(native, cases.companions[0]) });
  assert.match(foreign.said, /^LIBRARY: .* it has no hybridge_version/);
  const processor = run(opened(cases.demo), { HYBRIDGE_ISA: "z80" });
  assert.match(processor.said, /^LIBRARY: HYBRIDGE_ISA is z80, and this processor has /);
});

test("an artifact of a newer format, and a folder that is none", () => {
  assert.match(run(opened(cases.newer)).said, /^INVALID_ARTIFACT: .*format/);
  assert.match(run(opened(folder)).said, /^(INVALID_ARTIFACT|UNREADABLE_FILE): .*manifest\.json/);
});

test("a worker that is terminated in the middle of an answer", () => {
  const worker = `
    ${OPEN}
    const { parentPort } = require("node:worker_threads");
    (async () => {
      const chat = await (${opened(cases.demo)}).chat();
      for await (const part of chat.send("how to read a file", { maxNewTokens: 1900 })) parentPort.postMessage(part.text);
    })();`;
  const exit = run(`
    const { Worker } = require("node:worker_threads");
    new Worker(${JSON.stringify(worker)}, { eval: true }).once("message", () => process.exit(3));`);
  assert.equal(exit.status, 3);
  const { status, said } = run(`
    const { Worker } = require("node:worker_threads");
    for (const tokens of [0, 1, 7]) {
      const worker = new Worker(${JSON.stringify(worker)}, { eval: true });
      await new Promise((resolve) => {
        let count = 0;
        if (tokens === 0) worker.on("online", resolve);
        worker.on("message", () => ++count === tokens && resolve());
      });
      await worker.terminate();
    }
    await new Promise((resolve) => setTimeout(resolve, 50)); // the workers' addon would be unloaded by now
    console.log(await answer(${opened(cases.demo)}, { maxNewTokens: 40 }));`);
  assert.deepEqual([status, said], [0, cases.said.trim()]);
});

test("a process that exits in the middle of an answer", () => {
  const { status } = run(`
    const chat = await (${opened(cases.demo)}).chat();
    for await (const part of chat.send("how to read a file", { maxNewTokens: 1900 })) process.exit(3);`);
  assert.equal(status, 3);
});

test("two copies of the package in one process", () => {
  const copy = join(folder, "copy");
  cpSync(home, copy, { recursive: true });
  const { status, said } = run(`
    const other = require(${JSON.stringify(copy)});
    const artifacts = [${opened(cases.demo)}, await other.Artifact.open(${JSON.stringify(cases.demo)})];
    const texts = await Promise.all(artifacts.map((each) => answer(each, { maxNewTokens: 40 })));
    console.log(texts[0] === texts[1] ? texts[0] : texts);
    console.log(await artifacts[1].chat({ cache: 1 }).catch((error) => error instanceof other.HybridgeError));`);
  assert.deepEqual([status, said.split("\n")], [0, [...cases.said.trim().split("\n"), "true"]]);
});
