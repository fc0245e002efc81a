import { expect, test } from "vitest";
import type { Reading } from "../app/feed.ts";
import { percentile, rateNow, rates } from "./figures.ts";

const reading = (at: number, values: Record<string, number>): Reading => ({
  at,
  values: new Map(Object.entries(values)),
});

test("a rate is what was added, divided by the time", () => {
  const readings = [reading(0, { n: 100 }), reading(2000, { n: 150 })];
  expect(rateNow(readings, "n")).toBe(25);
});

test("a rate looks back no further than its window", () => {
  const readings = [reading(0, { n: 0 }), reading(60_000, { n: 1000 }), reading(61_000, { n: 1010 })];
  expect(rateNow(readings, "n")).toBe(10);
});

test("a counter that fell counts from nothing, as after a restart", () => {
  expect(rates([reading(0, { n: 500 }), reading(1000, { n: 3 })], "n")).toEqual([3]);
});

test("there is no rate of one reading, nor of a counter that the server does not have", () => {
  expect(rateNow([reading(0, { n: 1 })], "n")).toBeNull();
  expect(rateNow([reading(0, {}), reading(1000, {})], "n")).toBeNull();
});

const histogram = (count: number, upTo: Record<number, number>): Record<string, number> => ({
  t_count: count,
  ...Object.fromEntries(Object.entries(upTo).map(([bound, n]) => [`t_le_${bound}`, n])),
});

test("a percentile is of what came during the window alone", () => {
  const readings = [
    reading(0, histogram(100, { 100: 100, 1000: 100 })),
    reading(1000, histogram(110, { 100: 100, 1000: 110 })),
  ];
  expect(percentile(readings, "t", 0.5)).toBe(550);
});

test("bounds are put in order of size, not of text", () => {
  const readings = [reading(0, histogram(0, { 1000: 0, 250: 0 })), reading(1000, histogram(4, { 1000: 4, 250: 4 }))];
  expect(percentile(readings, "t", 0.5)).toBe(125);
});

test("what is beyond the last bound is told as that bound", () => {
  const readings = [reading(0, histogram(0, { 100: 0 })), reading(1000, histogram(2, { 100: 0 }))];
  expect(percentile(readings, "t", 0.99)).toBe(100);
});

test("there is no percentile where nothing came", () => {
  const readings = [reading(0, histogram(5, { 100: 5 })), reading(1000, histogram(5, { 100: 5 }))];
  expect(percentile(readings, "t", 0.5)).toBeNull();
});
