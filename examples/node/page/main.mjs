// A page that talks to a worker: node main.mjs FOLDER. Electron's main process does the same by utilityProcess.fork(worker.mjs).
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { Worker } from "node:worker_threads";

const worker = new Worker(new URL("worker.mjs", import.meta.url), { workerData: { folder: process.argv[2] } });
worker.setMaxListeners(0);
let asked = 0;

const server = createServer(async (request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://localhost");
  if (pathname !== "/ask") return response.end(await readFile(new URL("index.html", import.meta.url)));
  const id = ++asked;
  const tell = (message) => {
    if (message.id !== id) return;
    response.write(`data: ${JSON.stringify(message)}\n\n`);
    if (!message.part) response.end();
  };
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.on("close", () => {
    worker.off("message", tell);
    if (!response.writableEnded) worker.postMessage({ stop: true });
  });
  worker.on("message", tell);
  worker.postMessage({ id, ask: searchParams.get("message") ?? "" });
});
server.listen(Number(process.env.PORT ?? 8080), "localhost", () => console.log(`http://localhost:${server.address().port}`));
