/** One conversation on the page: what is shown of it, and what can be done. */

import { signal, type ReadonlySignal } from "@preact/signals";
import { partsOf } from "../app/words.ts";
import { Turn as Running, type Answer, type Sampling } from "./asking.ts";
import { HttpError, type Http } from "./http.ts";
import type { Conversation, Reader } from "./reading.ts";
import type { Turn } from "./conversation.ts";

/** A message that is being answered. */
export interface Asked {
  /** Null where an answer goes on. */
  readonly message: string | null;
  readonly text: string;
  /** How often it was tried to have a lost connection back; 0 while there is one. */
  readonly nLost: number;
}

/** An error, and what was asked when it came: to ask again. */
export interface Trouble {
  readonly error: Error;
  readonly message: string | null;
  /** Whether it was reading, and not asking, that failed. */
  readonly isReading: boolean;
}

const UNSAID: Sampling = { maxTokens: null, temperature: null, topP: null };

/** Between two drawings of an answer that runs, at least. */
const DRAWING_MS = 40;

/** A conversation: a state's newest version, or an older one, which can only be read. */
export class Talk {
  private readonly found = signal<Conversation | null>(null);
  private readonly running = signal<Asked | null>(null);
  private readonly failure = signal<Trouble | null>(null);
  /** What there is; null before it was read. */
  readonly conversation: ReadonlySignal<Conversation | null> = this.found;
  readonly asked: ReadonlySignal<Asked | null> = this.running;
  readonly trouble: ReadonlySignal<Trouble | null> = this.failure;
  readonly name: string;
  /** The version that is shown; null for the newest one, whichever that is. */
  readonly version: number | null;
  private turn: Running | null = null;
  private reading: Promise<void> | null = null;
  /** What is to be shown next of the answer that runs; null if that is shown. */
  private text: string | null = null;

  constructor(
    private readonly http: Http,
    private readonly reader: Reader,
    readonly ref: string,
    /** Told of each version that this conversation has come to. */
    private readonly moved: (version: number) => void = () => {},
    private readonly later: (call: () => void) => void = (call) => setTimeout(call, DRAWING_MS),
  ) {
    ({ name: this.name, version: this.version } = partsOf(ref));
  }

  /** Read it, or read it again: after a mutation, or what others did. */
  read(): Promise<void> {
    this.reading ??= this.readOnce().finally(() => {
      this.reading = null;
    });
    return this.reading;
  }

  /** Ask, and show the answer as it comes. What fails is `trouble`, and nothing was kept. */
  async send(message: string | null, sampling: Sampling): Promise<void> {
    await this.answer(message, sampling, (turn) => turn.run());
  }

  /** Show the answer that is under way already, such as one that was asked for before a reload. */
  async follow(): Promise<void> {
    if (this.running.peek() || this.version !== null) return;
    try {
      const { turn } = await this.http.get<{ turn: { status: string } | null }>(
        `/v1/sessions/${this.name}`,
      );
      if (turn?.status !== "running") return;
    } catch {
      return; // Reading it has told, or will tell, what is wrong.
    }
    await this.answer(null, UNSAID, (turn) => turn.follow());
  }

  private async answer(
    message: string | null,
    sampling: Sampling,
    go: (turn: Running) => Promise<Answer>,
  ): Promise<void> {
    if (this.running.peek() || this.version !== null) return;
    this.failure.value = null;
    this.running.value = { message, text: "", nLost: 0 };
    try {
      const version = this.headVersion ?? (await this.newest());
      const question = { name: this.name, version, message, sampling };
      this.turn = new Running(this.http, question, {
        text: (text) => this.showSoon(text),
        lost: (nLost) => this.show({ nLost }),
      });
      const answer = await go(this.turn);
      this.moved(answer.version);
      await this.readOnce();
    } catch (error) {
      if (!isGivenUp(error)) this.fail(error, message, false);
    } finally {
      this.turn = null;
      this.running.value = null;
    }
  }

  /** End the answer now, and keep what there is of it. */
  async stop(): Promise<void> {
    try {
      await this.turn?.stop();
    } catch {
      // A server that is not there ends it by itself; waiting for it ends here.
      this.turn?.abandon();
    }
  }

  /**
   * Make the last turn again: the state goes back to before it, and is asked the same.
   *
   * The answer that there was stays as an older version.
   */
  async retry(sampling: Sampling): Promise<void> {
    const last = this.found.peek()?.turns.at(-1);
    if (!last || !canRetry(last, this.name) || this.running.peek()) return;
    const message = askedIn(last);
    try {
      const { version } = partsOf(last.before);
      const told = await this.http.post<{ version: number }>(
        `/v1/states/${this.name}/rollback`,
        { version, expected_version: this.headVersion },
      );
      this.moved(told.version);
      await this.readOnce();
    } catch (error) {
      this.fail(error, message, false);
      return;
    }
    await this.send(message, sampling);
  }

  /** A new state that goes on from a version. */
  async branch(ref: string, name: string): Promise<void> {
    await this.http.post(`/v1/states/${ref}/fork`, { names: [name] });
  }

  dismiss(): void {
    this.failure.value = null;
  }

  /** It is shown no more. A turn that runs goes on at the server. */
  close(): void {
    this.turn?.abandon();
  }

  private get headVersion(): number | null {
    const ref = this.found.peek()?.ref;
    return ref === undefined ? null : partsOf(ref).version;
  }

  private async newest(): Promise<number> {
    const state = await this.http.get<{ version: number }>(`/v1/states/${this.name}`);
    return state.version;
  }

  private async readOnce(): Promise<void> {
    try {
      this.found.value = await this.reader.read(this.ref);
      if (this.failure.peek()?.isReading) this.failure.value = null;
    } catch (error) {
      this.fail(error, null, true);
    }
  }

  /** A token is not worth a drawing of the page: what came meanwhile is drawn at once. */
  private showSoon(text: string): void {
    const isPlanned = this.text !== null;
    this.text = text;
    if (isPlanned) return;
    this.later(() => {
      this.show({ text: this.text ?? "" });
      this.text = null;
    });
  }

  private show(news: Partial<Asked>): void {
    const asked = this.running.peek();
    if (asked) this.running.value = { ...asked, ...news };
  }

  private fail(error: unknown, message: string | null, isReading: boolean): void {
    const known = error instanceof Error ? error : new Error(String(error));
    this.failure.value = { error: known, message, isReading };
  }
}

/** Whether a turn can be made again where it is: it went on from a version of the same name. */
export function canRetry(turn: Turn, name: string): boolean {
  return turn.operation === "generate" && partsOf(turn.before).name === name;
}

/** What a turn was asked; null where an answer went on. */
export function askedIn(turn: Turn): string | null {
  const asked = turn.messages.filter((one) => one.role === "user").at(-1);
  return asked ? asked.text : null;
}

/**
 * Begin a conversation: a state that has absorbed a first message, and waits to answer it.
 *
 * @param system what the model is told before it; empty for nothing.
 * @throws HttpError such as "state_exists".
 */
export async function begin(
  http: Http,
  name: string,
  message: string,
  system: string,
): Promise<void> {
  const messages = [{ role: "user", content: message }];
  if (system) messages.unshift({ role: "system", content: system });
  const { tokens } = await http.post<{ tokens: number[] }>("/tokenize", { messages });
  await http.post("/v1/sessions", { name, ids: tokens });
}

function isGivenUp(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Whether nothing is there, or nothing of this key's. */
export function isMissing(error: Error): boolean {
  return error instanceof HttpError && error.status === 404;
}
