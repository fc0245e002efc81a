import { expect, test } from "vitest";
import { agoOf, many } from "./words.ts";

test("one thing is said in the singular, and all other counts in the plural", () => {
  expect([0n, 1n, 2n, 2000n].map((n) => many(n, "token"))).toEqual(["0 tokens", "1 token", "2 tokens", "2,000 tokens"]);
  expect([1, 3].map((n) => many(n, "token is", "tokens are"))).toEqual(["1 token is", "3 tokens are"]);
});

test("an age within a sentence is ago, but for what is now", () => {
  expect([0, 12_000].map(agoOf)).toEqual(["now", "12 s ago"]);
});
