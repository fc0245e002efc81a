import { computed, signal, type ReadonlySignal } from "@preact/signals";
import { connect, ConnectionLostError, ERROR_CODES, type Client, type HelloOk } from "wkvm-client";
import type { KeyRing } from "./key.ts";

/** Why the server wants a key before it says anything. */
export type KeyProblem = "needed" | "wrong" | "limited";

/** How the console stands with its server. */
export type LinkState =
  | { readonly kind: "connecting" }
  | { readonly kind: "open"; readonly client: Client }
  | { readonly kind: "key"; readonly problem: KeyProblem }
  | { readonly kind: "lost"; readonly message: string; readonly retryAt: number };

/** What of the browser is used; tests bring their own. */
export interface Surroundings {
  readonly origin: string;
  connect(url: string, key: string): Promise<Client>;
  fetch(path: string, init: RequestInit): Promise<Response>;
  now(): number;
  random(): number;
  /** Call back once, after so many milliseconds; what is returned takes it back. */
  later(ms: number, call: () => void): () => void;
}

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 5_000;

/**
 * The one connection of the page, and its key. It is opened again whenever it breaks, until
 * `close`; who holds a `Client` must expect a ConnectionLostError, and asks for the next one with
 * `open`. Requests over HTTP go through `fetch`, with the same key.
 */
export class Link {
  private readonly now = signal<LinkState>({ kind: "connecting" });
  /** How the console stands with its server. */
  readonly state: ReadonlySignal<LinkState> = this.now;
  /** The open connection, or null. */
  readonly client: ReadonlySignal<Client | null> = computed(() =>
    this.now.value.kind === "open" ? this.now.value.client : null,
  );
  private readonly told = signal<HelloOk | null>(null);
  /** What the server told of itself the last time that it was there. */
  readonly info: ReadonlySignal<HelloOk | null> = this.told;
  private waiting: ((client: Client) => void)[] = [];
  private nFailures = 0;
  private attempt = 0;
  private cancelRetry = (): void => {};

  constructor(
    private readonly keys: KeyRing,
    private readonly around: Surroundings,
  ) {}

  /** Whether a key is held. */
  get hasKey(): boolean {
    return this.keys.key !== "";
  }

  /** Connect now: at the start, and when somebody does not want to wait for the next attempt. */
  start(): void {
    this.cancelRetry();
    void this.try((this.attempt += 1));
  }

  /** Use this key from now on. */
  useKey(key: string, remember: boolean): void {
    this.keys.set(key, remember);
    this.nFailures = 0;
    this.dropClient();
    this.start();
  }

  /** Forget the key, and end the connection that it opened. */
  forgetKey(): void {
    this.useKey("", false);
  }

  /**
   * The open connection.
   *
   * @throws ConnectionLostError there is none now. What a user asks for is not done later, unseen.
   */
  openNow(): Client {
    const client = this.client.peek();
    if (!client) throw new ConnectionLostError("There is no connection to the server now");
    return client;
  }

  /** The open connection, as soon as there is one. */
  open(): Promise<Client> {
    const client = this.client.peek();
    if (client) return Promise.resolve(client);
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  /**
   * Ask the server over HTTP, with the key. Paths begin at the root of the server.
   *
   * @throws TypeError nobody answers.
   */
  async fetch(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    if (this.keys.key) headers.set("Authorization", `Bearer ${this.keys.key}`);
    const response = await this.around.fetch(path, { ...init, headers });
    if (response.status === 401) this.refuse(this.keys.key ? "wrong" : "needed");
    return response;
  }

  /** End the connection, and open none again. */
  close(): void {
    this.attempt += 1;
    this.cancelRetry();
    this.dropClient();
  }

  private async try(attempt: number): Promise<void> {
    if (this.now.peek().kind !== "lost") this.now.value = { kind: "connecting" };
    const url = `${this.around.origin.replace(/^http/, "ws")}/v1/ws`;
    try {
      const client = await this.around.connect(url, this.keys.key);
      if (attempt !== this.attempt) return client.close();
      this.opened(client);
    } catch (error) {
      const why = await this.reason(error);
      if (attempt !== this.attempt) return;
      if (why instanceof Error) this.lose(why);
      else this.refuse(why);
    }
  }

  /** A browser does not tell why an upgrade was refused: the same question over HTTP does. */
  private async reason(error: unknown): Promise<KeyProblem | Error> {
    const wrong = this.keys.key ? "wrong" : "needed";
    if (error instanceof ConnectionLostError && error.error) {
      return Number(error.error.code) === ERROR_CODES.UNAUTHENTICATED ? wrong : error;
    }
    const headers = this.keys.key ? { Authorization: `Bearer ${this.keys.key}` } : {};
    let response: Response;
    let said: { code?: string; message?: string } = {};
    try {
      response = await this.around.fetch("/v1/ws", { headers, cache: "no-store" });
      said = ((await response.json()) as { error?: typeof said }).error ?? {};
    } catch {
      return new ConnectionLostError("The server does not answer");
    }
    if (response.status === 401) return wrong;
    if (said.code === "key_has_limits") return "limited";
    if (said.code === "subprotocol_missing" && error instanceof Error) return error;
    return new ConnectionLostError(`The server refuses a connection: ${said.message}`);
  }

  private opened(client: Client): void {
    this.nFailures = 0;
    this.told.value = client.info;
    this.now.value = { kind: "open", client };
    for (const resolve of this.waiting.splice(0)) resolve(client);
    void client.closed.then((error) => {
      if (this.client.peek() === client) this.lose(error);
    });
  }

  private lose(error: Error): void {
    const { message } = error;
    const longest = Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** this.nFailures);
    const delay = longest * (0.5 + 0.5 * this.around.random());
    this.nFailures += 1;
    this.now.value = { kind: "lost", message, retryAt: this.around.now() + delay };
    this.cancelRetry();
    this.cancelRetry = this.around.later(delay, () => this.start());
  }

  private refuse(problem: KeyProblem): void {
    this.attempt += 1;
    this.cancelRetry();
    this.dropClient();
    this.now.value = { kind: "key", problem };
  }

  private dropClient(): void {
    const client = this.client.peek();
    this.now.value = { kind: "connecting" };
    client?.close();
  }
}

/** What a page in a browser gives the link. */
export function surroundings(): Surroundings {
  return {
    origin: location.origin,
    connect: (url, apiKey) => connect(url, { apiKey, client: "wkvm-console" }),
    fetch: (path, init) => fetch(path, init),
    now: () => Date.now(),
    random: () => Math.random(),
    later: (ms, call) => {
      const timer = setTimeout(call, ms);
      return () => clearTimeout(timer);
    },
  };
}
