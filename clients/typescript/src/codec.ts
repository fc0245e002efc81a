import { ProtocolError } from "./errors.js";
import type { Field, Kind } from "./fields.js";
import {
  END_REASONS,
  MESSAGES,
  type AnyMessage,
  type HelloOk,
  type Integer,
  type Logprobs,
  type MessageTable,
  type Sampling,
  type StateInfo,
  type Tokens,
} from "./messages.js";
import { floatsOfBytes, floatsToBytes, idsOfBytes, idsToBytes } from "./packed.js";
import { Reader } from "./reader.js";
import { Writer } from "./writer.js";

type Values = Record<string, unknown>;

/** What a message needs to be made: fields with a default may be left out, of Sampling too. */
export type Draft<M extends AnyMessage = AnyMessage> = M extends AnyMessage
  ? Pick<M, "type"> & {
      [K in Exclude<keyof M, "type">]?: M[K] extends Sampling ? Partial<Sampling> : M[K];
    }
  : never;

const TYPES = new Map<number, string>();
for (const [name, table] of Object.entries(MESSAGES)) {
  if (table.tag !== null) TYPES.set(table.tag, name);
}

/**
 * Decode one payload.
 *
 * @param types what may come now.
 * @throws ProtocolError what came is not one of them, or not a legal message.
 */
export function decode(payload: Uint8Array, types: ReadonlySet<string>): AnyMessage {
  const reader = new Reader(payload);
  const length = reader.array();
  if (length < 1) throw new ProtocolError("an empty array is no message");
  const tag = Number(reader.int());
  const type = TYPES.get(tag);
  if (type === undefined || !types.has(type)) {
    throw new ProtocolError(`the tag ${tag} is not of a message that is expected now`);
  }
  const message = { type, ...readFields(reader, table(type), length - 1, type) };
  if (!reader.isAtEnd) throw new ProtocolError(`${type}: something follows the message`);
  check(message as unknown as AnyMessage);
  return message as unknown as AnyMessage;
}

/**
 * Encode a message, with defaults where its fields are missing.
 *
 * @throws ProtocolError a field is missing, unknown, or holds what the protocol does not allow.
 */
export function encode(draft: Draft): Uint8Array {
  const values = draft as unknown as Values;
  const { tag, fields } = table(draft.type);
  const message = complete(values, fields, draft.type);
  const isShort = draft.type === "HelloOk" && message["tenant"] === "";
  // Fields that came later than version 1 are left out where they say nothing.
  const sent = isShort ? fields.slice(0, -1) : fields;
  check({ ...message, type: draft.type } as unknown as AnyMessage);
  const writer = new Writer();
  writer.array(sent.length + 1);
  writer.int(tag ?? 0);
  for (const one of sent) write(writer, one.field, message[one.name], `${draft.type}.${one.name}`);
  return writer.finish();
}

/** A message with all fields, those that are left out at their defaults. */
export function completed(draft: Draft): AnyMessage {
  const values = complete(draft as unknown as Values, table(draft.type).fields, draft.type);
  return { type: draft.type, ...values } as unknown as AnyMessage;
}

function table(type: string): MessageTable {
  const found = MESSAGES[type];
  if (found === undefined) throw new ProtocolError(`${type} is not a message`);
  return found;
}

function complete(values: Values, fields: readonly Field[], owner: string): Values {
  const known = new Set(fields.map((one) => one.name));
  const unknown = Object.keys(values).find((name) => name !== "type" && !known.has(name));
  if (unknown !== undefined) throw new ProtocolError(`${owner} has no field ${unknown}`);
  const message: Values = {};
  for (const { name, field, default: otherwise } of fields) {
    let value = values[name];
    if (value === undefined) {
      if (otherwise === undefined) throw new ProtocolError(`${owner}.${name} is missing`);
      value = otherwise();
    }
    if (field.kind === "struct" && value !== null && typeof value === "object") {
      value = complete(value as Values, table(field.of).fields, `${owner}.${name}`);
    }
    message[name] = value;
  }
  return message;
}

