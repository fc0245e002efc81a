// Against a server that runs: WKVM_URL names its WebSocket, such as ws://127.0.0.1:8000/v1/ws.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import {
  applyChanges,
  connect,
  ConnectionLostError,
  RequestFailedError,
  type Client,
  type LineageEntry,
  type WatchedState,
} from "../src/index.js";

const url = process.env["WKVM_URL"];
const apiKey = process.env["WKVM_API_KEY"] ?? "";
const options = { skip: url ? false : "WKVM_URL names no server" };
const PROMPT = [5, 6, 7, 8];
const GREEDY = { temperature: 0, ignore_eos: true };

let client: Client;
before(async () => {
  if (url) client = await connect(url, { apiKey });
});
after(() => client?.close());

test("a completion has the ids that it is said to have", options, async () => {
  const { ids, reason, end } = await client
    .generate(PROMPT, { ...GREEDY, max_tokens: 20 })
    .completion();
  assert.equal(reason, "length");
  assert.equal(ids.length, 20);
  assert.equal(Number(end.n_output), 20);
});

test("choices of one request come apart", options, async () => {
  const choices = await client.generate(PROMPT, { n: 3, seed: 1, max_tokens: 12 }).choices();
  assert.equal(new Set(choices.map((one) => one.ids.join())).size, 3);
});

test("a stream with credit comes whole while it is read", options, async () => {
  const wanted = { ...GREEDY, max_tokens: 40 };
  const whole = (await client.generate(PROMPT, wanted).completion()).ids;
  const ids: number[] = [];
  for await (const output of client.generate(PROMPT, { ...wanted, credit: 4 })) {
    if (output.kind === "ids") ids.push(...output.ids);
  }
  assert.deepEqual(ids, whole);
});

test("log probabilities come with the ids", options, async () => {
  const stream = client.generate(PROMPT, { ...GREEDY, max_tokens: 3, logprobs: 2 });
  let n = 0;
  for await (const output of stream) if (output.kind === "logprobs") n += output.logprobs.ids.length;
  assert.equal(n, 3);
});

test("who stops reading cancels, and the connection goes on", options, async () => {
  for await (const output of client.generate(PROMPT, { ...GREEDY, max_tokens: 100_000 })) {
    if (output.kind === "ids") break;
  }
  assert.equal((await client.generate(PROMPT, { max_tokens: 1 }).completion()).ids.length, 1);
});

test("what is wrong with a request says which field, and ends it alone", options, async () => {
  const wrong = client.generate(PROMPT, { top_p: 2 }).completion();
  await assert.rejects(wrong, (error: RequestFailedError) => error.field === "top_p");
  assert.ok((await client.stats()).size > 10);
});

test("a state goes on, is forked, rolled back, moved as a file, and deleted", options, async () => {
  const name = `live-${Date.now()}`;
  const first = client.generate(PROMPT, { ...GREEDY, max_tokens: 5, save_as: name });
  const head = (await first.completion()).ids;
  const going = { ...GREEDY, max_tokens: 5 };
  const on = (await client.generate([], { ...going, state: name }).completion()).ids;
  const whole = await client.generate(PROMPT, { ...GREEDY, max_tokens: 10 }).completion();
  assert.deepEqual([...head, ...on], whole.ids);
  const [fork] = await client.states.fork(name, [`${name}.fork`]);
  const file = await client.states.export(`${name}.fork`);
  const imported = await client.states.import(`${name}.copy`, file);
  assert.equal(imported.n_bytes, fork!.n_bytes);
  const copied = await client.generate([], { ...going, state: `${name}.copy` }).completion();
  assert.deepEqual(copied.ids, on);
  await client.generate([], { ...going, state: name, save_as: name }).completion();
  const back = await client.states.rollback(name, { version: 1 });
  assert.equal(Number(back.version), 3);
  assert.ok(await client.states.log(name));
  const names = [];
  for await (const one of client.states.list({ prefix: name })) names.push(one.name);
  assert.deepEqual(names.sort(), [name, `${name}.copy`, `${name}.fork`]);
  for (const one of names) await client.states.delete(one);
  const gone = client.states.get(name);
  await assert.rejects(gone, (error: RequestFailedError) => error.codeName === "STATE_NOT_FOUND");
});

test("a watch tells what there is and what changes, and ends with its loop", options, async () => {
  assert.ok(client.canWatch);
  const other = await connect(url!, { apiKey });
  await other.states.create("watched-a", PROMPT);
  const table = new Map<string, WatchedState>();
  let readings = 0;
  for await (const news of client.watch({ prefix: "watched-", interval_ms: 20, stats_ms: 100 })) {
    if (news.type === "StatsChanges") {
      readings += 1;
      continue;
    }
    applyChanges(table, news);
    if (news.is_complete && !table.has("watched-b")) {
      await other.states.fork("watched-a", ["watched-b"]);
    } else if (table.has("watched-b") && table.has("watched-a")) {
      await other.states.delete("watched-a");
    } else if (table.has("watched-b")) break;
  }
  assert.ok(readings > 0);
  const lineage: LineageEntry[] = [];
  for await (const one of other.states.lineage({ prefix: "watched-" })) lineage.push(one);
  assert.deepEqual(
    lineage.map((one) => [one.name, one.parents]),
    [["watched-b", ["watched-a@1"]]],
  );
  await other.states.delete("watched-b");
  other.close();
});

test("a watch that is aborted ends, and the connection goes on", options, async () => {
  const end = new AbortController();
  for await (const news of client.watch({ signal: end.signal })) {
    assert.equal(news.type, "StateChanges");
    end.abort();
  }
  assert.ok((await client.stats()).size > 10);
});

test("a long prompt crosses whole", options, async () => {
  const prompt = Array.from({ length: 3000 }, (_, at) => at % 500);
  const { end } = await client.generate(prompt, { max_tokens: 1 }).completion();
  assert.equal(Number(end.n_prompt), 3000);
});

test("nobody at an address is an error that says so", options, async () => {
  await assert.rejects(connect("ws://127.0.0.1:9/v1/ws"), ConnectionLostError);
});
