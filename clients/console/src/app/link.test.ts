import { expect, test } from "vitest";
import { ConnectionLostError, type Client } from "wkvm-client";
import { KeyRing } from "./key.ts";
import { Link, type Surroundings } from "./link.ts";

/** A browser whose server is what the test says. */
class World implements Surroundings {
  readonly origin = "https://models.example";
  readonly urls: string[] = [];
  readonly keys: string[] = [];
  readonly delays: number[] = [];
  status = 400;
  body: object = { error: { code: "subprotocol_missing" } };
  isUp = true;
  private timers: (() => void)[] = [];
  private breaks: ((error: ConnectionLostError) => void)[] = [];

  /** Connections that are made when the test says so. */
  held: (() => void)[] | null = null;
  readonly closed: string[] = [];

  async connect(url: string, key: string): Promise<Client> {
    this.urls.push(url);
    this.keys.push(key);
    if (!this.isUp || this.status !== 400) throw new ConnectionLostError("no WebSocket");
    await new Promise<void>((resolve) => (this.held ? this.held.push(resolve) : resolve()));
    const closed = new Promise<ConnectionLostError>((resolve) => this.breaks.push(resolve));
    const close = (): void => void this.closed.push(key);
    return { closed, info: { model: "tiny", tenant: key }, close } as unknown as Client;
  }

  fetch(): Promise<Response> {
    if (!this.isUp) return Promise.reject(new TypeError("refused"));
    return Promise.resolve(new Response(JSON.stringify(this.body), { status: this.status }));
  }

  now = (): number => 0;
  random = (): number => 1;

  later(ms: number, call: () => void): () => void {
    this.delays.push(ms);
    this.timers.push(call);
    return () => (this.timers = this.timers.filter((one) => one !== call));
  }

  breakAll(): void {
    for (const end of this.breaks.splice(0)) end(new ConnectionLostError("it broke"));
  }

  pass(): void {
    for (const call of this.timers.splice(0)) call();
  }
}

function link(world: World, key = ""): Link {
  const keys = new KeyRing(null, null);
  keys.set(key, false);
  const made = new Link(keys, world);
  made.start();
  return made;
}

const settled = (): Promise<void> => new Promise((resolve) => setTimeout(resolve));

test("a page of https connects by wss, with its key", async () => {
  const world = new World();
  await link(world, "secret").open();
  expect([world.urls, world.keys]).toEqual([["wss://models.example/v1/ws"], ["secret"]]);
});

test("a server with keys is told from one that is away", async () => {
  const world = new World();
  world.status = 401;
  const one = link(world);
  await settled();
  expect(one.state.value).toEqual({ kind: "key", problem: "needed" });
  one.useKey("wrong", false);
  await settled();
  expect(one.state.value).toEqual({ kind: "key", problem: "wrong" });
  expect(world.delays).toEqual([]);
});

test("a key with limits is told of as such", async () => {
  const world = new World();
  world.status = 403;
  world.body = { error: { code: "key_has_limits", message: "not for keys with limits" } };
  const one = link(world, "limited");
  await settled();
  expect(one.state.value).toEqual({ kind: "key", problem: "limited" });
});

test("a server that is away is tried again, more and more rarely, and at once when asked to", async () => {
  const world = new World();
  world.isUp = false;
  const one = link(world);
  for (let n = 0; n < 7; n += 1) {
    await settled();
    world.pass();
  }
  expect(world.delays.slice(0, 7)).toEqual([500, 1000, 2000, 4000, 5000, 5000, 5000]);
  world.isUp = true;
  one.start();
  await one.open();
  expect(one.state.value.kind).toBe("open");
});

test("a connection that breaks is opened again, and who waited gets the new one", async () => {
  const world = new World();
  const one = link(world);
  const first = await one.open();
  world.breakAll();
  await settled();
  expect(one.state.value.kind).toBe("lost");
  const next = one.open();
  world.pass();
  expect(await next).not.toBe(first);
});

test("what the server told of itself is still known while it is away", async () => {
  const world = new World();
  const one = link(world);
  await one.open();
  world.breakAll();
  await settled();
  expect(one.info.value?.model).toBe("tiny");
});

test("a link that was closed stays closed", async () => {
  const world = new World();
  const one = link(world);
  await one.open();
  one.close();
  world.breakAll();
  await settled();
  world.pass();
  await settled();
  expect(world.urls.length).toBe(1);
});

test("an answer of 401 to a request means that the key is no longer known", async () => {
  const world = new World();
  const one = link(world, "secret");
  await one.open();
  world.status = 401;
  await one.fetch("/v1/models");
  expect(one.state.value).toEqual({ kind: "key", problem: "wrong" });
});

test("what is asked for while there is no connection fails at once", async () => {
  const world = new World();
  world.isUp = false;
  const one = link(world);
  await settled();
  expect(() => one.openNow()).toThrow(ConnectionLostError);
});

test("a connection that was begun with another key is closed, and never used", async () => {
  const world = new World();
  world.held = [];
  const one = link(world, "first");
  one.useKey("second", false);
  for (const made of world.held) made();
  expect((await one.open()).info.tenant).toBe("second");
  expect(world.closed).toEqual(["first"]);
});
