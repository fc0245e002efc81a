import type { Draft } from "./codec.js";
import type { Client, GenerateOptions, LaneReader } from "./client.js";
import {
  END_REASONS,
  type ClientMessage,
  type End,
  type EndOn,
  type Integer,
  type Logprobs,
  type Sampling,
  type ServerMessage,
  type Tokens,
} from "./messages.js";
import { Queue } from "./queue.js";

/** From where a request goes on, and what becomes of its state: see "Going on from states". */
export interface Keeping {
  readonly state?: string;
  readonly save_as?: string;
  readonly expected_version?: Integer | null;
  readonly on_disconnect?: "cancel" | "finish" | "hibernate";
  readonly durability?: "disk" | "memory" | "";
  readonly checkpoint_every?: Integer;
  readonly replay?: boolean;
  readonly idempotency_key?: string;
  readonly tags?: ReadonlyMap<string, string> | null;
  readonly expires_in_ms?: Integer;
}

export type Reason = "stop" | "length" | "cancelled" | "timed_out" | "moved";

/** What comes of a request: ids, log probabilities of the ids that follow, or the end of a choice. */
export type Output =
  | { readonly kind: "ids"; readonly choice: number; readonly ids: Uint32Array }
  | { readonly kind: "logprobs"; readonly choice: number; readonly logprobs: Logprobs }
  | { readonly kind: "reused"; readonly choice: number; readonly nTokens: number }
  | {
      readonly kind: "end";
      readonly choice: number;
      readonly reason: Reason;
      readonly end: End | EndOn;
    };

/** One choice, whole. */
export interface Choice {
  readonly ids: number[];
  readonly reason: Reason;
  readonly end: End | EndOn;
}

const REASONS = new Map<number, Reason>(
  Object.entries(END_REASONS).map(([name, value]) => [value, name.toLowerCase() as Reason]),
);
const KEEPING = [
  "state",
  "save_as",
  "expected_version",
  "on_disconnect",
  "durability",
  "checkpoint_every",
  "replay",
  "idempotency_key",
  "tags",
  "expires_in_ms",
] as const;
const OTHERS = ["timeout_ms", "priority"] as const;
const GRAMMAR = ["grammar_kind", "grammar"] as const;

/** The output of one request, as it comes. Whoever stops reading it cancels the request. */
export class GenerationStream implements AsyncIterable<Output>, LaneReader {
  readonly requestId: number;
  private readonly queue: Queue<Output>;
  private readonly nChoices: number;
  private readonly credit: number;
  private nEnded = 0;
  private nRead = 0;

  /** Use `Client.generate`. */
  constructor(
    private readonly client: Client,
    prompt: Uint32Array,
    options: GenerateOptions,
  ) {
    this.requestId = client.newRequestId();
    this.credit = options.credit ?? 0;
    this.nChoices = Number(options.n ?? 1);
    this.queue = new Queue(() => this.cancel());
    client.open(draftOf(this.requestId, prompt, options), this);
    const { signal } = options;
    if (signal?.aborted) this.cancel();
    signal?.addEventListener("abort", () => this.cancel(), { once: true });
  }

  /** End the request now: its choices end with "cancelled", and what came before is good. */
  cancel(): void {
    this.client.send({ type: "Cancel", request_id: this.requestId });
  }

  /** End it at the next step and save its state; with `keep` the state has so many ids of it. */
  interrupt(keep: number | null = null): void {
    this.client.send({ type: "Interrupt", request_id: this.requestId, keep });
  }

  /** All choices, when the last one has ended. */
  async choices(): Promise<Choice[]> {
    const ids: number[][] = Array.from({ length: this.nChoices }, () => []);
    const choices: Choice[] = [];
    for await (const output of this) {
      const own = ids[output.choice]!;
      if (output.kind === "ids") own.push(...output.ids);
      if (output.kind === "end") {
        choices[output.choice] = { ids: own, reason: output.reason, end: output.end };
      }
    }
    return choices;
  }

  /** The first choice. */
  async completion(): Promise<Choice> {
    return (await this.choices())[0]!;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Output, void> {
    for await (const output of this.queue) {
      yield output;
      if (output.kind === "ids") this.grant(output.ids.length);
    }
  }

  take(message: ServerMessage): void {
    switch (message.type) {
      case "Tokens":
        for (const output of entriesOf(message, this.requestId)) this.queue.push(output);
        break;
      case "Logprobs":
        this.queue.push({
          kind: "logprobs",
          choice: Number(message.choice),
          logprobs: message,
        });
        break;
      case "Reused": {
        const nTokens = Number(message.n_tokens);
        this.queue.push({ kind: "reused", choice: Number(message.choice), nTokens });
        break;
      }
      case "End":
      case "EndOn":
        this.queue.push({
          kind: "end",
          choice: Number(message.choice),
          reason: REASONS.get(message.reason)!,
          end: message,
        });
        this.nEnded += 1;
        if (this.nEnded === this.nChoices) this.queue.close();
        break;
      default:
    }
  }

  fail(error: Error): void {
    this.queue.close(error);
  }

  /** Grant anew what was read, half of the credit at a time. */
  private grant(n: number): void {
    if (!this.credit) return;
    this.nRead += n;
    if (2 * this.nRead < this.credit) return;
    this.client.send({ type: "Credit", request_id: this.requestId, n_tokens: this.nRead });
    this.nRead = 0;
  }
}

function* entriesOf(tokens: Tokens, requestId: number): Generator<Output> {
  let start = 0;
  for (const [at, lane] of tokens.lanes.entries()) {
    const end = start + (tokens.counts.length ? tokens.counts[at]! : 1);
    if (lane === requestId && end > start) {
      yield { kind: "ids", choice: tokens.choices[at] ?? 0, ids: tokens.ids.slice(start, end) };
    }
    start = end;
  }
}

type Opening = Draft<ClientMessage> & { readonly request_id: number };

function draftOf(requestId: number, prompt: Uint32Array, options: GenerateOptions): Opening {
  const { credit = 0, signal: _, ...rest } = options;
  const kept = pick(rest, KEEPING);
  const others = pick(rest, OTHERS);
  const grammar = pick(rest, GRAMMAR);
  const known = new Set<string>([...KEEPING, ...OTHERS, ...GRAMMAR]);
  const sampling = Object.fromEntries(
    Object.entries(rest).filter(([name]) => !known.has(name)),
  ) as Partial<Sampling>;
  const base = { request_id: requestId, prompt, sampling, credit, ...others };
  if (Object.keys(kept).length) return { type: "GenerateOn", ...base, ...kept, ...grammar };
  if (Object.keys(grammar).length) {
    return { type: "GenerateConstrained", ...base, ...grammar };
  }
  return { type: "Generate", ...base };
}

function pick<T extends object, K extends keyof T>(values: T, names: readonly K[]): Partial<T> {
  const found: Partial<T> = {};
  for (const name of names) if (values[name] !== undefined) found[name] = values[name];
  return found;
}
