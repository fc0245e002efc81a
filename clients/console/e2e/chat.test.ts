import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { BrowserContext, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { browser, NARROW, Server, WIDE, Wire } from "./support.ts";

const KEY = "correct-horse-battery-staple-of-anna";
const OTHER_KEY = "correct-horse-battery-staple-of-bert";
const QUESTION = "Tell me a story about a fox named Omar.";

/** One server, with states that survive it, and a page of the console on it. */
class Place {
  private constructor(
    readonly folder: string,
    readonly server: Server,
    readonly wire: Wire,
    readonly context: BrowserContext,
    readonly page: Page,
  ) {}

  static async open(look = WIDE, ...flags: string[]): Promise<Place> {
    const folder = mkdtempSync(join(tmpdir(), "wkvm-chat-"));
    const keys = join(folder, "keys");
    writeFileSync(keys, `anna:${KEY}\nbert:${OTHER_KEY}\n`, { mode: 0o600 });
    const known = flags.map((flag) => (flag === "KEYS" ? keys : flag));
    const server = await Server.start("--state-dir", join(folder, "states"), ...known);
    const wire = await Wire.to(server);
    const context = await browser(look);
    const page = context.pages()[0] ?? (await context.newPage());
    page.setDefaultTimeout(15_000);
    return new Place(folder, server, wire, context, page);
  }

  async close(): Promise<void> {
    await this.context.close();
    this.wire.close();
    await this.server.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }

  async go(...parts: string[]): Promise<void> {
    await this.page.goto(`${this.wire.url}#/${parts.map(encodeURIComponent).join("/")}`);
  }

  /** Begin a conversation, and wait for the first answer. */
  async begin(name: string, message = QUESTION): Promise<void> {
    await this.go("chat");
    await this.page.getByLabel("First message").fill(message);
    await this.page.getByLabel("Name of the state").fill(name);
    await this.page.getByRole("button", { name: "Begin" }).click();
    await this.turn(`${name}@2`).waitFor();
  }

  /** What is shown of a version. */
  turn(ref: string) {
    return this.page.getByRole("listitem", { name: ref, exact: true });
  }

  async send(message: string, to: string | RegExp = /^Message to/): Promise<void> {
    await this.page.getByRole("textbox", { name: to }).fill(message);
    await this.page.keyboard.press("Enter");
  }

  /** Answer the dialog that opens, with a name in its first field if there is one to give. */
  async answerDialog(verb: string, name?: string): Promise<void> {
    const dialog = this.page.getByRole("dialog");
    await dialog.waitFor();
    if (name !== undefined) await dialog.getByRole("textbox").first().fill(name);
    await dialog.getByRole("button", { name: verb, exact: true }).click();
    await dialog.waitFor({ state: "detached" });
  }

  /** Greedy answers of a few tokens. */
  async beBrief(nTokens = 24): Promise<void> {
    await this.page.getByRole("button", { name: "Sampling" }).click();
    await this.page.getByLabel("Most tokens").fill(String(nTokens));
    await this.page.getByLabel("Temperature").fill("0");
    await this.page.keyboard.press("Tab");
  }

  /** Whether anything is wider than the window. */
  async overflows(): Promise<boolean> {
    return await this.page.evaluate(
      () => document.documentElement.scrollWidth > document.documentElement.clientWidth,
    );
  }
}

describe.each([
  ["without keys", []],
  ["with a key", ["--api-keys-file", "KEYS"]],
  ["through two processes of HTTP", ["--gateway-workers", "2"]],
])("a conversation %s", (_, flags) => {
  let place: Place;
  let page: Page;
  let before: string[];

  beforeAll(async () => {
    place = await Place.open(WIDE, ...flags);
    page = place.page;
  });
  afterAll(() => place.close());

  test("is opened", async () => {
    await place.go("chat");
    if (flags.includes("KEYS")) {
      await page.getByLabel("Key", { exact: true }).fill(KEY);
      await page.keyboard.press("Enter");
    }
    await page.getByRole("heading", { name: "New conversation" }).waitFor();
  });

  test("begins with a message, and the answer comes", async () => {
    await place.begin("tale");
    expect(await place.turn("tale@1").innerText()).toContain(QUESTION);
    expect(await place.turn("tale@2").innerText()).toMatch(/\w+ \w+/);
  });

  test("goes on, turn by turn", async () => {
    await place.beBrief();
    await place.send("What happened next?");
    await place.turn("tale@3").waitFor();
    expect(await place.turn("tale@3").innerText()).toContain("What happened next?");
  });

  test("is branched at a turn, and both are shown side by side", async () => {
    await page.getByRole("button", { name: "Branch from tale@2" }).click();
    await page.getByLabel("Name of the new state").fill("calm");
    await page.getByLabel("Ask there").fill("Who was happy?");
    await page.getByRole("button", { name: "Branch", exact: true }).click();
    await place.turn("calm@2").waitFor();
    const left = page.getByRole("list", { name: "Conversation of tale" });
    const right = page.getByRole("list", { name: "Conversation of calm" });
    expect(await left.innerText()).toContain("What happened next?");
    expect(await left.innerText()).not.toContain("Who was happy?");
    expect(await right.innerText()).toContain("Who was happy?");
    expect(await page.getByRole("list", { name: "In common" }).innerText()).toContain(QUESTION);
    await page.getByText(/\d+ tokens in common/).waitFor();
  });

  test("is mutated, which is shown where it was done", async () => {
    await page.getByRole("button", { name: "Mutate calm" }).click();
    await place.answerDialog("Mutate");
    await place.turn("calm@3").waitFor();
    expect(await place.turn("calm@3").innerText()).toContain("decay");
  });

  test("is asked the same as its branch, and both answer", async () => {
    await page.getByRole("radio", { name: "both" }).check();
    await place.send("What did the fox see?", "Message to both");
    await place.turn("tale@4").waitFor();
    await place.turn("calm@4").waitFor();
    expect(await page.getByRole("img", { name: /^Distance by layer/ }).count()).toBeGreaterThan(0);
  });

  test("is forked in the table of states", async () => {
    await place.go("states", "tale");
    await page.getByRole("button", { name: "Fork" }).first().click();
    await place.answerDialog("Fork", "spare");
    await place.go("chat", "spare");
    await place.turn("spare@1").waitFor();
    expect(await place.turn("spare@1").innerText()).toContain("forked from tale@4");
  });

  test("is hibernated", async () => {
    await place.go("chat", "tale");
    await place.turn("tale@4").waitFor();
    before = await page.locator(".chat-text").allInnerTexts();
    await page.getByRole("button", { name: "Hibernate tale" }).click();
    await place.answerDialog("Hibernate");
    await page.getByRole("button", { name: "Resume tale" }).waitFor();
  });

  test("is there after the server was killed, and resumed", async () => {
    await place.server.stop("SIGKILL");
    await page.getByText("the console goes on by itself when the server is back").waitFor();
    await place.server.start();
    await page.getByText("the console goes on by itself").waitFor({ state: "hidden" });
    // To look at a conversation reads its state, which brings it up; the table does not.
    await place.go("states", "tale");
    const actions = page.getByRole("group", { name: "Actions" });
    await actions.getByRole("button", { name: "Resume", exact: true }).click();
    await actions.getByRole("button", { name: "Hibernate", exact: true }).waitFor();
    await place.go("chat", "tale");
    await page.reload();
    await place.turn("tale@4").waitFor();
    expect(await page.locator(".chat-text").allInnerTexts()).toEqual(before);
    await place.beBrief();
    await place.send("And then?");
    await place.turn("tale@5").waitFor();
  });

  test("tells of the ways that leave it", async () => {
    await page.getByRole("link", { name: /^Compare with calm@/ }).click();
    await page.getByRole("list", { name: "Conversation of calm" }).waitFor();
  });

  test("of another tenant is answered like one that never was", async () => {
    if (!flags.includes("KEYS")) return;
    await page.evaluate(() => {
      sessionStorage.clear();
      localStorage.clear();
    });
    await place.go("chat", "tale");
    await page.reload();
    await page.getByLabel("Key", { exact: true }).fill(OTHER_KEY);
    await page.keyboard.press("Enter");
    await page.getByText("There is no state tale").waitFor();
    expect(await page.getByText(QUESTION).count()).toBe(0);
  });
});

describe.each([
  ["of one process", []],
  ["through two processes of HTTP", ["--gateway-workers", "2"]],
])("an answer %s", (_, flags) => {
  let place: Place;
  let page: Page;
  let name: string;
  let n = 0;

  beforeAll(async () => {
    place = await Place.open(WIDE, ...flags);
    page = place.page;
  });
  afterAll(() => place.close());

  /** A conversation of its own, in the middle of an answer that does not end by itself. */
  async function answering(): Promise<void> {
    name = `story-${(n += 1)}`;
    const state = { name, text: "User: Count.\n\nAssistant: One. Two. Three." };
    await fetch(`${place.server.url}/v1/states`, { method: "POST", body: JSON.stringify(state) });
    await page.goto("about:blank");
    await place.go("chat", name);
    await place.turn(`${name}@1`).waitFor();
    await page.getByRole("button", { name: "Sampling" }).click();
    await page.getByLabel("Most tokens").fill("100000");
    await page.keyboard.press("Tab");
    // The bundled model's stories are short: the tokens that would end one are ruled out here.
    await page.route("**/generate", async (route) => {
      const ends = { "0": -100, "1": -100 };
      const body = { ...(route.request().postDataJSON() as object), logit_bias: ends };
      await route.continue({ postData: JSON.stringify(body) });
    });
    await place.send("Go on.");
    await expect.poll(() => said(), { timeout: 30_000 }).toMatch(/\w+ \w+ \w+/);
  }

  async function said(): Promise<string> {
    const running = page.locator(".chat-turn.running .assistant .chat-text");
    return (await running.count()) ? await running.innerText() : "";
  }

  /** End it, and see that there is one version more, and no more than one. */
  async function ended(): Promise<string> {
    await page.getByRole("button", { name: "Stop" }).click();
    await place.turn(`${name}@2`).waitFor();
    expect(await page.locator(".chat-turn").count()).toBe(2);
    return await place.turn(`${name}@2`).innerText();
  }

  test("is stopped, and what there is of it is kept and gone on with", async () => {
    await answering();
    expect(await ended()).toContain("Go on.");
    await page.getByRole("button", { name: "Go on", exact: true }).click();
    await expect.poll(() => said(), { timeout: 30_000 }).toMatch(/\w/);
    await page.getByRole("button", { name: "Stop" }).click();
    await place.turn(`${name}@3`).waitFor();
  });

  test("is stopped by Escape", async () => {
    await answering();
    await page.getByRole("textbox", { name: /^Message to/ }).press("Escape");
    await place.turn(`${name}@2`).waitFor();
  });

  test("goes on where a lost connection left it", async () => {
    await answering();
    const before = await said();
    for (let n = 0; n < 3; n += 1) {
      place.wire.cut();
      const length = (await said()).length;
      await expect.poll(async () => (await said()).length, { timeout: 30_000 }).toBeGreaterThan(length);
    }
    expect((await said()).startsWith(before)).toBe(true);
    await ended();
  });

  test("is read on after the page was loaded again", async () => {
    await answering();
    await page.reload();
    await expect.poll(() => said(), { timeout: 30_000 }).toMatch(/\w+ \w+ \w+/);
    await ended();
  });

  test("is asked for again, and once, after the server was killed in the middle of it", async () => {
    await answering();
    await place.server.stop("SIGKILL");
    await page.getByText("The connection is lost.").waitFor();
    await place.server.start();
    await page.getByText("The connection is lost.").waitFor({ state: "hidden" });
    await expect.poll(() => said(), { timeout: 30_000 }).toMatch(/\w+ \w+ \w+/);
    await ended();
  });

  test("is made again, and the one before stays to be compared with", async () => {
    await answering();
    await ended();
    await page.getByRole("button", { name: "Try again" }).click();
    await expect.poll(() => said(), { timeout: 30_000 }).toMatch(/\w+ \w+ \w+/);
    await page.getByRole("button", { name: "Stop" }).click();
    await place.turn(`${name}@4`).waitFor();
    await page.getByRole("link", { name: `Compare with ${name}@2` }).click();
    await page.getByRole("list", { name: `Conversation of ${name}@2` }).waitFor();
  });

  test("on a state that is not there is refused in words", async () => {
    await place.go("chat", "nobody");
    await page.getByText("There is no state nobody").waitFor();
  });
});

describe("a narrow window", () => {
  let place: Place;

  beforeAll(async () => {
    place = await Place.open(NARROW);
  });
  afterAll(() => place.close());

  test("has room for a conversation, and for two", async () => {
    const { page } = place;
    await place.begin("tale");
    expect(await place.overflows()).toBe(false);
    await page.getByRole("button", { name: "Branch from tale@1" }).click();
    await page.getByRole("button", { name: "Branch", exact: true }).click();
    await page.getByRole("list", { name: "Conversation of tale-2" }).waitFor();
    expect(await place.overflows()).toBe(false);
    await page.getByRole("textbox", { name: "Message to both" }).waitFor();
  });
});

describe("without a pointer", () => {
  let place: Place;

  beforeAll(async () => {
    place = await Place.open();
  });
  afterAll(() => place.close());

  /** Tab until something of this name has the focus. */
  async function reach(label: string): Promise<void> {
    for (let steps = 0; steps < 60; steps += 1) {
      const focused = await place.page.evaluate(() => {
        const at = document.activeElement as HTMLInputElement | null;
        return at?.getAttribute("aria-label") ?? at?.labels?.[0]?.textContent ?? at?.textContent ?? "";
      });
      if (focused === label) return;
      await place.page.keyboard.press("Tab");
    }
    throw new Error(`${label} is not reached`);
  }

  test("a conversation is begun, gone on with, and branched", async () => {
    const { page } = place;
    const { keyboard } = page;
    await place.go("states");
    await page.getByRole("link", { name: "Chat" }).waitFor();
    await keyboard.press("3");
    await page.getByRole("heading", { name: "New conversation" }).waitFor();
    await reach("First message");
    await keyboard.type(QUESTION);
    await reach("Begin");
    await keyboard.press("Enter");
    await place.turn("talk@2").waitFor();
    // The field for the next message has the focus by itself.
    await keyboard.type("What happened next?");
    await keyboard.press("Enter");
    await place.turn("talk@3").waitFor();
    await keyboard.press("Shift+Tab");
    await reach("Branch from talk@2");
    await keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await reach("Ask there");
    await keyboard.type("Who was there?");
    await reach("Branch");
    await keyboard.press("Enter");
    await place.turn("talk-2@2").waitFor();
  });
});
