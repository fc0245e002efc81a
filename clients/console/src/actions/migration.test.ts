import { expect, test } from "vitest";
import { webSocketOf } from "./migration.ts";

test.each([
  ["http://10.0.0.2:8000", "ws://10.0.0.2:8000/v1/ws"],
  ["https://models.example/wkvm/", "wss://models.example/wkvm/v1/ws"],
  ["10.0.0.2:8000", "ws://10.0.0.2:8000/v1/ws"],
])("%s is reached at %s", (address, url) => {
  expect(webSocketOf(address)).toBe(url);
});

test("what is no address is refused", () => {
  expect(() => webSocketOf("http://")).toThrow();
});
