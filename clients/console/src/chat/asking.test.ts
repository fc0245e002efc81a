import { beforeEach, describe, expect, test } from "vitest";
import { MAX_ASKED, Turn } from "./asking.ts";
import { Http, HttpError } from "./http.ts";

const SAMPLING = { maxTokens: 20, temperature: 0, topP: null };

/** What a server does with one request: an answer, or none. */
type Reply = Response | "lost";

let script: ((path: string, init: RequestInit) => Reply)[];
let seen: { path: string; body: Record<string, unknown>; lastId: string | null }[];
let texts: string[];
let losses: number[];

beforeEach(() => {
  script = [];
  seen = [];
  texts = [];
  losses = [];
});

const http = new Http("", "", async (input, init = {}) => {
  const path = String(input);
  const body = init.body ? (JSON.parse(String(init.body)) as Record<string, unknown>) : {};
  seen.push({ path, body, lastId: new Headers(init.headers).get("Last-Event-ID") });
  const next = script.shift();
  if (!next) throw new Error(`nothing is expected at ${path}`);
  const reply = next(path, init);
  if (reply === "lost") throw new TypeError("no network");
  return reply;
});

/** A stream of events; without an end it breaks off. */
function stream(turn: string, first: number, parts: readonly string[], end?: object): () => Response {
  const events = parts.map((text, at) => `id: ${turn}:${first + at}\ndata: ${JSON.stringify({ text })}\n\n`);
  if (end) events.push(`id: ${turn}:${first + parts.length}\ndata: ${JSON.stringify(end)}\n\ndata: [DONE]\n\n`);
  return () => new Response(events.join(""));
}

const ENDED = { text: ".", finish_reason: "stop", state: { version: 4 } };

function session(version: number, turn: object | null): () => Response {
  return () => new Response(JSON.stringify({ state: { version }, turn }));
}

function refused(status: number, code: string): () => Response {
  return () => new Response(JSON.stringify({ error: { message: code, code } }), { status });
}

const lost = (): Reply => "lost";

function turn(message: string | null = "Who?"): Turn {
  const listener = { text: (text: string) => texts.push(text), lost: (n: number) => losses.push(n) };
  const question = { name: "tale", version: 3, message, sampling: SAMPLING };
  return new Turn(http, question, listener, () => Promise.resolve());
}

test("a message goes with the version that it goes on from, and its answer comes as it is made", async () => {
  script = [stream("t", 1, ["A ", "fox"], ENDED)];
  expect(await turn().run()).toEqual({ text: "A fox.", finishReason: "stop", version: 4 });
  expect(seen[0]!.path).toBe("/v1/sessions/tale/generate");
  expect(seen[0]!.body).toMatchObject({
    messages: [{ role: "user", content: "Who?" }],
    expected_version: 3,
    max_tokens: 20,
    stream: true,
  });
  expect(texts).toEqual(["", "A ", "A fox", "A fox."]);
});

test("without a message the answer goes on", async () => {
  script = [stream("t", 1, [], ENDED)];
  await turn(null).run();
  expect(seen[0]!.body["messages"]).toEqual([]);
});

