import type { Draft } from "./codec.js";
import { ClientConnection } from "./connection.js";
import {
  ConnectionLostError,
  ProtocolError,
  RequestFailedError,
  StateMovedError,
  WkvmError,
} from "./errors.js";
import { GenerationStream, type Keeping } from "./generation.js";
import type {
  ClientMessage,
  HelloOk,
  Integer,
  Sampling,
  ServerMessage,
  StateChanges,
  StatsChanges,
} from "./messages.js";
import { States } from "./states.js";
import { watch, type WatchOptions } from "./watch.js";

const SUBPROTOCOL = "wkvm.v1";
const FEATURES = ["embed", "grammar", "prefix", "score", "states", "tenant", "watch"];

/** What of a WebSocket is used: that of browsers, of Node from 22 on, or of a package such as ws. */
export interface Socket {
  binaryType: string;
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  send(data: Uint8Array): void;
  close(code?: number, reason?: string): void;
}

/** How to connect. */
export interface ConnectOptions {
  /** The key, where the server has keys. It crosses in the upgrade, so beyond one machine use wss. */
  readonly apiKey?: string;
  /** What the server's log may call this client. */
  readonly client?: string;
  /** The class to use, where there is no global WebSocket. */
  readonly WebSocket?: new (url: string, protocols: string[]) => Socket;
  /** How long the handshake may take, in milliseconds. */
  readonly timeoutMs?: number;
}

/** What a request asks for; fields that are left out have the protocol's defaults. */
export interface GenerateOptions extends Partial<Sampling>, Keeping {
  /** Ids to be sent before more is granted; more is granted as they are read. 0: no limit. */
  readonly credit?: number;
  readonly timeout_ms?: Integer;
  readonly priority?: Integer;
  /** A grammar that the output follows, and of what kind it is. */
  readonly grammar_kind?: string;
  readonly grammar?: string;
  readonly signal?: AbortSignal;
}

/** Takes the messages of one lane until it is closed. */
export interface LaneReader {
  take(message: ServerMessage): void;
  fail(error: Error): void;
}

/** Messages after which a lane is closed, unless it has choices. */
const REPLIES = new Set(["StatsReply", "StateVersions", "StatePage", "StateText", "StateLineagePage"]);

/**
 * One connection. All requests of it run side by side. Where the connection breaks, all of them
 * fail with a ConnectionLostError, and a new client is needed: a state that a request was to leave
 * can be asked for by name.
 */
export class Client {
  readonly states: States;
  /** What the server told of itself and its model. */
  readonly info: HelloOk;
  /** Resolves when the connection has ended, whatever ended it. */
  readonly closed: Promise<ConnectionLostError>;
  private readonly readers = new Map<number, LaneReader>();
  private lost: ConnectionLostError | null = null;

  /** Use `connect`. */
  constructor(
    private readonly socket: Socket,
    private readonly connection: ClientConnection,
    closed: Promise<ConnectionLostError>,
  ) {
    this.info = connection.helloOk!;
    this.states = new States(this);
    this.closed = closed;
  }

  /**
   * Complete a prompt of token ids, from a state or to one if `state` or `save_as` is given.
   * Its errors come out of the stream.
   */
  generate(prompt: Iterable<number>, options: GenerateOptions = {}): GenerationStream {
    return new GenerationStream(this, Uint32Array.from(prompt), options);
  }

  /** The counters of the server, by name. */
  async stats(): Promise<ReadonlyMap<string, Integer>> {
    const reply = await this.ask({ type: "Stats", request_id: this.newRequestId() });
    return (reply as { values: ReadonlyMap<string, Integer> }).values;
  }

  /** Whether the server can tell what changes; if not, states and counters are to be asked for. */
  get canWatch(): boolean {
    return this.info.features.includes("watch");
  }

  /** Be told of states and counters as they change. See "Watching" in docs/protocol.md. */
  watch(options: WatchOptions = {}): AsyncIterableIterator<StateChanges | StatsChanges> {
    return watch(this, options);
  }

  /** Say goodbye and close. Requests that are open fail. */
  close(): void {
    if (!this.lost) this.socket.close(1000);
  }

  newRequestId(): number {
    return this.connection.newRequestId();
  }

  /** Send what opens a lane; its messages go to `reader`. */
  open(draft: Draft<ClientMessage> & { readonly request_id: number }, reader: LaneReader): void {
    this.send(draft);
    this.readers.set(draft.request_id, reader);
  }

  /** Send what opens a lane that takes one reply, and wait for it. */
  ask(draft: Draft<ClientMessage> & { readonly request_id: number }): Promise<ServerMessage> {
    return new Promise((resolve, reject) => {
      this.open(draft, { take: resolve, fail: reject });
    });
  }