// --- reading ------------------------------------------------------------------------------

function readFields(reader: Reader, known: MessageTable, n: number, owner: string): Values {
  const values: Values = {};
  if (n > known.fields.length) throw new ProtocolError(`${owner} has more fields than are known`);
  for (const [at, { name, field, default: otherwise }] of known.fields.entries()) {
    if (at < n) values[name] = read(reader, field, `${owner}.${name}`);
    else if (otherwise === undefined) throw new ProtocolError(`${owner}.${name} is missing`);
    else values[name] = otherwise();
  }
  return values;
}

function read(reader: Reader, kind: Kind, name: string): unknown {
  switch (kind.kind) {
    case "nil":
      return reader.nil() ? null : read(reader, kind.of, name);
    case "bool":
      return reader.bool();
    case "float":
      return reader.float();
    case "int":
      return checkedInt(reader.int(), kind, name);
    case "enum":
      return checkedChoice(Number(reader.int()), kind.of, name);
    case "text":
      return checkedText(reader.text(), kind.max, name);
    case "bytes":
      return checkedBytes(reader.binary().slice(), kind, name);
    case "ids":
      return idsOfBytes(packed(reader.binary(), name));
    case "floats":
      return floatsOfBytes(packed(reader.binary(), name));
    case "list": {
      const length = checkedLength(reader.array(), kind.max, name);
      const values: unknown[] = [];
      for (let at = 0; at < length; at += 1) values.push(read(reader, kind.of, name));
      return values;
    }
    case "map": {
      const length = checkedLength(reader.map(), kind.max, name);
      const values = new Map<unknown, unknown>();
      for (let at = 0; at < length; at += 1) {
        const key = read(reader, kind.key, name);
        values.set(key, read(reader, kind.of, name));
      }
      return values;
    }
    case "struct":
      return readFields(reader, table(kind.of), reader.array(), name);
  }
}

// --- writing ------------------------------------------------------------------------------

function write(writer: Writer, kind: Kind, value: unknown, name: string): void {
  switch (kind.kind) {
    case "nil":
      if (value === null) writer.nil();
      else write(writer, kind.of, value, name);
      return;
    case "bool":
      if (typeof value !== "boolean") throw wrong(name, "a boolean");
      writer.bool(value);
      return;
    case "float":
      if (typeof value !== "number") throw wrong(name, "a number");
      writer.float(value);
      return;
    case "int":
      writer.int(checkedInt(integer(value, name), kind, name));
      return;
    case "enum":
      writer.int(checkedChoice(Number(integer(value, name)), kind.of, name));
      return;
    case "text":
      if (typeof value !== "string") throw wrong(name, "a text");
      if (!isWellFormed(value)) throw wrong(name, "a text without lone surrogates");
      writer.text(checkedText(value, kind.max, name));
      return;
    case "bytes":
      if (!(value instanceof Uint8Array)) throw wrong(name, "a Uint8Array");
      writer.binary(checkedBytes(value, kind, name));
      return;
    case "ids":
      if (!(value instanceof Uint32Array)) throw wrong(name, "a Uint32Array");
      writer.binary(idsToBytes(value));
      return;
    case "floats":
      if (!(value instanceof Float32Array)) throw wrong(name, "a Float32Array");
      writer.binary(floatsToBytes(value));
      return;
    case "list":
      if (!Array.isArray(value)) throw wrong(name, "an array");
      writer.array(checkedLength(value.length, kind.max, name));
      for (const one of value) write(writer, kind.of, one, name);
      return;
    case "map":
      if (!(value instanceof Map)) throw wrong(name, "a Map");
      writer.map(checkedLength(value.size, kind.max, name));
      for (const [key, one] of value) {
        write(writer, kind.key, key, name);
        write(writer, kind.of, one, name);
      }
      return;
    case "struct": {
      const values = value as Values;
      const { fields } = table(kind.of);
      writer.array(fields.length);
      for (const one of fields) write(writer, one.field, values[one.name], `${name}.${one.name}`);
      return;
    }
  }
}

