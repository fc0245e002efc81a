import { expect, test } from "vitest";
import { parentsSaid, parentsText } from "./parents.ts";

test("a parent is said by its name", () => {
  expect(parentsText("generate", ["tale@2"])).toBe("tale@2");
  expect(parentsText("blend", ["tale@2", "other@1"])).toBe("tale@2, other@1");
});

test("bytes that had no name are said so", () => {
  expect(parentsText("import", [""])).toBe("bytes without a name");
  expect(parentsText("blend", ["", "other@1"])).toBe("bytes without a name, other@1");
  expect(parentsText("rollback", [""])).toBe("bytes without a name");
});

test("a rollback to before all that is kept goes on from the start", () => {
  expect(parentsText("rollback", ["", "tale@2"])).toBe("the start, before any token, in place of tale@2");
  expect(parentsSaid("rollback", ["", "tale@2"])[1]!.reference).toBe("tale@2");
});