  send(draft: Draft<ClientMessage>): void {
    if (this.lost) throw this.lost;
    const payload = this.connection.send(draft);
    if (payload !== null) this.socket.send(payload);
  }

  /** How many bytes of a state may be sent on a lane now. */
  roomUp(requestId: number): number {
    return this.connection.lanes.roomUp(requestId);
  }

  /** A payload has come. */
  receive(payload: Uint8Array): void {
    const message = this.connection.receive(payload);
    switch (message.type) {
      case "Ping":
        this.send({ type: "Pong", nonce: message.nonce });
        break;
      case "Tokens":
        for (const requestId of new Set(message.lanes)) {
          this.readers.get(requestId)?.take(message);
        }
        break;
      case "Failed":
        this.over(message.request_id, new RequestFailedError(message));
        break;
      case "StateMoved": {
        const { message: why, target, state } = message;
        this.over(message.request_id, new StateMovedError(why, target, state));
        break;
      }
      default:
        if ("request_id" in message) this.toLane(message);
    }
  }

  /** The connection has ended. */
  end(error: ConnectionLostError): void {
    this.lost = error;
    for (const requestId of [...this.readers.keys()]) this.over(requestId, error);
  }

  private toLane(message: ServerMessage & { readonly request_id: number }): void {
    const reader = this.readers.get(message.request_id);
    const isOver = REPLIES.has(message.type) || !this.connection.lanes.has(message.request_id);
    if (isOver) this.readers.delete(message.request_id);
    reader?.take(message);
  }

  private over(requestId: number, error: WkvmError): void {
    const reader = this.readers.get(requestId);
    this.readers.delete(requestId);
    reader?.fail(error);
  }
}

/**
 * Connect to the HTTP door of a server.
 *
 * @param url such as "ws://127.0.0.1:8000/v1/ws".
 * @throws ConnectionLostError nobody answers there, or the server refuses the key.
 */
export async function connect(url: string, options: ConnectOptions = {}): Promise<Client> {
  const { apiKey, timeoutMs = 10_000 } = options;
  const WebSocketClass =
    options.WebSocket ?? (globalThis as { WebSocket?: unknown }).WebSocket ?? null;
  if (WebSocketClass === null) {
    throw new WkvmError("there is no WebSocket here: give the class of a package as an option");
  }
  const protocols = [SUBPROTOCOL];
  if (apiKey) protocols.push(`wkvm.key.${base64url(apiKey)}`);
  const socket = new (WebSocketClass as NonNullable<ConnectOptions["WebSocket"]>)(url, protocols);
  socket.binaryType = "arraybuffer";
  const connection = new ClientConnection();
  let end: (error: ConnectionLostError) => void = () => {};
  const closed = new Promise<ConnectionLostError>((resolve) => {
    end = resolve;
  });
  return await new Promise<Client>((resolve, reject) => {
    let client: Client | null = null;
    const lose = (message: string, code: number | null = null): void => {
      clearTimeout(timer);
      const error = new ConnectionLostError(message, code, connection.error);
      client?.end(error);
      end(error);
      reject(error);
    };
    const timer = setTimeout(() => {
      socket.close();
      lose(`no answer from ${url} within ${timeoutMs} ms`);
    }, timeoutMs);
    let isOpen = false;
    socket.onopen = () => {
      isOpen = true;
      const offer = { client: options.client ?? "wkvm-typescript", features: FEATURES };
      socket.send(connection.hello(offer));
    };
    socket.onmessage = ({ data }: { data: ArrayBuffer }) => {
      try {
        if (client) client.receive(new Uint8Array(data));
        else if (connection.receive(new Uint8Array(data)).type === "HelloOk") {
          clearTimeout(timer);
          client = new Client(socket, connection, closed);
          resolve(client);
        }
      } catch (error) {
        if (!(error instanceof ProtocolError)) throw error;
        socket.close(1000);
        lose(`the server broke the protocol: ${error.message}`);
      }
    };
    socket.onclose = ({ code, reason }: { code: number; reason: string }) => {
      const said = connection.error?.message ?? reason;
      lose(`the connection to ${url} has ended${said ? `: ${said}` : ""}`, code);
    };
    // Later, what is wrong comes with the close that follows; before, there may be none.
    socket.onerror = () => {
      if (!isOpen) lose(`no WebSocket at ${url}`);
    };
  });
}

function base64url(text: string): string {
  const binary = String.fromCharCode(...new TextEncoder().encode(text));
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