// --- what values may be --------------------------------------------------------------------

function wrong(name: string, wanted: string): ProtocolError {
  return new ProtocolError(`${name} is not ${wanted}`);
}

function integer(value: unknown, name: string): Integer {
  if (typeof value === "bigint" || Number.isSafeInteger(value)) return value as Integer;
  throw wrong(name, "an integer, which beyond 2^53 is a bigint");
}

function checkedInt(value: Integer, limits: { min?: string; max?: string }, name: string): Integer {
  const { min = "-9223372036854775808", max = "18446744073709551615" } = limits;
  if (value < BigInt(min) || value > BigInt(max)) {
    throw new ProtocolError(`${name}: ${value} is not in [${min}, ${max}]`);
  }
  return value;
}

function checkedChoice(value: number, choices: readonly number[], name: string): number {
  if (!choices.includes(value)) throw new ProtocolError(`${name}: ${value} is none of its values`);
  return value;
}

function checkedText(value: string, max: number | undefined, name: string): string {
  // A character takes one or two units of a string.
  if (max !== undefined && value.length > max && (value.length > 2 * max || [...value].length > max))
    throw new ProtocolError(`${name} has more than ${max} characters`);
  return value;
}

function checkedBytes(
  value: Uint8Array,
  limits: { min: number; max: number },
  name: string,
): Uint8Array {
  if (value.length < limits.min || value.length > limits.max) {
    throw new ProtocolError(`${name}: ${value.length} bytes, not ${limits.min} to ${limits.max}`);
  }
  return value;
}

function checkedLength(length: number, max: number | undefined, name: string): number {
  if (max !== undefined && length > max) {
    throw new ProtocolError(`${name} has ${length} elements; there may be ${max}`);
  }
  return length;
}

function packed(bytes: Uint8Array, name: string): Uint8Array {
  if (bytes.length % 4) throw new ProtocolError(`${name}: ${bytes.length} is no multiple of 4`);
  return bytes;
}

function isWellFormed(value: string): boolean {
  return !/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(value);
}

// --- what the types do not say ---------------------------------------------------------------

function check(message: AnyMessage): void {
  const problem = problemOf(message);
  if (problem !== null) throw new ProtocolError(`${message.type}.${problem}`);
}

function problemOf(message: AnyMessage): string | null {
  switch (message.type) {
    case "HelloOk":
      return tenantProblem(message);
    case "Generate":
    case "GenerateConstrained":
    case "GenerateOn": {
      const { bias_ids, bias_values } = message.sampling;
      const isEven = bias_ids.length === bias_values.length;
      return isEven ? null : "sampling.bias_values: not as many as bias_ids";
    }
    case "End":
      return message.reason === END_REASONS.MOVED ? "reason: not of such a lane" : null;
    case "Tokens":
      return tokensProblem(message);
    case "Logprobs":
      return logprobsProblem(message);
    default:
      return null;
  }
}

function tenantProblem(message: HelloOk): string | null {
  const isTold = message.tenant !== "";
  return isTold === message.features.includes("tenant") ? null : "tenant: not as was agreed";
}

function tokensProblem({ lanes, ids, choices, counts }: Tokens): string | null {
  if (choices.length && choices.length !== lanes.length) return "choices: not one for each lane";
  if (counts.length && counts.length !== lanes.length) return "counts: not one for each lane";
  const n = counts.length ? counts.reduce((sum, one) => sum + one, 0) : lanes.length;
  return n === ids.length ? null : `ids: ${ids.length} where ${n} are counted`;
}

function logprobsProblem(message: Logprobs): string | null {
  const n = message.ids.length;
  const nTop = n * Number(message.n_top);
  if (message.logprobs.length !== n) return "logprobs: not one for each id";
  if (message.ranks.length !== n) return "ranks: not one for each id";
  if (message.top_ids.length !== nTop) return "top_ids: not n_top for each id";
  return message.top_logprobs.length === nTop ? null : "top_logprobs: not n_top for each id";
}

export type { StateInfo };
