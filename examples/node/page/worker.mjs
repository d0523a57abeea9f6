// A chat behind messages: in a worker of Node.js, or in Electron's utilityProcess, whose process.parentPort has the same use.
import { parentPort, workerData } from "node:worker_threads";

import { Artifact } from "hybridge";

const port = parentPort ?? process.parentPort;
const artifact = await Artifact.open(workerData?.folder ?? process.argv[2]);
const chat = await artifact.chat();

port.on("message", async (message) => {
  const { id, ask, stop } = message.data ?? message; // Electron's come in an event
  if (stop) return chat.cancel();
  try {
    for await (const part of chat.send(ask)) port.postMessage({ id, part });
    port.postMessage({ id, done: true });
  } catch (error) {
    port.postMessage({ id, error: error.message });
  }
});
