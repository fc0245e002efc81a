/** Reads a state as a conversation: its records, its text, and the template that wrote it. */

import { stepsOf, turnsOf, type Step, type Turn } from "./conversation.ts";
import { HttpError, type Http } from "./http.ts";
import { Records } from "./records.ts";
import { marksOf, type Marks } from "./template.ts";
import { many } from "../app/words.ts";

/** Versions that are gone through, at most: the newest ones. Each has two texts, and 512 are told at once. */
const MAX_STEPS = 250;
/** Tokens that are read, at most: the last ones. What one answer of the server has is more. */
const MAX_TOKENS = 200_000;

export interface Conversation {
  /** `NAME@VERSION`. */
  readonly ref: string;
  readonly turns: readonly Turn[];
  /** The versions that lead to it, the oldest first, those that add no turn included. */
  readonly refs: readonly string[];
  /** Whether there is more before the first turn than is shown. */
  readonly hasMore: boolean;
  /** How many tokens it has. */
  readonly nTokens: number;
}

interface StateText {
  readonly state: string;
  readonly n_tokens: number;
  readonly texts: readonly string[];
}

/** Reads conversations of one server, and remembers what never changes. */
export class Reader {
  readonly records: Records;
  private marks: Promise<Marks> | null = null;

  constructor(private readonly http: Http) {
    this.records = new Records(http);
  }

  /**
   * A state as a conversation.
   *
   * @param ref `NAME`, its newest version, or `NAME@VERSION`.
   * @throws HttpError there is no such state, or the server does not answer.
   */
  async read(ref: string): Promise<Conversation> {
    const line = await this.records.line(ref, MAX_STEPS);
    const all = stepsOf(line);
    const newest = all.at(-1)!;
    const steps = lastOf(all);
    const [texts, nTokens] = await this.texts(newest.ref, steps);
    const marks = await this.template();
    return {
      ref: newest.ref,
      turns: turnsOf(steps, texts, marks),
      refs: all.map((step) => step.ref),
      hasMore: line.hasMore || steps.length < all.length,
      nTokens,
    };
  }

  private async template(): Promise<Marks> {
    this.marks ??= marksOf(this.http);
    return await this.marks;
  }

  private async texts(ref: string, steps: readonly Step[]): Promise<[readonly string[], number]> {
    const spans = steps.flatMap((step) => step.spans);
    const [first] = spans;
    if (first === undefined) return [[], 0];
    const query = new URLSearchParams({ start: String(first.start) });
    for (const span of spans.slice(1)) query.append("cut", String(span.start));
    try {
      const told = await this.http.get<StateText>(`/v1/states/${ref}/text?${query}`);
      return [told.texts, told.n_tokens];
    } catch (error) {
      // Larger than the server reads for a page: one can talk with it, and see where to branch.
      if (!(error instanceof HttpError) || error.status !== 413) throw error;
      return [spans.map((span) => `(${many(span.end - span.start, "token")})`), spans.at(-1)!.end];
    }
  }
}

/** The last steps, as many as have no more tokens than are read; the newest one always. */
function lastOf(steps: readonly Step[]): readonly Step[] {
  let n = 0;
  let start = steps.length;
  while (start > 0) {
    const step = steps[start - 1]!;
    n += step.spans.reduce((sum, span) => sum + span.end - span.start, 0);
    if (n > MAX_TOKENS && start < steps.length) break;
    start -= 1;
  }
  return steps.slice(start);
}
