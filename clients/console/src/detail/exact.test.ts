import { expect, test } from "vitest";
import { parseExactly } from "./exact.ts";

test("a seed that a number would round keeps all its digits", () => {
  expect(parseExactly('{"seed":8339205506528134203,"n":39}')).toEqual({ seed: "8339205506528134203", n: 39 });
});

test("digits within texts, and fractions, are left alone", () => {
  const text = '{"a":"\\"1234567890123456789","b":0.12345678901234567,"c":[-9007199254740993]}';
  expect(parseExactly(text)).toEqual({
    a: '"1234567890123456789', b: 0.12345678901234567, c: ["-9007199254740993"],
  });
});