describe("a connection that is lost", () => {
  test("while the turn runs, what was missed is read, and nothing is asked twice", async () => {
    script = [
      stream("t", 1, ["A "]),
      lost,
      session(3, { id: "t", status: "running" }),
      stream("t", 2, ["fox"], ENDED),
    ];
    expect((await turn().run()).text).toBe("A fox.");
    expect(seen.at(-1)).toMatchObject({ path: "/v1/sessions/tale/events", lastId: "t:1" });
    expect(losses).toEqual([0, 1, 2, 0]);
  });

  test("after which the server has forgotten the turn, but has kept it, is over", async () => {
    script = [stream("t", 1, ["A "]), session(4, null)];
    expect(await turn().run()).toEqual({ text: "A ", finishReason: "", version: 4 });
  });

  test("with a server that kept nothing of it, the same is asked again with the same key", async () => {
    script = [stream("t", 1, ["A "]), session(3, null), stream("u", 1, ["A fox"], ENDED)];
    expect((await turn().run()).text).toBe("A fox.");
    const [first, , second] = seen;
    expect(second!.body).toEqual(first!.body);
    expect(first!.body["idempotency_key"]).toBeTruthy();
    expect(texts).toEqual(["", "A ", "", "A fox", "A fox."]);
  });

  test("before anything was heard, the key tells whether the turn was kept", async () => {
    script = [lost, session(4, null), refused(409, "key_reused"), session(4, null)];
    expect(await turn().run()).toEqual({ text: "", finishReason: "", version: 4 });
  });

  test("before anything was heard, what runs is waited for, as it may be another's", async () => {
    script = [
      lost,
      session(3, { id: "x", status: "running" }),
      session(4, { id: "x", status: "done" }),
      refused(409, "stale_version"),
    ];
    await expect(turn().run()).rejects.toMatchObject({ code: "stale_version" });
    const [asking, looking] = ["/v1/sessions/tale/generate", "/v1/sessions/tale"];
    expect(seen.map(({ path }) => path)).toEqual([asking, looking, looking, asking]);
  });

  test("whose events are kept no more, leads to what was kept", async () => {
    script = [
      stream("t", 1, ["A "]),
      session(3, { id: "t", status: "running" }),
      refused(410, "events_gone"),
      session(4, { id: "t", status: "forgotten" }),
      refused(410, "events_gone"),
      session(4, null),
    ];
    expect((await turn().run()).version).toBe(4);
  });

  test("by a server that goes away in order is one, too", async () => {
    const failed = 'data: {"error":{"message":"the server ends","code":"draining"}}\n\n';
    script = [() => new Response(failed), session(3, null), stream("t", 1, ["A fox"], ENDED)];
    expect((await turn().run()).text).toBe("A fox.");
  });

  test("by what stands between and does not reach the server is one, too", async () => {
    const between = (): Response => new Response("<h1>Internal Server Error</h1>", { status: 500 });
    script = [between, session(3, null), stream("t", 1, ["A fox"], ENDED)];
    expect((await turn().run()).text).toBe("A fox.");
  });

  test("each time it is asked is not gone on with for ever", async () => {
    for (let n = 0; n < MAX_ASKED; n += 1) script.push(stream(`t${n}`, 1, ["A "]), session(3, null));
    await expect(turn().run()).rejects.toBeInstanceOf(HttpError);
    expect(seen.filter(({ path }) => path.endsWith("/generate")).length).toBe(MAX_ASKED);
  });
});

test.each([
  [400, "context_length_exceeded"],
  [404, "state_not_found"],
  [409, "session_busy"],
  [409, "stale_version"],
  [429, "rate_limit_exceeded"],
  [503, "store_failed"],
  [507, "store_full"],
])("a refusal is told and not tried again: %i %s", async (status, code) => {
  script = [refused(status, code)];
  await expect(turn().run()).rejects.toMatchObject({ status, code });
  expect(seen.length).toBe(1);
});

test("a turn that fails is told with the server's own words", async () => {
  script = [() => new Response('data: {"error":{"message":"a row is not finite","code":"execution_failed"}}\n\n')];
  await expect(turn().run()).rejects.toThrow("a row is not finite");
});

test("what is stopped ends by the session's interrupt, and what there is of it is the answer", async () => {
  const running = turn();
  const end = { ...ENDED, finish_reason: "interrupted" };
  script = [stream("t", 1, ["A fox"], end), session(4, null)];
  const answer = running.run();
  await running.stop();
  expect((await answer).finishReason).toBe("interrupted");
  expect(seen.map(({ path }) => path)).toContain("/v1/sessions/tale/interrupt");
});

test("a turn that runs already is read from its beginning, and never asked for", async () => {
  script = [stream("t", 1, ["A fox"], ENDED)];
  expect((await turn(null).follow()).text).toBe("A fox.");
  expect(seen[0]).toMatchObject({ path: "/v1/sessions/tale/events", lastId: null });
  script = [stream("t", 1, ["A "]), session(3, null)];
  expect((await turn(null).follow()).version).toBe(3);
});
