import { expect, test } from "vitest";
import type { Client, StateChanges, StateInfo, StatsChanges } from "wkvm-client";
import { Shown } from "./feed.ts";
import { follow } from "./watching.ts";

function state(name: string, version = 1): StateInfo {
  return { name, version, head: version, updated_ms: 5 } as unknown as StateInfo;
}

function told(more: Partial<StateChanges>): StateChanges {
  return {
    type: "StateChanges", request_id: 1, restarts: false, is_complete: true,
    states: [], used_s: new Uint32Array(more.states?.length ?? 0), gone: [], ...more,
  };
}

/** What is shown after a server has told these things, one after the other. */
async function after(...messages: (StateChanges | StatsChanges)[]): Promise<Shown> {
  const shown = new Shown();
  const client = {
    canWatch: true,
    async *watch() {
      yield* messages;
    },
  } as unknown as Client;
  await follow(client, shown, new AbortController().signal);
  return shown;
}

test("a picture in parts is whole with its last part", async () => {
  const first = told({ restarts: true, is_complete: false, states: [state("a")] });
  const half = await after(first);
  expect([half.isWhole.value, [...half.states.value.keys()]]).toEqual([false, ["a"]]);
  const whole = await after(first, told({ states: [state("b")] }));
  expect([whole.isWhole.value, [...whole.states.value.keys()]]).toEqual([true, ["a", "b"]]);
});

test("what is new takes the place of what there was, and what is gone goes", async () => {
  const shown = await after(
    told({ restarts: true, states: [state("a"), state("b")] }),
    told({ states: [state("a", 2)], gone: ["b"] }),
  );
  expect([...shown.states.value].map(([name, row]) => [name, row.info.version])).toEqual([["a", 2]]);
});

test("a picture anew drops what it does not have, and not before it is complete", async () => {
  const start = told({ restarts: true, states: [state("a"), state("b")] });
  const anew = told({ restarts: true, is_complete: false, states: [state("c")] });
  expect((await after(start, anew)).states.value.size).toBe(3);
  expect([...(await after(start, anew, told({}))).states.value.keys()]).toEqual(["c"]);
});

test("when a state was used is the server's, or else when it changed", async () => {
  const used_s = Uint32Array.of(7, 0);
  const shown = await after(told({ restarts: true, states: [state("a"), state("b")], used_s }));
  expect([...shown.states.value.values()].map((row) => row.usedMs)).toEqual([7000, 5]);
});

test("counters that did not change are what they were", async () => {
  const stats = (at_us: number, values: [string, number][]): StatsChanges => ({
    type: "StatsChanges", request_id: 1, at_us, values: new Map(values),
  });
  const shown = await after(stats(1000, [["n", 1], ["m", 2]]), stats(2000, [["n", 5]]));
  expect(shown.readings.value.map(({ at, values }) => [at, Object.fromEntries(values)])).toEqual([
    [1, { n: 1, m: 2 }],
    [2, { n: 5, m: 2 }],
  ]);
});

test("a picture that begins again before it was complete has nothing of its first beginning", async () => {
  const first = told({ restarts: true, is_complete: false, states: [state("a")] });
  const again = told({ restarts: true, states: [state("b")] });
  expect([...(await after(first, again)).states.value.keys()]).toEqual(["b"]);
});
