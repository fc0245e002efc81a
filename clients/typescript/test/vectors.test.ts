// The recorded frames of protocol/vectors: see protocol/README.md.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { decode, encode, type Draft } from "../src/codec.js";
import { ClientConnection } from "../src/connection.js";
import { ProtocolError } from "../src/errors.js";
import type { Kind } from "../src/fields.js";
import { FROM_CLIENT, FROM_SERVER, MAX_FRAME_BYTES, MESSAGES } from "../src/messages.js";

const FOLDER = `${process.env["WKVM_VECTORS"] ?? fileURLToPath(new URL("../../../../protocol/vectors", import.meta.url))}/`;
const ALL_TYPES = new Set([...FROM_CLIENT, ...FROM_SERVER]);

interface Vector {
  readonly name: string;
  readonly type: string;
  readonly sender: string;
  readonly fields: Record<string, unknown>;
  readonly payload: string;
  readonly frame: string;
  readonly decode_only?: boolean;
  readonly state?: "new" | "handshake" | "open";
  readonly code?: number;
}

/** Integers beyond 2^53 become bigints, which JSON.parse alone would round. */
function parse(text: string): Vector {
  const marked = text.replace(/([:[,]\s*)(-?\d{16,})(?=\s*[,\]}\n])/g, '$1"bigint $2"');
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === "string" && value.startsWith("bigint ") ? BigInt(value.slice(7)) : value,
  ) as Vector;
}

const VECTORS = readdirSync(FOLDER)
  .filter((name) => name.endsWith(".json"))
  .map((name) => parse(readFileSync(FOLDER + name, "utf8")));

const bytes = (hex: string): Uint8Array => Uint8Array.from(Buffer.from(hex, "hex"));

/** A value as a message has it. */
function valueOf(kind: Kind, json: unknown): unknown {
  if (json === null) return null;
  switch (kind.kind) {
    case "nil":
      return valueOf(kind.of, json);
    case "ids":
      return Uint32Array.from(json as number[]);
    case "floats":
      return Float32Array.from(json as number[]);
    case "bytes":
      return bytes(json as string);
    case "map":
      return new Map(Object.entries(json as object).map(([k, v]) => [k, valueOf(kind.of, v)]));
    case "list":
      return (json as unknown[]).map((one) => valueOf(kind.of, one));
    case "struct":
      return fieldsOf(kind.of, json as Record<string, unknown>);
    default:
      return json;
  }
}

function fieldsOf(type: string, json: Record<string, unknown>): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  for (const { name, field, default: otherwise } of MESSAGES[type]!.fields) {
    fields[name] = name in json ? valueOf(field, json[name]) : otherwise!();
  }
  return fields;
}

for (const vector of VECTORS.filter((one) => one.code === undefined)) {
  test(`${vector.name} decodes to its fields`, () => {
    const message = decode(bytes(vector.payload), ALL_TYPES);
    assert.deepEqual(message, { type: vector.type, ...fieldsOf(vector.type, vector.fields) });
  });
  if (vector.decode_only) continue;
  test(`${vector.name} is encoded as it was recorded`, () => {
    const draft = { type: vector.type, ...fieldsOf(vector.type, vector.fields) } as Draft;
    assert.equal(Buffer.from(encode(draft)).toString("hex"), vector.payload);
  });
}

function opened(state: "new" | "handshake" | "open"): ClientConnection {
  const connection = new ClientConnection();
  if (state === "new") return connection;
  connection.hello();
  if (state === "handshake") return connection;
  const { fields } = VECTORS.find((one) => one.name === "hello-ok-full")!;
  const agreed = { ...fieldsOf("HelloOk", fields), type: "HelloOk", version: 1, tenant: "" };
  const limits = { features: [], max_frame_bytes: MAX_FRAME_BYTES };
  connection.receive(encode({ ...agreed, ...limits } as Draft));
  const sampling = { n: 2 };
  connection.send({ type: "Generate", request_id: 1, prompt: new Uint32Array([1]), sampling });
  return connection;
}

const ILLEGAL = VECTORS.filter((one) => one.code !== undefined);

for (const vector of ILLEGAL.filter((one) => one.sender === "server")) {
  test(`${vector.name} is refused`, () => {
    const connection = opened(vector.state!);
    assert.throws(() => connection.receive(bytes(vector.frame).subarray(4)), ProtocolError);
    assert.throws(() => connection.send({ type: "Ping", nonce: 1 }), ProtocolError);
  });
}

// What a connection that knows no lanes and no features cannot tell.
const BY_STATE = /already|not-agreed|open|second|first|limit|hello|version|http|length-zero|magic|of-server/;
for (const vector of ILLEGAL.filter((one) => one.sender === "client" && !BY_STATE.test(one.name))) {
  test(`${vector.name} is no message of a client`, () => {
    const payload = bytes(vector.frame).subarray(4);
    assert.throws(() => decode(payload, new Set(FROM_CLIENT)), ProtocolError);
  });
}
