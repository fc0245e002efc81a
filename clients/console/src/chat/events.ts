/** Server-sent events, as far as the server sends them: an id, one line of data, an empty line. */

export interface ServerEvent {
  readonly id: string;
  readonly data: string;
}

/** The events of a body, as they come. What is unfinished at its end is dropped. */
export async function* eventsOf(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      held += decoder.decode(value, { stream: true });
      const events = held.split("\n\n");
      held = events.pop()!;
      for (const event of events) yield parsed(event);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function parsed(event: string): ServerEvent {
  let id = "";
  const data: string[] = [];
  for (const line of event.split("\n")) {
    if (line.startsWith("id: ")) id = line.slice(4);
    if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return { id, data: data.join("\n") };
}
