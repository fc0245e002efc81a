/** A state as a conversation: turns, each of them a version that one can go back to. */

import { refOf } from "../app/words.ts";
import { countOf, lengthOf, parentOf, type Line, type LogEntry } from "./records.ts";
import { answerOf, messagesOf, type Marks, type Message } from "./template.ts";

/** Tokens of a state that came at once. */
export interface Span {
  readonly start: number;
  readonly end: number;
  /** Whether the model wrote them. */
  readonly isOutput: boolean;
}

/** A version on the way to a state. */
export interface Step {
  /** Which one: what to fork to go on from here. */
  readonly ref: string;
  /** What it went on from; empty for nothing, or what is not there any more. */
  readonly before: string;
  readonly operation: string;
  readonly parameters: Readonly<Record<string, unknown>>;
  /** What a mutation was made from besides. */
  readonly others: readonly string[];
  readonly createdMs: number;
  /** Its tokens; none where it added none, as after a fork or a mutation. */
  readonly spans: readonly Span[];
}

/**
 * The steps of a line of versions, the oldest first. What was rolled back is not among them: a
 * version that was rolled back to is made from what it equals, not from what came after that.
 */
export function stepsOf(line: Line): Step[] {
  const steps: Step[] = [];
  let length = 0;
  for (const [at, entry] of line.entries.entries()) {
    const end = lengthOf(entry);
    if (at === 0) length = line.hasMore ? unseen(entry) : 0;
    steps.push(stepOf(entry, Math.min(length, end), at > 0));
    length = end;
  }
  return steps;
}

function unseen(entry: LogEntry): number {
  return Math.max(lengthOf(entry) - countOf(entry, "n_prompt") - countOf(entry, "n_output"), 0);
}

function stepOf(entry: LogEntry, start: number, hasBefore: boolean): Step {
  const end = lengthOf(entry);
  const border = Math.max(end - countOf(entry, "n_output"), start);
  const spans = [
    { start, end: border, isOutput: false },
    { start: border, end, isOutput: true },
  ].filter((span) => span.end > span.start);
  return {
    ref: refOf(entry),
    before: hasBefore ? parentOf(entry) : "",
    operation: entry.provenance.operation,
    parameters: entry.provenance.parameters,
    others: entry.provenance.parents.slice(1).map(([ref]) => ref),
    createdMs: entry.created_ms,
    spans,
  };
}

/** What is shown of a step: messages, or a note that something was done to the state. */
export interface Turn {
  readonly ref: string;
  readonly before: string;
  readonly createdMs: number;
  readonly operation: string;
  readonly messages: readonly Message[];
  /** What was done to the state other than by tokens, in words; empty if nothing was. */
  readonly note: string;
  /** How many tokens the state has after it. */
  readonly end: number;
  /** Whether it ends with an answer that did not end by itself, and can go on. */
  readonly isOpen: boolean;
}

/**
 * The turns that steps show, given the text of each of their spans.
 *
 * @param texts the text of each span, in the order of steps and spans.
 */
export function turnsOf(steps: readonly Step[], texts: readonly string[], marks: Marks): Turn[] {
  const turns: Turn[] = [];
  let at = 0;
  let end = 0;
  for (const step of steps) {
    const messages: Message[] = [];
    let isOpen = false;
    for (const span of step.spans) {
      const text = texts[at] ?? "";
      at += 1;
      end = span.end;
      isOpen = span.isOutput && !marks.ends.some((name) => name && text.endsWith(name));
      if (!span.isOutput) messages.push(...messagesOf(text, marks));
      else messages.push({ role: "assistant", text: answerOf(text, marks) });
    }
    const note = noteOf(step);
    if (!messages.length && !note) continue;
    const { ref, before, createdMs, operation } = step;
    turns.push({ ref, before, createdMs, operation, messages, note, end, isOpen });
  }
  return turns;
}

/** Operations that say nothing besides the tokens that they added, if they did. */
const SILENT = new Set(["generate", "create", "append", "rollback", "snapshot"]);

function noteOf(step: Step): string {
  const { operation } = step;
  if (SILENT.has(operation)) return "";
  if (operation === "import") return "imported";
  if (operation === "fork") return step.before ? `forked from ${step.before}` : "forked";
  const { revision: _, ...parameters } = step.parameters;
  const given = Object.entries(parameters)
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${name} ${inWords(value)}`);
  const others = step.others.filter(Boolean);
  if (others.length) given.push(`with ${others.join(", ")}`);
  return [operation, ...given].join(" · ");
}

function inWords(value: unknown): string {
  if (Array.isArray(value)) return value.map(inWords).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** How many turns two conversations have in common, from their first on. */
export function commonTurns(one: readonly Turn[], other: readonly Turn[]): number {
  // A fork is a version of its own that says where it is from: what it says is its own, and where
  // its line begins is in the other one.
  let n = 0;
  while (n < one.length && n < other.length && one[n]!.ref === other[n]!.ref) n += 1;
  return n;
}
