import { useSignal, type ReadonlySignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Client } from "wkvm-client";
import { useConsole } from "../app/context.ts";
import { messageOf } from "../app/words.ts";

/** What was asked of the server: it may be on its way, there, or refused. */
export interface Answer<T> {
  readonly value: T | null;
  readonly problem: string;
}

/**
 * Ask the server now, and again when one of `on` has changed or the connection is a new one. The
 * answer before stays until the next one is there, unless `on[0]` changes: then it is of something else.
 */
export function useAnswer<T>(
  ask: (client: Client) => Promise<T>,
  on: readonly unknown[],
): ReadonlySignal<Answer<T>> {
  const { link } = useConsole();
  const answer = useSignal<Answer<T>>({ value: null, problem: "" });
  const subject = useSignal<unknown>(on[0]);
  const client = link.client.value;
  if (subject.peek() !== on[0]) {
    subject.value = on[0];
    answer.value = { value: null, problem: "" };
  }
  useEffect(() => {
    if (!client) return undefined;
    let isOld = false;
    ask(client).then(
      (value) => {
        if (!isOld) answer.value = { value, problem: "" };
      },
      (error: unknown) => {
        if (!isOld && link.client.peek()) answer.value = { value: null, problem: messageOf(error) };
      },
    );
    return () => {
      isOld = true;
    };
  }, [client, ...on]);
  return answer;
}

/** A value that changes at most once in so many milliseconds: at once, or when the time is over. */
export function useSettled<T>(value: T, everyMs: () => number): T {
  const settled = useSignal(value);
  const changedAt = useSignal(0);
  useEffect(() => {
    if (settled.peek() === value) return undefined;
    const left = changedAt.peek() + everyMs() - performance.now();
    const timer = setTimeout(() => {
      changedAt.value = performance.now();
      settled.value = value;
    }, Math.max(0, left));
    return () => clearTimeout(timer);
  }, [value]);
  return settled.value;
}
