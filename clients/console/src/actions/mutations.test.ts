import { expect, test } from "vitest";
import { LAYERS, MUTATIONS, valueOf } from "./mutations.ts";

const parameter = (operation: string, name: string) =>
  MUTATIONS.find((one) => one.name === operation)!.parameters.find((one) => one.name === name)!;

test("what is left empty is not sent, unless it is needed", () => {
  expect(valueOf(parameter("add", "weight"), "")).toBeUndefined();
  expect(() => valueOf(parameter("decay", "factor"), "")).toThrow("needed");
});

test("a number is held to its range", () => {
  expect(valueOf(parameter("decay", "factor"), "0")).toBe(0);
  expect(valueOf(parameter("decay", "factor"), "1")).toBe(1);
  expect(() => valueOf(parameter("decay", "factor"), "1.01")).toThrow("from 0 to 1");
  expect(() => valueOf(parameter("decay", "factor"), "much")).toThrow("no number");
});

test("a seed is a whole number", () => {
  expect(() => valueOf(parameter("noise", "seed"), "1.5")).toThrow("no whole number");
});

test("layers are numbers and ranges of them", () => {
  expect(valueOf(LAYERS, "0-2, 5")).toEqual([0, 1, 2, 5]);
  expect(() => valueOf(LAYERS, "first")).toThrow("no layer");
  expect(() => valueOf(LAYERS, "7-3, 9")).toThrow("7-3 is no layer");
});

test("flags and lists have their types", () => {
  expect(valueOf(parameter("noise", "relative"), "false")).toBe(false);
  expect(valueOf(parameter("blend", "weights"), "0.25 0.75")).toEqual([0.25, 0.75]);
});
