import { effect, signal, type ReadonlySignal } from "@preact/signals";
import { ConnectionLostError, type Client, type Integer, type StateInfo } from "wkvm-client";
import type { Link } from "./link.ts";
import { messageOf } from "./words.ts";

/** Counters and gauges of the server at one moment. */
export interface Reading {
  /** When it was taken, in milliseconds of a clock that never goes back. */
  readonly at: number;
  readonly values: ReadonlyMap<string, Integer>;
}

/** The head of one handle. */
export interface Row {
  readonly info: StateInfo;
  /** When it was used last, in milliseconds since 1970: where the server does not say, when it changed. */
  readonly usedMs: number;
}

/** How many readings are kept: two minutes of them, at one a second. */
export const N_READINGS = 120;
const RETRY_MS = 2_000;

/** What the console shows: the heads of all handles of the tenant, and the counters of the server. */
export class Shown {
  private readonly heads = signal<ReadonlyMap<string, Row>>(new Map());
  private readonly whole = signal(false);
  private readonly read = signal<readonly Reading[]>([]);
  /** The heads of all handles, by name. */
  readonly states: ReadonlySignal<ReadonlyMap<string, Row>> = this.heads;
  /** Whether all of them have been seen since the connection was opened. */
  readonly isWhole: ReadonlySignal<boolean> = this.whole;
  /** The last readings of this connection, the oldest first. */
  readonly readings: ReadonlySignal<readonly Reading[]> = this.read;

  /** Why the server tells nothing; empty while it does. */
  readonly problem = signal("");

  /** A connection begins: what is shown stays until the server tells otherwise. */
  begin(): void {
    this.problem.value = "";
    this.whole.value = false;
    this.read.value = [];
  }

  /** These are all. */
  replace(rows: ReadonlyMap<string, Row>): void {
    this.heads.value = rows;
    this.whole.value = true;
  }

  /** These are new or have changed, and those are no more. Takes time for each handle that there is. */
  change(rows: Iterable<Row>, gone: Iterable<string>): void {
    const next = new Map(this.heads.peek());
    for (const name of gone) next.delete(name);
    for (const row of rows) next.set(row.info.name, row);
    this.heads.value = next;
  }

  /** What makes a feed that asks look again before its time. */
  lookAgain: () => void = () => {};

  count(reading: Reading): void {
    this.read.value = [...this.read.peek(), reading].slice(-N_READINGS);
  }
}

/** Keeps what is shown up to date on one connection, until `end`. */
export type Follow = (client: Client, shown: Shown, end: AbortSignal) => Promise<void>;

/**
 * Keeps what is shown up to date, over all connections that the page has one after the other. How
 * it is told is the business of `follow`.
 */
export class Feed {
  private readonly shown = new Shown();
  readonly states = this.shown.states;
  readonly isWhole = this.shown.isWhole;
  readonly readings = this.shown.readings;
  readonly problem: ReadonlySignal<string> = this.shown.problem;
  private stopped: (() => void) | null = null;

  constructor(
    private readonly link: Link,
    private readonly follow: Follow,
  ) {}

  start(): void {
    this.stopped ??= effect(() => {
      const client = this.link.client.value;
      if (!client) return undefined;
      const end = new AbortController();
      void this.keep(client, end.signal);
      return () => end.abort();
    });
  }

  stop(): void {
    this.stopped?.();
    this.stopped = null;
  }

  /** What an operation has answered is shown at once; versions that are not the newest are not. */
  put(states: readonly StateInfo[]): void {
    this.shown.change(states.filter((one) => one.version === one.head).map(rowOf), []);
  }

  /** So is that there is no such handle any more. */
  remove(name: string): void {
    this.shown.change([], [name]);
  }

  /** Something was changed by other ways than the operations of this page: look soon. */
  refresh(): void {
    this.shown.lookAgain();
  }

  private async keep(client: Client, end: AbortSignal): Promise<void> {
    this.shown.begin();
    while (!end.aborted) {
      try {
        await this.follow(client, this.shown, end);
      } catch (error) {
        // A new connection comes with a new effect; whatever else is wrong may pass.
        if (error instanceof ConnectionLostError) return;
        this.shown.problem.value = messageOf(error);
      }
      if (!end.aborted) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

/** A row of what an operation or a list has told, which knows no use but the last change. */
export function rowOf(info: StateInfo): Row {
  return { info, usedMs: Number(info.updated_ms) };
}
