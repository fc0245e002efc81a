/** The HTTP door of a server: paths, the key, and errors with the server's own words. */

/** What the server answered instead of what was asked for. */
export class HttpError extends Error {
  override name = "HttpError";
  constructor(
    message: string,
    /** The status; 0 where no answer came at all. */
    readonly status: number,
    /** Such as "state_not_found"; empty where the server gave none. */
    readonly code: string = "",
    /** Seconds after which to try again; null where the server named none. */
    readonly retryAfterS: number | null = null,
  ) {
    super(message);
  }

  /** Whether the server was not reached, or is not ready: the same request may succeed later. */
  get isPassing(): boolean {
    if (this.status === 503) return PASSING.has(this.code);
    return this.status === 0 || this.status === 502 || this.status === 504;
  }
}

/** Codes of a 503 that a server sends because of itself, and not of what was asked. */
const PASSING = new Set([
  "",
  "starting",
  "draining",
  "engine_failed",
  "engine_unavailable",
  "worker_unavailable",
  "too_many_connections",
]);

/** One server, with one key. */
export class Http {
  constructor(
    /** Where the server is, without a slash at its end; empty for where the page came from. */
    readonly base: string,
    private readonly key: string = "",
    private readonly send: typeof fetch = (input, init) => fetch(input, init),
  ) {}

  /**
   * Ask, and wait for the head of the answer.
   *
   * @throws HttpError no answer came, or it is an error.
   */
  async ask(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    if (this.key) headers.set("Authorization", `Bearer ${this.key}`);
    let response: Response;
    try {
      response = await this.send(this.base + path, { ...init, headers });
    } catch (error) {
      if (init.signal?.aborted) throw error;
      throw new HttpError("the server does not answer", 0);
    }
    if (response.ok) return response;
    throw await errorOf(response);
  }

  async get<T>(path: string, signal?: AbortSignal): Promise<T> {
    return await bodyOf<T>(await this.ask(path, signal ? { signal } : {}), signal);
  }

  async post<T>(path: string, body: object): Promise<T> {
    return await bodyOf<T>(await this.ask(path, posted(body)));
  }

  async delete(path: string): Promise<void> {
    await this.ask(path, { method: "DELETE" });
  }
}

/** The body of an answer. One that breaks off, as of a server that is killed, is none. */
async function bodyOf<T>(response: Response, signal?: AbortSignal): Promise<T> {
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new HttpError("the answer of the server broke off", 0);
  }
}

/** What a POST of JSON is made of. */
export function posted(body: object): RequestInit {
  return {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
}

async function errorOf(response: Response): Promise<HttpError> {
  const after = Number(response.headers.get("Retry-After") ?? Number.NaN);
  const retryAfterS = Number.isFinite(after) ? after : null;
  const message = `the server answered ${response.status}`;
  try {
    const { error } = (await response.json()) as { error?: { message?: string; code?: unknown } };
    const code = typeof error?.code === "string" ? error.code : "";
    return new HttpError(error?.message ?? message, response.status, code, retryAfterS);
  } catch {
    // Not the server's form: what stands between says that it does not reach it, in its own way.
    return new HttpError(message, response.status < 500 ? response.status : 502, "", retryAfterS);
  }
}
