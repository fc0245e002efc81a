import type { Integer } from "wkvm-client";
import type { Reading } from "../app/feed.ts";

/** Over how long rates and percentiles are taken, in milliseconds. */
export const WINDOW_MS = 10_000;

export function numberOf(reading: Reading | undefined, name: string): number | null {
  const value: Integer | undefined = reading?.values.get(name);
  return value === undefined ? null : Number(value);
}

/** How fast a counter rises, each second, between readings; one figure for each pair of neighbours. */
export function rates(readings: readonly Reading[], name: string): number[] {
  const found: number[] = [];
  for (const [at, later] of readings.entries()) {
    const earlier = readings[at - 1];
    if (earlier) found.push(rate(earlier, later, name));
  }
  return found;
}

/** The reading that is a window before the last one, or as far as there are any. */
export function windowStart(readings: readonly Reading[]): Reading | undefined {
  const last = readings.at(-1);
  if (!last) return undefined;
  return readings.find((one) => last.at - one.at <= WINDOW_MS && one !== last);
}

/** How fast a counter rises, each second, over the last window. */
export function rateNow(readings: readonly Reading[], name: string): number | null {
  const first = windowStart(readings);
  const last = readings.at(-1);
  if (!first || !last || numberOf(last, name) === null) return null;
  return rate(first, last, name);
}

/** A counter that has fallen was of a server that was started anew: it counts from nothing. */
function rate(earlier: Reading, later: Reading, name: string): number {
  const before = numberOf(earlier, name) ?? 0;
  const after = numberOf(later, name) ?? 0;
  const seconds = (later.at - earlier.at) / 1000;
  return seconds > 0 ? Math.max(0, after >= before ? after - before : after) / seconds : 0;
}

/**
 * A percentile of what a histogram counted during the last window, between the bounds of its
 * bucket by proportion; null if it counted nothing. `share` is in [0, 1].
 */
export function percentile(readings: readonly Reading[], name: string, share: number): number | null {
  const first = windowStart(readings);
  const last = readings.at(-1);
  if (!first || !last) return null;
  const total = grown(first, last, `${name}_count`);
  if (!total) return null;
  const wanted = share * total;
  let lower = 0;
  let below = 0;
  for (const bound of boundsOf(last, name)) {
    const upTo = grown(first, last, `${name}_le_${bound}`);
    if (upTo >= wanted) {
      const within = upTo - below;
      return within ? lower + ((wanted - below) / within) * (bound - lower) : bound;
    }
    lower = bound;
    below = upTo;
  }
  return lower;
}

function grown(first: Reading, last: Reading, name: string): number {
  const after = numberOf(last, name) ?? 0;
  const before = numberOf(first, name) ?? 0;
  return after >= before ? after - before : after;
}

function boundsOf(reading: Reading, name: string): number[] {
  const start = `${name}_le_`;
  const bounds: number[] = [];
  for (const key of reading.values.keys()) {
    if (key.startsWith(start)) bounds.push(Number(key.slice(start.length)));
  }
  return bounds.filter(Number.isFinite).sort((a, b) => a - b);
}
