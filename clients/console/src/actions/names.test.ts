import { expect, test } from "vitest";
import { freeName, numbered, problemOfName } from "./names.ts";

test.each(["a", "0", "Tale-1.x_y", "a".repeat(128)])("%s is a name", (name) => {
  expect(problemOfName(name)).toBe("");
});

test.each(["-a", ".a", "a b", "a/b", "a@1", "ä", "a".repeat(129)])("%s is none", (name) => {
  expect(problemOfName(name)).not.toBe("");
});

test("several forks are numbered, with as many digits as the last one needs", () => {
  expect(numbered("a", 1)).toEqual(["a"]);
  expect(numbered("a", 10)[0]).toBe("a-01");
  expect(numbered("a", 10).at(-1)).toBe("a-10");
});

test("the name that is offered is one that nobody has", () => {
  const taken = new Set(["tale", "tale-2", "tale-3"]);
  expect(freeName("tale", (name) => taken.has(name))).toBe("tale-4");
  expect(freeName("tale-3", (name) => taken.has(name))).toBe("tale-4");
  expect(freeName("tale-7", (name) => taken.has(name))).toBe("tale-8");
  expect(freeName("fresh", () => false)).toBe("fresh-2");
});

test("the name that is offered for the longest name is a name", () => {
  expect(problemOfName(freeName("a".repeat(128), () => false))).toBe("");
});
