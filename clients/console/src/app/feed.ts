import type { ReadonlySignal } from "@preact/signals";
import type { Integer, StateInfo } from "wkvm-client";

/** Counters and gauges of the server at one moment. */
export interface Reading {
  /** When it was taken, in milliseconds of this machine's clock. */
  readonly at: number;
  readonly values: ReadonlyMap<string, Integer>;
}

/** The head of one handle. */
export interface Row {
  readonly info: StateInfo;
  /** When it was used last, in milliseconds since 1970: where the server does not say, when it changed. */
  readonly usedMs: number;
}

/**
 * What the console shows, kept up to date: the heads of all handles of the tenant, and the
 * counters of the server. How it comes, by asking or by being told, is the feed's own business.
 */
export interface Feed {
  /** The heads of all handles, by name. */
  readonly states: ReadonlySignal<ReadonlyMap<string, Row>>;
  /** Whether all of them have been seen since the connection was opened. */
  readonly isWhole: ReadonlySignal<boolean>;
  /** The last readings, the oldest first. */
  readonly readings: ReadonlySignal<readonly Reading[]>;
  /** What an operation has answered is known at once. */
  put(states: readonly StateInfo[]): void;
  /** So is that there is no such handle any more. */
  remove(name: string): void;
  /** Look again soon. */
  refresh(): void;
  start(): void;
  stop(): void;
}

/** How many readings are kept: two minutes of them, at one a second. */
export const N_READINGS = 120;

/** A row of what an operation or a list has told, which knows no use but the last change. */
export function rowOf(info: StateInfo): Row {
  return { info, usedMs: Number(info.updated_ms) };
}
