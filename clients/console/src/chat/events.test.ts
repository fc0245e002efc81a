import { expect, test } from "vitest";
import { eventsOf } from "./events.ts";

function bodyOf(parts: readonly Uint8Array[]): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (const part of parts) controller.enqueue(part);
      controller.close();
    },
  });
}

test("events are the same however their bytes are cut", async () => {
  const bytes = new TextEncoder().encode('id: a:1\ndata: {"text":"ü"}\n\ndata: [DONE]\n\n');
  for (let cut = 0; cut <= bytes.length; cut += 1) {
    const found = [];
    for await (const event of eventsOf(bodyOf([bytes.slice(0, cut), bytes.slice(cut)]))) found.push(event);
    expect(found).toEqual([
      { id: "a:1", data: '{"text":"ü"}' },
      { id: "", data: "[DONE]" },
    ]);
  }
});

test("an event without its end is none", async () => {
  const found = [];
  for await (const event of eventsOf(bodyOf([new TextEncoder().encode("data: 1\n\ndata: 2\n")]))) found.push(event.data);
  expect(found).toEqual(["1"]);
});
