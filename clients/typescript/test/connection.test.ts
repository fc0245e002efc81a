import assert from "node:assert/strict";
import { test } from "node:test";

import { encode, type Draft } from "../src/codec.js";
import { ClientConnection } from "../src/connection.js";
import { ProtocolError } from "../src/errors.js";
import type { ClientMessage } from "../src/messages.js";

function opened(features: readonly string[] = []): ClientConnection {
  const connection = new ClientConnection();
  connection.hello({ features });
  const served = { server: "s", model: "m", model_digest: "", layout_fingerprint: "" };
  const sizes = { vocab_size: 9, eos_ids: new Uint32Array(), n_slots: 1, max_model_len: 0 };
  const limits = { max_frame_bytes: 65536, max_lanes: 8, ping_interval_ms: 0 };
  const agreed = { version: 1, features, tokenizer_digest: "", tenant: "", ...limits };
  connection.receive(encode({ type: "HelloOk", ...served, ...sizes, ...agreed } as Draft));
  return connection;
}

const generate = (requestId: number): Draft<ClientMessage> => ({
  type: "Generate",
  request_id: requestId,
  prompt: new Uint32Array([1]),
});

test("a request id that is open cannot be used again", () => {
  const connection = opened();
  connection.send(generate(7));
  assert.throws(() => connection.send(generate(7)), ProtocolError);
  assert.deepEqual([...connection.lanes.ids()], [7]);
});

test("what needs a feature that was not agreed is not sent", () => {
  const get = { type: "StateGet", request_id: 1, state: "a" } as const;
  assert.throws(() => opened().send(get), /states was not agreed/);
  assert.ok(opened(["states"]).send(get));
});

test("a message longer than the limit is not sent, and opens no lane", () => {
  const connection = opened();
  const long = { ...generate(1), prompt: new Uint32Array(65536 / 4) } as Draft<ClientMessage>;
  assert.throws(() => connection.send(long), /payload/);
  assert.equal(connection.lanes.size, 0);
});

test("credit for a lane that has ended is not sent", () => {
  const connection = opened();
  assert.equal(connection.send({ type: "Credit", request_id: 3, n_tokens: 1 }), null);
});

test("no lane is opened after the server's GoAway", () => {
  const connection = opened();
  connection.receive(encode({ type: "GoAway" }));
  assert.throws(() => connection.send(generate(1)), /GoAway/);
});

test("a state is not sent beyond what was granted", () => {
  const connection = opened(["states"]);
  connection.send({ type: "StateImport", request_id: 1, name: "a", n_bytes: 10 });
  connection.receive(encode({ type: "StateCredit", request_id: 1, n_bytes: 4 }));
  assert.equal(connection.lanes.roomUp(1), 4);
  const chunk = { type: "StateChunk", request_id: 1, data: new Uint8Array(5) } as const;
  assert.throws(() => connection.send(chunk), /granted/);
});

test("request ids go round, past those that are open", () => {
  const connection = opened();
  connection.send(generate(1));
  assert.equal(connection.newRequestId(), 2);
});

for (const [what, draft] of Object.entries({
  "a field that there is not": { type: "Ping", nonce: 1, other: 2 },
  "a lone surrogate": { type: "GoAway", message: "\ud83d" },
  "an integer that is rounded": { type: "Ping", nonce: 2 ** 60 },
  "a text that is too long": { type: "GoAway", message: "x".repeat(4097) },
  "a missing field": { type: "Cancel" },
})) {
  test(`${what} is refused before it is sent`, () => {
    assert.throws(() => opened().send(draft as unknown as Draft<ClientMessage>), ProtocolError);
  });
}
