/** How a state came to be: records of versions, and the line of them that leads to one. */

import { partsOf, refOf } from "../app/words.ts";
import { HttpError, type Http } from "./http.ts";

/** An entry of a log: see "States" in docs/http.md. */
export interface LogEntry {
  readonly name: string;
  readonly version: number;
  readonly content_id: string;
  readonly created_ms: number;
  readonly n_computed: number;
  readonly n_pending: number;
  readonly provenance: {
    readonly operation: string;
    readonly parameters: Readonly<Record<string, unknown>>;
    /** Pairs of `NAME@VERSION`, empty for what had no name, and a content id. */
    readonly parents: readonly (readonly [string, string])[];
  };
}

interface LogPart {
  readonly data: LogEntry[];
  readonly next: number | null;
}

/** The versions that lead to one, the oldest first. */
export interface Line {
  readonly entries: readonly LogEntry[];
  /** Whether there were more before, which are deleted, renamed, or not asked for. */
  readonly hasMore: boolean;
}

/** How many tokens belong to a version, absorbed or pending. */
export function lengthOf(entry: LogEntry): number {
  return entry.n_computed + entry.n_pending;
}

/** What continues: the first of what it was made from. Empty where nothing did, or it had no name. */
export function parentOf(entry: LogEntry): string {
  return entry.provenance.parents[0]?.[0] ?? "";
}

/**
 * Reads records and remembers them: a version never changes, and no two states ever have one
 * reference.
 */
export class Records {
  private readonly known = new Map<string, LogEntry>();

  constructor(private readonly http: Http) {}

  /** The record of a version; null if there is none any more. */
  async find(ref: string): Promise<LogEntry | null> {
    const known = this.known.get(ref);
    if (known) return known;
    const { name, version } = partsOf(ref);
    try {
      const before = version === null ? "" : `&before=${version + 1}`;
      const part = await this.http.get<LogPart>(`/v1/states/${name}/log?limit=100${before}`);
      for (const entry of part.data) this.known.set(refOf(entry), entry);
      const newest = part.data[0];
      if (version === null) return newest ?? null;
      return this.known.get(ref) ?? null;
    } catch (error) {
      if (error instanceof HttpError && error.status === 404) return null;
      throw error;
    }
  }

  /** Records of a name that were read so far. */
  of(name: string): LogEntry[] {
    return [...this.known.values()].filter((entry) => entry.name === name);
  }

  /**
   * The versions that lead to one, over all the names that they had.
   *
   * @param limit how many at most.
   * @throws HttpError there is no such version, or the server does not answer.
   */
  async line(ref: string, limit = 500): Promise<Line> {
    let at = await this.find(ref);
    if (at === null) throw new HttpError(`no state ${ref}`, 404, "state_not_found");
    const entries = [at];
    while (entries.length < limit) {
      const parent = parentOf(at);
      const before: LogEntry | null = parent ? await this.find(parent) : null;
      if (before === null) return { entries: entries.reverse(), hasMore: startOf(at) > 0 };
      entries.push(before);
      at = before;
    }
    return { entries: entries.reverse(), hasMore: true };
  }
}

/** How many tokens had been there before a version's own, as far as its record tells. */
function startOf(entry: LogEntry): number {
  return Math.max(lengthOf(entry) - countOf(entry, "n_prompt") - countOf(entry, "n_output"), 0);
}

/** A count among the parameters of a record; 0 where it has none. */
export function countOf(entry: LogEntry, name: string): number {
  const value = entry.provenance.parameters[name];
  return typeof value === "number" ? value : 0;
}
