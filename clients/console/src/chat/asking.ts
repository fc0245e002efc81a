/**
 * One message to a state, and the answer as it comes.
 *
 * The turn of a session does not need its client: where the connection breaks, it goes on, and what
 * was missed is read again. Where the server itself was lost, its last version says whether the turn
 * was kept; if it was not, it is asked for again. It can never be done twice: it names the version
 * that it goes on from, and a key of its own.
 */

import { eventsOf } from "./events.ts";
import { HttpError, posted, type Http } from "./http.ts";

/** How an answer is sampled; null for what the model's maker, or the server, suggests. */
export interface Sampling {
  readonly maxTokens: number | null;
  readonly temperature: number | null;
  readonly topP: number | null;
}

export interface Question {
  /** The state's name. */
  readonly name: string;
  /** The version that it goes on from: its newest one. */
  readonly version: number;
  /** The message; null to go on with the answer that the state is in. */
  readonly message: string | null;
  readonly sampling: Sampling;
}

/** What a turn has come to. */
export interface Answer {
  readonly text: string;
  /** Such as "stop", "length" or "interrupted"; empty where only the kept version is known. */
  readonly finishReason: string;
  /** The version that was kept. */
  readonly version: number;
}

/** Told while a turn runs. */
export interface Listener {
  /** All of the text so far. It may be shorter than before: then the turn was begun again. */
  text(text: string): void;
  /** The connection is lost, and this is the n-th attempt to have it back; 0: it is back. */
  lost(attempt: number): void;
}

interface SessionTold {
  readonly state: { readonly version: number };
  readonly turn: { readonly id: string; readonly status: string } | null;
}

interface EventTold {
  readonly text?: string;
  readonly finish_reason?: string;
  readonly state?: { readonly version: number | null };
  readonly error?: { readonly message?: string; readonly code?: string | null };
}

/** How often a turn is asked for, at most: what ends the server each time is not asked for ever. */
export const MAX_ASKED = 5;
/** Waits between attempts, in milliseconds: the last one again and again. */
export const WAITS_MS = [250, 500, 1000, 2000, 4000];

/** One turn. Use it once. */
export class Turn {
  private readonly path: string;
  private readonly body: object;
  private text = "";
  private lastId = "";
  private nLost = 0;
  private nAsked = 0;
  private isStopped = false;
  private isFollowing = false;

  constructor(
    private readonly http: Http,
    private readonly question: Question,
    private readonly listener: Listener,
    private readonly pause: (ms: number, signal: AbortSignal) => Promise<void> = sleep,
    private readonly giveUp = new AbortController(),
  ) {
    const { name, version, message, sampling } = question;
    this.path = `/v1/sessions/${name}`;
    this.body = {
      messages: message === null ? [] : [{ role: "user", content: message }],
      stream: true,
      max_tokens: sampling.maxTokens,
      temperature: sampling.temperature,
      top_p: sampling.topP,
      expected_version: version,
      idempotency_key: crypto.randomUUID(),
    };
  }

  /**
   * Ask, and read to the end.
   *
   * @throws HttpError the server refuses, or the turn failed; nothing of it is kept.
   */
  run(): Promise<Answer> {
    return this.go("ask");
  }

  /** Read the turn that runs already, whoever asked for it. It is never asked for again. */
  follow(): Promise<Answer> {
    this.isFollowing = true;
    return this.go("follow");
  }

  private async go(next: "ask" | "follow"): Promise<Answer> {
    for (;;) {
      try {
        const answer = next === "ask" ? await this.ask() : await this.readOn();
        if (answer) return answer;
        throw new HttpError("the connection was lost", 0);
      } catch (error) {
        if (!(error instanceof HttpError)) throw error;
        if (!this.mayGoOn(error)) throw error;
      }
      const found = await this.whereItIs();
      if (typeof found === "object") return found;
      next = found;
    }
  }

  /** End it now. What there is of the answer is kept, and is returned. */
  async stop(): Promise<void> {
    this.isStopped = true;
    await this.http.post(`${this.path}/interrupt`, {});
  }

