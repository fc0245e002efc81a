import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { BrowserContext, Page } from "playwright-core";
import { afterAll, beforeAll, test } from "vitest";
import { browser, NARROW, Server, WIDE, type Look } from "./support.ts";

/**
 * The pictures of the console in docs/img, and the frames of its recording, which
 * `python -m tools.console_recording` puts together. Nothing in them is made up: it is the bundled
 * model, and what it says.
 */

const IMAGES = fileURLToPath(new URL("../../../docs/img/", import.meta.url));
const FRAMES = fileURLToPath(new URL("shots/frames/", import.meta.url));

let folder: string;
let server: Server;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "wkvm-pictures-"));
  server = await Server.start("--state-dir", join(folder, "states"));
  mkdirSync(IMAGES, { recursive: true });
  rmSync(FRAMES, { recursive: true, force: true });
  mkdirSync(FRAMES, { recursive: true });
});
afterAll(async () => {
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
});

async function post(path: string, body: object): Promise<void> {
  const init = { method: "POST", body: JSON.stringify(body) };
  const response = await fetch(`${server.url}/v1${path}`, init);
  if (!response.ok) throw new Error(`${path}: ${await response.text()}`);
}

const FRAME_MS = 160;

/** Takes frames of a page, each with how long it is shown. */
class Recorder {
  private readonly shown: { file: string; ms: number }[] = [];

  constructor(private readonly page: Page) {}

  /** Show the page as it is for so long. */
  async hold(ms: number): Promise<void> {
    const file = `${String(this.shown.length).padStart(4, "0")}.png`;
    await this.page.screenshot({ path: join(FRAMES, file) });
    this.shown.push({ file, ms });
  }

  /** Film until something has come. */
  async until(there: Promise<unknown>): Promise<void> {
    let isThere = false;
    const coming = there.then(() => (isThere = true));
    while (!isThere) {
      await this.hold(FRAME_MS);
      await Promise.race([coming, this.page.waitForTimeout(FRAME_MS)]);
    }
    await this.hold(FRAME_MS);
  }

  /** Say below the page what is done next. */
  async say(text: string): Promise<void> {
    await this.page.evaluate((said) => {
      let caption = document.getElementById("caption");
      if (!caption) {
        caption = document.body.appendChild(document.createElement("div"));
        caption.id = "caption";
        Object.assign(caption.style, {
          ...{ position: "fixed", left: "50%", top: "8px", transform: "translateX(-50%)", zIndex: "100" },
          ...{ padding: "4px 14px", borderRadius: "14px", background: "#14191ce6", color: "#fff" },
          ...{ font: "600 15px system-ui", pointerEvents: "none" },
        });
      }
      caption.textContent = said;
    }, text);
    await this.hold(1400);
  }

  finish(): void {
    writeFileSync(join(FRAMES, "frames.json"), JSON.stringify(this.shown));
  }
}

