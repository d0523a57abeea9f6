// Compiled by tsc, where it is installed, and never run: an app's types are those that the package gives.
import { Answer, Artifact, HybridgeError, type Part, type Token } from "hybridge";

async function app(folder: string): Promise<void> {
  await using artifact = await Artifact.open(folder, { context: 1000, delegateFrom: 64, strictReuse: true });
  const chat = await artifact.chat({
    tools: [{ name: "weather", parameters: { type: "object" }, run: async ({ city }: { city: string }, { signal }) => [city, signal?.aborted] }],
    thinking: false,
  });
  for await (const part of chat.send("Hello", { maxNewTokens: 5, signal: AbortSignal.timeout(1000) })) {
    const text: string = part.type === "call" ? part.name : part.type === "result" ? part.content : part.text;
    console.log(text);
  }
  const schema = { "~standard": { types: undefined as { output: { city: string } } | undefined } };
  await chat.retry({ presencePenalty: 1, dryMultiplier: 0.8, dryBreakers: [10], stop: ["\n"], stopAfterReasoning: true });
  const answer: Answer<{ city: string }> = chat.send("Where?", { schema });
  const city: string | undefined = (await answer).value?.city;
  const session = await artifact.session();
  const logits: Float32Array = await session.prefill([1, 2n]);
  const none: Float32Array | undefined = await session.prefill([1], { logits: city === "x" });
  const tokens: Token[] = await session.tokens();
  const { counts } = await session.generate(tokens, { ...artifact.sampling, drafter: artifact, seed: 7n, logitBias: { 5: -100 } });
  console.log(logits, none, counts.accepted);
  // @ts-expect-error: there is no such option
  chat.send("x", { temprature: 1 });
  // @ts-expect-error: an artifact is opened by Artifact.open
  new Artifact();
}

export function words(error: unknown, part: Part): string {
  return error instanceof HybridgeError && error.code === "NO_ROOM" ? error.message : part.type;
}

void app;
