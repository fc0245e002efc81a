import { ConnectionLostError, type Integer, type StateInfo } from "wkvm-client";

const COUNT = new Intl.NumberFormat("en");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

/** A count with separators of thousands. */
export function countOf(n: Integer): string {
  return COUNT.format(n);
}

/** A count of things: "1 token", "2,000 tokens". */
export function many(n: Integer, one: string, more = `${one}s`): string {
  return `${countOf(n)} ${Number(n) === 1 ? one : more}`;
}

/** Three digits and a unit: "512 KiB", "1.25 GiB". */
export function bytesOf(n: Integer): string {
  let value = Number(n);
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${threeDigits(value)} ${UNITS[unit]}`;
}

/** A duration in the unit that suits it: "830 us", "12.5 ms", "3.2 s". */
export function durationOf(microseconds: number): string {
  if (microseconds < 1000) return `${threeDigits(microseconds)} us`;
  if (microseconds < 1_000_000) return `${threeDigits(microseconds / 1000)} ms`;
  return `${threeDigits(microseconds / 1_000_000)} s`;
}

/** How long ago something was: "now", "12 s", "5 min", "3 h", "8 d". */
export function ageOf(milliseconds: number): string {
  const seconds = Math.max(0, milliseconds) / 1000;
  if (seconds < 1.5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129_600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** The same within a sentence: "now", "12 s ago". */
export function agoOf(milliseconds: number): string {
  const age = ageOf(milliseconds);
  return age === "now" ? age : `${age} ago`;
}

/** `NAME@VERSION`. */
export function refOf(state: Pick<StateInfo, "name" | "version">): string {
  return `${state.name}@${state.version}`;
}

/** Name and version of `NAME` or `NAME@VERSION`; null for the newest one. */
export function partsOf(reference: string): { name: string; version: number | null } {
  const [name = "", version] = reference.split("@");
  return { name, version: version ? Number(version) : null };
}

/** What an error says, for people. */
export function messageOf(error: unknown): string {
  if (error instanceof ConnectionLostError && error.closeCode !== null) {
    return `${error.message}. It may have been done: that is seen when the server is back`;
  }
  return error instanceof Error ? error.message : String(error);
}

function threeDigits(value: number): string {
  if (value >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(value >= 10 ? 1 : 2);
}
