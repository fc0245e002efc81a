import { expect, test } from "vitest";
import { layOut, relatives, type Made } from "./layout.ts";

let clock = 0;
function made(ref: string, parents: readonly string[] = [], more: Partial<Made> = {}): Made {
  const [name = "", version] = ref.split("@");
  clock += 1;
  return {
    name, version: Number(version), madeAs: name, operation: "generate", parents,
    createdMs: clock, tokens: 1, ...more,
  };
}

const placed = (versions: Made[]): Record<string, [number, number]> =>
  Object.fromEntries([...layOut(versions).dots].map(([ref, { row, column }]) => [ref, [row, column]]));

test("versions of a handle stand in one row, one column apart", () => {
  expect(placed([made("a@1"), made("a@2", ["a@1"])])).toEqual({ "a@1": [0, 0], "a@2": [0, 1] });
});

test("a fork stands below its parent, and a column behind it", () => {
  expect(placed([made("a@1"), made("a@2", ["a@1"]), made("b@1", ["a@1"])])["b@1"]).toEqual([1, 1]);
});

test("late forks stand above early ones, so that lines cross no row", () => {
  const dots = placed([made("a@1"), made("early@1", ["a@1"]), made("a@2", ["a@1"]), made("late@1", ["a@2"])]);
  expect(dots["late@1"]![0]).toBeLessThan(dots["early@1"]![0]);
});

test("what was made from two stands behind both, and the second line is a side line", () => {
  const picture = layOut([made("a@1"), made("a@2", ["a@1"]), made("b@1"), made("c@1", ["b@1", "a@2"])]);
  expect(picture.dots.get("c@1")!.column).toBe(2);
  expect(picture.lines.filter((line) => line.isSide).map((line) => line.from.ref)).toEqual(["a@2"]);
});

test("a version that was made from nothing follows in its row, and no line leads to it", () => {
  const picture = layOut([made("a@1"), made("a@2")]);
  expect(picture.dots.get("a@2")!.column).toBe(1);
  expect(picture.lines).toEqual([]);
});

test("children find a parent that was renamed", () => {
  const picture = layOut([made("new@1", [], { madeAs: "old" }), made("b@1", ["old@1"])]);
  expect(picture.lines.map(({ from }) => from.ref)).toEqual(["new@1"]);
});

test("a name that was given again is no parent of what is older", () => {
  const child = made("b@1", ["a@1"]);
  expect(layOut([child, made("a@1")]).lines).toEqual([]);
});

test("a parent that is gone leaves a root", () => {
  expect(placed([made("b@3", ["gone@9"])])).toEqual({ "b@3": [0, 0] });
});

test("versions of one moment that name each other end in a picture all the same", () => {
  const at = { createdMs: 7 };
  const versions = [made("a@1", ["b@1"], at), made("b@1", ["a@1"], at), made("a@2", ["a@1"], at)];
  const picture = layOut(versions);
  expect(picture.rows.length).toBe(2);
  expect(picture.dots.size).toBe(3);
});

test("relatives are all that is tied by lines, and nothing else", () => {
  const picture = layOut([made("a@1"), made("b@1", ["a@1"]), made("c@1", ["b@1"]), made("other@1")]);
  expect([...relatives(picture, "c")].sort()).toEqual(["a", "b", "c"]);
});

test("ten thousand handles in a chain are laid out without running out of stack", () => {
  const versions = Array.from({ length: 10_000 }, (_, at) => made(`h${at}@1`, at ? [`h${at - 1}@1`] : []));
  expect(layOut(versions).nColumns).toBe(10_000);
});
