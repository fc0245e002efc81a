/**
 * What the model's chat template writes around messages, found out by asking for it.
 *
 * A state has absorbed what the template made of messages. To show them as messages again, the words
 * around them have to be known: they are what is left of a rendered chat when its known contents
 * are taken out. Nothing here knows any one template.
 */

import type { Http } from "./http.ts";

/** What stands around messages. */
export interface Marks {
  /** Before a chat that begins with a user's message. */
  readonly opening: string;
  /** Between a user's message and the answer. */
  readonly answer: string;
  /** Between an answer and the next message of the user. */
  readonly next: string;
  /** Before a system message and after it; null if the template takes none. */
  readonly system: { readonly before: string; readonly after: string } | null;
  /** Names of the tokens that end an answer: the last of an output may be one. */
  readonly ends: readonly string[];
}

export type Role = "system" | "user" | "assistant" | "text";

export interface Message {
  readonly role: Role;
  readonly text: string;
}

/** Contents that no template has, and that none changes. */
const SYSTEM = "qzsystemzq";
const USER = "qzaskedzq";
const ANSWER = "qzansweredzq";
const NEXT = "qznextzq";

const NO_MARKS: Marks = { opening: "", answer: "", next: "", system: null, ends: [] };

/** Ask the server how its template writes chats. Without a template there are no marks. */
export async function marksOf(http: Http): Promise<Marks> {
  const chat = [said("user", USER), said("assistant", ANSWER), said("user", NEXT)];
  const [whole, withSystem, ends] = await Promise.all([
    rendered(http, chat),
    rendered(http, [said("system", SYSTEM), said("user", USER)]),
    endsOf(http),
  ]);
  if (whole === null) return { ...NO_MARKS, ends };
  const [opening, rest] = cut(whole, USER);
  const [between, after] = cut(rest, ANSWER);
  const [next, answer] = cut(after, NEXT);
  // After the last message the template opens an answer; within a chat it may write that otherwise.
  const marks = { opening, answer: answer || between, next, system: null, ends };
  if (withSystem === null || !withSystem.includes(SYSTEM)) return marks;
  const [before, more] = cut(withSystem, SYSTEM);
  return { ...marks, system: { before, after: cut(more, USER)[0] } };
}

interface TokenizerInfo {
  readonly special_tokens: Readonly<Record<string, string>>;
  readonly eos_token_ids: readonly number[];
}

async function endsOf(http: Http): Promise<string[]> {
  try {
    const info = await http.get<TokenizerInfo>("/tokenizer_info");
    return info.eos_token_ids.flatMap((id) => info.special_tokens[String(id)] ?? []);
  } catch {
    return [];
  }
}

function said(role: string, content: string): object {
  return { role, content };
}

async function rendered(http: Http, messages: object[]): Promise<string | null> {
  try {
    const { tokens } = await http.post<{ tokens: number[] }>("/tokenize", { messages });
    return (await http.post<{ prompt: string }>("/detokenize", { tokens })).prompt;
  } catch {
    return null;
  }
}

function cut(text: string, at: string): [string, string] {
  const start = text.indexOf(at);
  return start < 0 ? [text, ""] : [text.slice(0, start), text.slice(start + at.length)];
}

/**
 * The messages in what was put into a state: what the template wrote around them is left out.
 *
 * What was put in may begin in the middle of `next`: the answer before it may have brought its own
 * end. What does not look like messages is one message with the role "text".
 */
export function messagesOf(prompt: string, marks: Marks): Message[] {
  if (!marks.answer.trim()) return textOf(prompt);
  const begun = withoutOpening(prompt, marks);
  if (begun === null) return textOf(prompt);
  const { messages } = begun;
  let rest = begun.rest;
  for (let role: Role = "user"; ; ) {
    const mark: string = role === "user" ? marks.answer : marks.next;
    const end = mark.trim() ? rest.indexOf(mark) : -1;
    const text = end < 0 ? rest : rest.slice(0, end);
    if (text.trim()) messages.push({ role, text: text.trim() });
    if (end < 0) return messages;
    rest = rest.slice(end + mark.length);
    role = role === "user" ? "assistant" : "user";
  }
}

/** An answer without what ends it, and without the space that the template leaves to it. */
export function answerOf(output: string, marks: Marks): string {
  const text = output.startsWith(" ") ? output.slice(1) : output;
  const end = marks.ends.find((name) => name && text.endsWith(name));
  return (end === undefined ? text : text.slice(0, -end.length)).trimEnd();
}

function textOf(text: string): Message[] {
  return text ? [{ role: "text", text }] : [];
}

function withoutOpening(
  prompt: string,
  marks: Marks,
): { messages: Message[]; rest: string } | null {
  const { system } = marks;
  if (system?.before.trim() && prompt.startsWith(system.before)) {
    const [text, rest] = cut(prompt.slice(system.before.length), system.after);
    return { messages: [{ role: "system", text: text.trim() }], rest };
  }
  for (let start = 0; start < marks.next.length; start += 1) {
    const ending = marks.next.slice(start);
    if (ending.trim() && prompt.startsWith(ending)) {
      return { messages: [], rest: prompt.slice(ending.length) };
    }
  }
  if (marks.opening.trim() && prompt.startsWith(marks.opening)) {
    return { messages: [], rest: prompt.slice(marks.opening.length) };
  }
  return null;
}
