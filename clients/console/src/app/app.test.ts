import { expect, test } from "vitest";
import { actionOfKey } from "../actions/list.ts";
import { KeyRing } from "./key.ts";
import { hashOf, parseHash } from "./routes.ts";
import { ageOf, bytesOf, durationOf, partsOf } from "./words.ts";

class Kept implements Storage {
  readonly all = new Map<string, string>();
  get length(): number {
    return this.all.size;
  }
  clear = (): void => this.all.clear();
  key = (): null => null;
  getItem = (name: string): string | null => this.all.get(name) ?? null;
  setItem = (name: string, value: string): void => void this.all.set(name, value);
  removeItem = (name: string): void => void this.all.delete(name);
}

test("an address leads back to where it came from, whatever is in it", () => {
  const { pane, parts, query } = parseHash(hashOf("chat", ["a/b?c#d@3", "ü"], { q: "x=1&y" }));
  expect({ pane, parts, q: query.get("q") }).toEqual({ pane: "chat", parts: ["a/b?c#d@3", "ü"], q: "x=1&y" });
});

test.each(["", "#", "#/", "#/attic/x", "#/%E0%A4%A"])("%s is the table of states", (hash) => {
  expect(parseHash(hash).pane).toBe("states");
});

test("a key that is not to be remembered stays out of what outlives the tab", () => {
  const [tab, machine] = [new Kept(), new Kept()];
  new KeyRing(tab, machine).set("secret", false);
  expect(machine.length).toBe(0);
  expect(new KeyRing(tab, machine).key).toBe("secret");
  expect(new KeyRing(new Kept(), machine).key).toBe("");
});

test("a key that is forgotten is nowhere", () => {
  const [tab, machine] = [new Kept(), new Kept()];
  const ring = new KeyRing(tab, machine);
  ring.set("secret", true);
  ring.forget();
  expect([ring.key, tab.length, machine.length]).toEqual(["", 0, 0]);
});

test("without storage a key lasts as long as the page", () => {
  const ring = new KeyRing(null, null);
  ring.set("secret", true);
  expect(ring.key).toBe("secret");
});

test("bytes, times and ages have three digits and a unit", () => {
  expect([bytesOf(0), bytesOf(999), bytesOf(508_060), bytesOf(4_187_593_113)]).toEqual([
    ...["0 B", "999 B", "496 KiB", "3.90 GiB"],
  ]);
  expect([durationOf(830), durationOf(12_500), durationOf(3_200_000)]).toEqual(["830 us", "12.5 ms", "3.20 s"]);
  expect([ageOf(-5), ageOf(12_000), ageOf(300_000), ageOf(86_400_000 * 8)]).toEqual(["now", "12 s", "5 min", "8 d"]);
});

test("a reference has a name, and a version or none", () => {
  expect(partsOf("tale@12")).toEqual({ name: "tale", version: 12 });
  expect(partsOf("tale")).toEqual({ name: "tale", version: null });
});

test("a key does nothing where there are too few states for its action, or too many", () => {
  expect(actionOfKey("f", 1)).toBe("fork");
  expect(actionOfKey("f", 2)).toBeNull();
  expect(actionOfKey("f", 0)).toBeNull();
  expect(actionOfKey("h", 3)).toBe("hibernate");
  expect(actionOfKey("a", 0)).toBe("create");
  expect(actionOfKey("Backspace", 1)).toBe("delete");
});
