// Requests to the server that this page came from, in OpenAI's API.

/** Return the headers of a request. */
function headers(key) {
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

/** Return what an error response says. */
async function messageOf(response) {
  try { return (await response.json()).error.message; } catch { return `the server answered ${response.status}`; }
}

/** Return the model's name and whether it takes pictures. Throws Error. */
export async function describe(key) {
  const response = await fetch("/v1/models", { headers: headers(key) }).catch(() => null);
  if (!response) throw new Error("the server does not answer");
  if (!response.ok) throw new Error(await messageOf(response));
  const card = (await response.json()).data[0];
  return { name: card.id, takesPictures: card.input_modalities?.includes("image") ?? true };
}

/** Yield the chunks of an answer. Throws Error, or AbortError once the signal says so. */
export async function* streamChat(body, key, signal) {
  const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(key), body: JSON.stringify(body), signal });
  if (!response.ok) throw new Error(await messageOf(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (let got = await reader.read(); !got.done; got = await reader.read()) {
    const events = (held + got.value).split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const chunk = JSON.parse(event.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}
