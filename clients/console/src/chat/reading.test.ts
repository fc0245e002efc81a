import { expect, test } from "vitest";
import { Http } from "./http.ts";
import { Reader } from "./reading.ts";

/** A server with one state of so many versions, each of two tokens in and two out. */
function server(nVersions: number, text: (query: URLSearchParams) => Response): { http: Http; asked: string[] } {
  const asked: string[] = [];
  const http = new Http("", "", async (input) => {
    const url = new URL(String(input), "http://server");
    asked.push(url.pathname);
    if (url.pathname.endsWith("/text")) return text(url.searchParams);
    if (!url.pathname.endsWith("/log")) return new Response("{}", { status: 404 });
    const before = Number(url.searchParams.get("before") ?? nVersions + 1);
    const data = [];
    for (let version = before - 1; version > Math.max(before - 101, 0); version -= 1) {
      const parents = version > 1 ? [[`tale@${version - 1}`, "id"]] : [];
      const provenance = { operation: "generate", parameters: { n_prompt: 2, n_output: 2 }, parents };
      data.push({ name: "tale", version, created_ms: 1, n_computed: 4 * version - 1, n_pending: 1, provenance });
    }
    return new Response(JSON.stringify({ data, next: null }));
  });
  return { http, asked };
}

const told = (query: URLSearchParams): Response => {
  const texts = Array.from({ length: query.getAll("cut").length + 1 }, (_, at) => `text ${at}`);
  return new Response(JSON.stringify({ state: "tale", n_tokens: 12, texts }));
};

test("each span of the line is read, in one question", async () => {
  const { http, asked } = server(3, told);
  const found = await new Reader(http).read("tale");
  expect(found.refs).toEqual(["tale@1", "tale@2", "tale@3"]);
  expect(found.turns.flatMap((turn) => turn.messages.map((one) => one.text))).toEqual(
    Array.from({ length: 6 }, (_, at) => `text ${at}`),
  );
  expect(asked.filter((path) => path.endsWith("/text")).length).toBe(1);
});

test("of a line that is longer than a question may be, the end is read, and that there is more is known", async () => {
  let nCuts = 0;
  const { http } = server(1000, (query) => {
    nCuts = query.getAll("cut").length;
    return told(query);
  });
  const found = await new Reader(http).read("tale");
  expect(found.hasMore).toBe(true);
  expect(found.turns.at(-1)!.ref).toBe("tale@1000");
  expect(nCuts).toBeLessThanOrEqual(512);
});

test("a state whose text is too large to be read is a conversation all the same", async () => {
  const { http } = server(2, () => new Response('{"error":{"message":"large"}}', { status: 413 }));
  const found = await new Reader(http).read("tale");
  expect(found.turns.map((turn) => turn.ref)).toEqual(["tale@1", "tale@2"]);
  expect(found.turns[1]!.messages[0]!.text).toBe("(2 tokens)");
  expect(found.nTokens).toBe(8);
});

test("what was read of records is not asked for again", async () => {
  const { http, asked } = server(3, told);
  const reader = new Reader(http);
  await reader.read("tale@2");
  await reader.read("tale@2");
  expect(asked.filter((path) => path.endsWith("/log")).length).toBe(1);
});
