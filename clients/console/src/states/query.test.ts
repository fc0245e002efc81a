import { expect, test } from "vitest";
import type { Row } from "../app/feed.ts";
import { queryOf, rowsOf, searchOf, sortedBy, tiersOf, WHOLE } from "./query.ts";

function row(name: string, more: Partial<Record<"tier" | "operation", string>> & { tokens?: number; usedMs?: number; content?: string; tags?: [string, string][] } = {}): Row {
  const { content = name, tokens = 0, usedMs = 0, tags = [], tier = "host", operation = "create" } = more;
  const info = {
    name, version: 1, head: 1, n_versions: 1, ack: "durable", tier, content_id: content, n_bytes: 512,
    n_computed: tokens, n_pending: 0, operation, parents: [], tags: new Map(tags), created_ms: 0,
    updated_ms: usedMs, expires_ms: null, model_digest: "", layout_fingerprint: "",
    tokenizer_digest: "", tail: new Uint32Array(),
  };
  return { info, usedMs };
}

const names = (rows: Row[]): string[] => rows.map((one) => one.info.name);

test("without a query all rows are shown, the last used on top", () => {
  expect(names(rowsOf([row("a", { usedMs: 1 }), row("b", { usedMs: 2 })], WHOLE))).toEqual(["b", "a"]);
});

test("all words must be found, in the name, a tag or the origin", () => {
  const all = [row("tale-fox", { tags: [["kind", "Story"]] }), row("tale-owl"), row("note", { operation: "fork" })];
  expect(names(rowsOf(all, { ...WHOLE, words: "TALE kind=story" }))).toEqual(["tale-fox"]);
  expect(names(rowsOf(all, { ...WHOLE, words: "fork" }))).toEqual(["note"]);
});

test("equal rows stand by name, and numbers in names by their value", () => {
  const all = [row("try-10"), row("try-9")];
  expect(names(rowsOf(all, { ...WHOLE, order: "tokens" }))).toEqual(["try-9", "try-10"]);
  expect(names(rowsOf(all, { ...WHOLE, order: "name", isDescending: false }))).toEqual(["try-9", "try-10"]);
});

test("a column is sorted the largest first, and then the other way round", () => {
  const once = sortedBy(WHOLE, "tokens");
  expect(once.isDescending).toBe(true);
  expect(sortedBy(once, "tokens").isDescending).toBe(false);
  expect(sortedBy(WHOLE, "name").isDescending).toBe(false);
});

test("a query survives the address of the page", () => {
  const query = { words: "fox & owl", tier: "disk", order: "bytes", isDescending: false } as const;
  expect(queryOf(new URLSearchParams(searchOf(query)))).toEqual(query);
  expect(searchOf(WHOLE)).toEqual({});
});

test("an address that means nothing is the whole table", () => {
  expect(queryOf(new URLSearchParams("tier=attic&sort=-colour"))).toEqual(WHOLE);
});

test("tiers are counted, with their bytes", () => {
  const tiers = tiersOf([row("a"), row("b", { tier: "disk" }), row("c", { tier: "disk" })]);
  expect(tiers.get("disk")).toEqual({ n: 2, bytes: 1024 });
  expect(tiers.get("cold")).toEqual({ n: 0, bytes: 0 });
});

test("bytes that handles share are counted once", () => {
  const all = [row("a", { content: "same" }), row("b", { content: "same" }), row("c")];
  expect(tiersOf(all).get("host")).toEqual({ n: 3, bytes: 1024 });
});