test("the recording", async () => {
  const context = await browser({ ...WIDE, width: 1120, height: 700 });
  const page = await context.newPage();
  const film = new Recorder(page);
  const turn = (ref: string) => page.getByRole("listitem", { name: ref, exact: true });
  const answered = async (verb: string): Promise<void> => {
    const dialog = page.getByRole("dialog");
    await dialog.waitFor();
    await film.hold(1200);
    await dialog.getByRole("button", { name: verb, exact: true }).click();
    await dialog.waitFor({ state: "detached" });
  };
  const message = page.getByRole("textbox", { name: /^Message to/ });
  await page.goto(`${server.url}/#/chat`);
  await film.say("A conversation is a state");
  await page.getByLabel("First message").fill("Tell me a story about a fox named Omar.");
  await page.getByLabel("Name of the state").fill("tale");
  await page.getByText("Sampling").click();
  await page.getByLabel("Temperature").fill("0");
  await page.getByText("Sampling").click();
  await film.hold(900);
  await page.getByRole("button", { name: "Begin" }).click();
  await film.until(turn("tale@2").waitFor());
  await film.hold(1600);

  await film.say("Branch it at any turn");
  await page.getByRole("button", { name: "Branch from tale@2" }).click();
  await page.getByLabel("Name of the new state").fill("faint");
  await answered("Branch");
  await film.until(turn("faint@1").waitFor());

  await film.say("Let the branch forget a part of what it read");
  await page.getByRole("button", { name: "Mutate faint" }).click();
  await page.getByRole("dialog").getByLabel(/factor/i).fill("0.2");
  await answered("Mutate");
  await film.until(turn("faint@2").waitFor());

  await film.say("Ask both the same");
  await message.fill("What happened next?");
  await film.hold(700);
  await page.keyboard.press("Enter");
  await film.until(Promise.all([turn("tale@3").waitFor(), turn("faint@3").waitFor()]));
  await film.hold(1800);

  await film.say("Hibernate it, and kill -9 the server");
  await page.getByRole("button", { name: "Hibernate tale" }).click();
  await answered("Hibernate");
  await film.hold(700);
  await server.stop("SIGKILL");
  const back = "the console goes on by itself when the server is back";
  await page.getByText(back).waitFor();
  await film.hold(1600);

  await film.say("Start it again: everything is there");
  await server.start();
  await page.getByText(back).waitFor({ state: "hidden" });
  await film.hold(900);
  await message.fill("Who was happy?");
  await page.keyboard.press("Enter");
  await film.until(Promise.all([turn("tale@4").waitFor(), turn("faint@4").waitFor()]));
  await film.hold(1200);

  await page.getByRole("link", { name: "Lineage" }).click();
  await film.say("How each of them came to be");
  await film.hold(2400);
  film.finish();
  await context.close();
});

/** States as an evening of work leaves them. */
async function populate(): Promise<void> {
  const names = Array.from({ length: 12 }, (_, at) => `agent-${String(at + 1).padStart(2, "0")}`);
  await post("/states/tale@2/fork", { names });
  for (const name of names.slice(0, 5)) {
    const messages = [{ role: "user", content: "What did he find?" }];
    await post(`/sessions/${name}/generate`, { messages, max_tokens: 20, temperature: 0 });
  }
  await post("/states/agent-01/mutate", { operation: "noise", parameters: { deviation: 0.1, seed: 7 } });
  await post("/states/agent-02/mutate", { operation: "blend", others: ["agent-03"], save_as: "both" });
  for (const name of names.slice(6, 10)) await post(`/states/${name}/hibernate`, { tier: "disk" });
}

test("the pictures", async () => {
  await populate();
  const dark = { ...WIDE, scheme: "dark" } as const;
  const shots: readonly [string, Look, string][] = [
    ["console-states", WIDE, "#/states/agent-01"],
    ["console-states-dark", dark, "#/states/agent-01"],
    ["console-lineage", WIDE, "#/lineage/tale"],
    ["console-lineage-dark", dark, "#/lineage/tale"],
    ["console-chat", WIDE, "#/chat/tale/faint"],
    ["console-chat-dark", dark, "#/chat/tale/faint"],
    ["console-chat-390", NARROW, "#/chat/tale"],
    ["console-chat-390-dark", { ...NARROW, scheme: "dark" }, "#/chat/tale/faint"],
    ["console-states-390", NARROW, "#/states"],
  ];
  for (const [name, look, hash] of shots) {
    const context: BrowserContext = await browser(look);
    const page = await context.newPage();
    await page.goto(`${server.url}/${hash}`);
    await page.getByText("rwkv7-tinystories").first().waitFor({ state: "attached" });
    // Gauges fill up, answers to what was asked come: there is no one event for all of it.
    await page.waitForTimeout(4000);
    await page.screenshot({ path: join(IMAGES, `${name}.png`) });
    await context.close();
  }
});