  /** Wait no more for a server that does not come back: an AbortError comes of it. */
  abandon(): void {
    this.giveUp.abort();
  }

  private async ask(): Promise<Answer | null> {
    this.begin();
    this.nAsked += 1;
    try {
      return await this.read(await this.http.ask(`${this.path}/generate`, this.init(this.body)));
    } catch (error) {
      // The key is known: this very turn was kept, and only its answer was lost on the way.
      if (!(error instanceof HttpError) || error.code !== "key_reused") throw error;
      const { state } = await this.http.get<SessionTold>(this.path);
      return { text: "", finishReason: "", version: state.version };
    }
  }

  private async readOn(): Promise<Answer | null> {
    const headers: Record<string, string> = {};
    if (this.lastId) headers["Last-Event-ID"] = this.lastId;
    else this.begin();
    const init = { headers, signal: this.giveUp.signal };
    return await this.read(await this.http.ask(`${this.path}/events`, init));
  }

  private init(body: object): RequestInit {
    return { ...posted(body), signal: this.giveUp.signal };
  }

  private begin(): void {
    this.text = "";
    this.lastId = "";
    this.listener.text("");
  }

  /** Null: it broke off. */
  private async read(response: Response): Promise<Answer | null> {
    this.listener.lost(0);
    const events = eventsOf(response.body!);
    try {
      for await (const { id, data } of events) {
        if (data === "[DONE]") return null;
        const event = JSON.parse(data) as EventTold;
        if (event.error) throw failed(event.error);
        if (id) this.lastId = id;
        this.nLost = 0;
        this.text += event.text ?? "";
        this.listener.text(this.text);
        if (event.finish_reason !== undefined) {
          const version = event.state?.version ?? this.question.version;
          return { text: this.text, finishReason: event.finish_reason, version };
        }
      }
    } catch (error) {
      if (error instanceof HttpError || this.giveUp.signal.aborted) throw error;
    }
    return null;
  }

  /** After a loss: whether to read on or to ask again, or what was kept meanwhile. */
  private async whereItIs(): Promise<Answer | "ask" | "follow"> {
    for (;;) {
      const wait = WAITS_MS[Math.min(this.nLost, WAITS_MS.length - 1)]!;
      this.nLost += 1;
      this.listener.lost(this.nLost);
      await this.pause(wait, this.giveUp.signal);
      try {
        const told = await this.http.get<SessionTold>(this.path, this.giveUp.signal);
        const next = this.after(told);
        if (next !== "wait") return next;
      } catch (error) {
        if (!(error instanceof HttpError) || !error.isPassing) throw error;
      }
    }
  }

  private after({ state, turn }: SessionTold): Answer | "ask" | "follow" | "wait" {
    const isRunning = turn?.status === "running";
    const isKept = state.version > this.question.version;
    const kept = { text: this.text, finishReason: "", version: state.version };
    if (this.isFollowing && !this.lastId) return isRunning ? "follow" : kept;
    if (!this.lastId) {
      // Nothing has been heard of it: what runs may be another's. The key tells, when it is over.
      if (isRunning) return "wait";
    } else {
      const isOurs = turn?.id === this.lastId.split(":")[0];
      if (isOurs && (isKept || isRunning)) return "follow";
      if (isKept || this.isFollowing) return kept;
    }
    if (this.isStopped) throw new HttpError("it was stopped before anything was kept", 409);
    if (this.nAsked >= MAX_ASKED) throw new HttpError("the server was lost each time", 500);
    return "ask";
  }

  /** Whether an error is of the connection, or comes of having asked before. */
  private mayGoOn(error: HttpError): boolean {
    if (error.isPassing || error.code === "events_gone") return true;
    return this.nLost > 0 && error.code === "session_busy";
  }
}

/** What ended a stream: as if the request itself had been answered so. */
function failed(error: NonNullable<EventTold["error"]>): HttpError {
  const code = error.code ?? "";
  const passing = new HttpError("", 503, code).isPassing && code !== "";
  return new HttpError(error.message ?? "the turn failed", passing ? 503 : 500, code);
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      reject(new DOMException("given up", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
}
