import { completed, decode, encode, type Draft } from "./codec.js";
import { ProtocolError } from "./errors.js";
import { Lanes } from "./lanes.js";
import {
  FEATURES,
  FROM_CLIENT,
  FROM_SERVER,
  MAGIC,
  MAX_FRAME_BYTES,
  MAX_HELLO_FRAME_BYTES,
  MAX_REQUEST_ID,
  PROTOCOL_VERSION,
  type AnyMessage,
  type ClientMessage,
  type Error as ErrorMessage,
  type HelloOk,
  type ServerMessage,
} from "./messages.js";

const FIRST = new Set(["HelloOk", "Error"]);
const LATER = new Set(FROM_SERVER.filter((type) => type !== "HelloOk"));
const CLIENT = new Set(FROM_CLIENT.filter((type) => type !== "Hello"));
const UNOPENED = new Set(["Ping", "Pong", "GoAway", "PromptHint"]);
const WITHIN = new Set(["Interrupt", "StateChunk", "StateBytesEnd", "StateCredit"]);

/** What a client offers in Hello. */
export interface Offer {
  readonly apiKey?: string;
  readonly client?: string;
  readonly features?: readonly string[];
}

/**
 * The client's side of one connection, without I/O: payloads in, messages out, and the other way.
 * Over a stream of bytes each payload has its length before it; over WebSocket it is one message.
 */
export class ClientConnection {
  readonly lanes = new Lanes();
  /** What was agreed and what is served, once the connection is open. */
  helloOk: HelloOk | null = null;
  /** Why the server closes the connection, if it said so. */
  error: ErrorMessage | null = null;
  private state: "new" | "handshake" | "open" | "closed" = "new";
  private offered: readonly string[] = [];
  private isGoing = false;
  private lastRequestId = 0;

  /** Start the handshake. Nothing else may be sent until HelloOk has come. */
  hello({ apiKey = "", client = "", features = [] }: Offer = {}): Uint8Array {
    if (this.state !== "new") throw new ProtocolError("Hello was sent already");
    const payload = encode({
      type: "Hello",
      magic: MAGIC,
      min_version: PROTOCOL_VERSION,
      max_version: PROTOCOL_VERSION,
      features,
      max_frame_bytes: MAX_FRAME_BYTES,
      api_key: apiKey,
      client,
    });
    this.checkLength(payload, MAX_HELLO_FRAME_BYTES);
    this.offered = features;
    this.state = "handshake";
    return payload;
  }

  /**
   * Take one payload from the server.
   *
   * @throws ProtocolError it breaks the protocol: the connection is to be closed.
   */
  receive(payload: Uint8Array): ServerMessage {
    try {
      return this.state === "open" ? this.receiveLater(payload) : this.receiveFirst(payload);
    } catch (error) {
      this.state = "closed";
      throw error;
    }
  }

  /**
   * Send a message, other than Hello.
   *
   * @returns its payload; null for what is said within a lane that has closed meanwhile.
   * @throws ProtocolError it may not be sent now, or is no legal message. Nothing has changed.
   */
  send(draft: Draft<ClientMessage>): Uint8Array | null {
    if (this.state !== "open") throw new ProtocolError(`${draft.type}: there is no connection`);
    if (!CLIENT.has(draft.type)) throw new ProtocolError(`${draft.type} cannot be sent here`);
    const message = completed(draft) as ClientMessage;
    const payload = encode(draft);
    this.checkLength(payload, Number(this.helloOk?.max_frame_bytes));
    const problem = this.note(message);
    if (problem === undefined) return null;
    if (problem !== null) throw new ProtocolError(`${draft.type}: ${problem}`);
    return payload;
  }

  /** A request id that is not open: 1, 2, 3 and so on, round again after 2^32 - 1. */
  newRequestId(): number {
    do this.lastRequestId = (this.lastRequestId % MAX_REQUEST_ID) + 1;
    while (this.lanes.has(this.lastRequestId));
    return this.lastRequestId;
  }

  /** Undefined where the message is not to be sent, a text where it may not be. */
  private note(message: ClientMessage): string | null | undefined {
    if (message.type === "GoAway") this.isGoing = true;
    const feature = FEATURES[message.type];
    if (feature !== undefined && !this.helloOk?.features.includes(feature)) {
      return `the feature ${feature} was not agreed`;
    }
    if (UNOPENED.has(message.type)) return null;
    const { request_id } = message as ClientMessage & { readonly request_id: number };
    if (message.type === "Cancel" || message.type === "Credit") {
      return this.lanes.has(request_id) ? null : undefined;
    }
    if (WITHIN.has(message.type)) {
      if (!this.lanes.has(request_id)) return undefined;
      return this.lanes.applyFromClient(message as Parameters<Lanes["applyFromClient"]>[0]);
    }
    if (this.isGoing) return "no new lane after GoAway";
    return this.lanes.open(message as AnyMessage & { readonly request_id: number });
  }

  private receiveFirst(payload: Uint8Array): ServerMessage {
    this.checkLength(payload, MAX_HELLO_FRAME_BYTES);
    if (this.state !== "handshake") throw new ProtocolError("a message before Hello");
    const message = decode(payload, FIRST) as HelloOk | ErrorMessage;
    if (message.type === "Error") return this.closeFor(message);
    if (message.version !== PROTOCOL_VERSION) throw new ProtocolError("a version nobody offered");
    const limit = message.max_frame_bytes;
    if (limit < MAX_HELLO_FRAME_BYTES || limit > MAX_FRAME_BYTES) {
      throw new ProtocolError(`HelloOk.max_frame_bytes: ${limit} was not offered`);
    }
    if (!message.features.every((one) => this.offered.includes(one))) {
      throw new ProtocolError("HelloOk.features: one was not offered");
    }
    this.helloOk = message;
    this.state = "open";
    return message;
  }

  private receiveLater(payload: Uint8Array): ServerMessage {
    this.checkLength(payload, Number(this.helloOk?.max_frame_bytes));
    const message = decode(payload, LATER) as ServerMessage;
    if (message.type === "Error") return this.closeFor(message);
    if (message.type === "GoAway") this.isGoing = true;
    const problem = this.lanes.apply(message);
    if (problem !== null) throw new ProtocolError(`${message.type}: ${problem}`);
    return message;
  }

  private closeFor(message: ErrorMessage): ErrorMessage {
    this.error = message;
    this.state = "closed";
    return message;
  }

  private checkLength(payload: Uint8Array, limit: number): void {
    if (payload.length === 0 || payload.length > limit) {
      throw new ProtocolError(`${payload.length} bytes are not a payload of up to ${limit}`);
    }
  }
}
