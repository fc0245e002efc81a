import { effect, signal } from "@preact/signals";
import { ConnectionLostError, type Client, type StateInfo } from "wkvm-client";
import { N_READINGS, rowOf, type Feed, type Reading, type Row } from "./feed.ts";
import type { Link } from "./link.ts";

const STATS_MS = 1_000;
const LIST_MS = 2_000;
/** Of its time a client spends at most one part in so many listing: long lists are asked for rarely. */
const LIST_SHARE = 10;
const PAGE = 256;

/** A feed that asks: counters once a second, the list of handles every two seconds or more rarely. */
export class PollingFeed implements Feed {
  readonly states = signal<ReadonlyMap<string, Row>>(new Map());
  readonly isWhole = signal(false);
  readonly readings = signal<readonly Reading[]>([]);
  private stopped: (() => void) | null = null;
  private wake = (): void => {};

  constructor(private readonly link: Link) {}

  start(): void {
    this.stopped ??= effect(() => {
      const client = this.link.client.value;
      if (client) return this.follow(client);
      this.isWhole.value = false;
      return undefined;
    });
  }

  stop(): void {
    this.stopped?.();
    this.stopped = null;
  }

  put(states: readonly StateInfo[]): void {
    const next = new Map(this.states.peek());
    for (const one of states) if (one.version === one.head) next.set(one.name, rowOf(one));
    this.states.value = next;
  }

  remove(name: string): void {
    const next = new Map(this.states.peek());
    if (next.delete(name)) this.states.value = next;
  }

  refresh(): void {
    this.wake();
  }

  /** Ask this client until it is gone, or until what is returned is called. */
  private follow(client: Client): () => void {
    const end = new AbortController();
    void this.repeat(end.signal, () => this.read(client), () => STATS_MS, () => {});
    void this.repeat(
      end.signal,
      () => this.list(client, end.signal),
      (tookMs) => Math.max(LIST_MS, LIST_SHARE * tookMs),
      (wake) => (this.wake = wake),
    );
    return () => end.abort();
  }

  private async repeat(
    end: AbortSignal,
    ask: () => Promise<void>,
    pauseMs: (tookMs: number) => number,
    waking: (wake: () => void) => void,
  ): Promise<void> {
    while (!end.aborted) {
      const start = performance.now();
      try {
        await ask();
      } catch (error) {
        if (error instanceof ConnectionLostError) return;
      }
      await pause(pauseMs(performance.now() - start), end, waking);
    }
  }

  private async read(client: Client): Promise<void> {
    const values = await client.stats();
    const readings = [...this.readings.peek(), { at: Date.now(), values }];
    this.readings.value = readings.slice(-N_READINGS);
  }

  private async list(client: Client, end: AbortSignal): Promise<void> {
    const found = new Map<string, Row>();
    for await (const one of client.states.list({ limit: PAGE })) {
      if (end.aborted) return;
      found.set(one.name, rowOf(one));
    }
    this.states.value = found;
    this.isWhole.value = true;
  }
}

/** Wait so long, and while nobody looks at the page; shorter if woken. */
function pause(ms: number, end: AbortSignal, waking: (wake: () => void) => void): Promise<void> {
  return new Promise((resolve) => {
    const over = (): void => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
      resolve();
    };
    const seen = (): void => {
      if (!document.hidden) over();
    };
    const timer = setTimeout(() => {
      if (!document.hidden) over();
      else document.addEventListener("visibilitychange", seen);
    }, ms);
    end.addEventListener("abort", over, { once: true });
    waking(over);
  });
}
