// An agent with two tools: node agent.mjs FOLDER "How many hours are 90 minutes?" [TOOL-CHOICE]
// A model that was not trained for tools calls one where TOOL-CHOICE is required, or the name of a tool.
import { readdir } from "node:fs/promises";

import { Artifact } from "hybridge";

const tools = [
  {
    name: "divide",
    description: "Divide a number by another",
    parameters: {
      type: "object",
      properties: { dividend: { type: "number" }, divisor: { type: "number" } },
      required: ["dividend", "divisor"],
      additionalProperties: false,
    },
    run: ({ dividend, divisor }) => (divisor === 0 ? "nothing can be divided by 0" : dividend / divisor),
  },
  { name: "list_files", description: "List the files of this folder", run: () => readdir(".") },
];

const [folder, question, toolChoice] = process.argv.slice(2);
const artifact = await Artifact.open(folder);
const chat = await artifact.chat({ system: "Use the tools where they help.", tools });
// Without a limit a small model that must call a tool may call it until its context is full.
for await (const part of chat.send(question, { toolChoice, maxNewTokens: 200 })) {
  if (part.type === "content") process.stdout.write(part.text);
  if (part.type === "call") console.log(`${part.name}(${JSON.stringify(part.arguments)})`);
  if (part.type === "result") console.log(`→ ${part.content}`);
}
console.log();
