import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { Http, HttpError } from "./http.ts";

const DOCUMENT = new URL("../../../../docs/http.md", import.meta.url);

/** Codes of the table of errors that have this status, and whether they name a time to try again. */
function documented(status: number): [string, boolean][] {
  const lines = readFileSync(DOCUMENT, "utf-8").split("\n");
  return lines
    .filter((line) => line.startsWith(`| ${status} | `))
    .flatMap((line) => {
      const [, , codes = "", when = ""] = line.split(" | ");
      const hasTime = when.includes("Retry-After");
      return [...codes.matchAll(/`(\w+)`/g)].map(([, code]): [string, boolean] => [code!, hasTime]);
    });
}

/** Of the request, which may be why there was no memory: to ask again is the user's choice. */
const OF_THE_REQUEST = new Set(["step_memory"]);

test("what a server refuses because of itself passes, as its documentation says", () => {
  const codes = documented(503);
  expect(codes.length).toBeGreaterThan(8);
  for (const [code, hasTime] of codes) {
    const passes = hasTime && !OF_THE_REQUEST.has(code);
    expect([code, new HttpError("", 503, code).isPassing]).toEqual([code, passes]);
  }
});

test("the server's own words are the error, and its time to try again", async () => {
  const body = JSON.stringify({ error: { message: "no room", code: "overloaded" } });
  const http = new Http("", "", async () => new Response(body, { status: 429, headers: { "Retry-After": "3" } }));
  await expect(http.ask("/")).rejects.toMatchObject({ message: "no room", status: 429, code: "overloaded", retryAfterS: 3 });
});

test("the key goes with every request, and to this server alone", async () => {
  const seen: [string, string | null][] = [];
  const http = new Http("http://here", "secret", async (input, init) => {
    seen.push([String(input), new Headers(init?.headers).get("Authorization")]);
    return new Response("{}");
  });
  await http.get("/v1/states");
  expect(seen).toEqual([["http://here/v1/states", "Bearer secret"]]);
});

test("an answer that breaks off, or is none, is as if none had come", async () => {
  const broken = new ReadableStream({ start: (body) => body.error(new TypeError("network error")) });
  for (const body of ['{"object": "st', "<html>", broken]) {
    const http = new Http("", "", async () => new Response(body));
    const error = await http.get("/v1/states").catch((one: unknown) => one);
    expect(error).toBeInstanceOf(HttpError);
    expect(error).toMatchObject({ status: 0, isPassing: true });
  }
});
