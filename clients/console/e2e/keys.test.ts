import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { BrowserContext, Page } from "playwright-core";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { browser, Server, site as siteOf } from "./support.ts";

const ANNA = "anna-key-0123456789";
const BERT = "bert-key-0123456789";
const CARL = "carl-key-0123456789";
let folder: string;
let server: Server;
let site: Awaited<ReturnType<typeof siteOf>>;
let context: BrowserContext;
let page: Page;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "wkvm-keys-"));
  const keys = join(folder, "keys.txt");
  writeFileSync(keys, `anna:${ANNA}\nbert:${BERT}\n[requests=60]\ncarl:${CARL}\n`, { mode: 0o600 });
  server = await Server.start("--api-keys-file", keys);
  site = await siteOf(server);
  const headers = { Authorization: `Bearer ${ANNA}` };
  const body = JSON.stringify({ name: "annas", text: "A fox." });
  await fetch(`${server.url}/v1/states`, { method: "POST", headers, body });
});

afterAll(async () => {
  await site?.close();
  await server?.stop();
  rmSync(folder, { recursive: true, force: true });
});

beforeEach(async () => {
  context = await browser();
  page = await context.newPage();
  await page.goto(site.url);
  return () => context.close();
});

async function enter(key: string, remember = false): Promise<void> {
  await page.getByLabel("Key", { exact: true }).fill(key);
  if (remember) await page.getByLabel("Remember it on this machine").check();
  await page.getByRole("button", { name: "Open the console" }).click();
}

test("a server with keys shows nothing before it is given one", async () => {
  await page.getByRole("heading", { name: "This server has keys" }).waitFor();
  expect(await page.getByRole("grid").count()).toBe(0);
});

test("a wrong key is said to be wrong, and one with limits why it does not do", async () => {
  await enter("nonsense");
  await page.getByText("does not know this key").waitFor();
  await enter(CARL);
  await page.getByText("This key has limits").waitFor();
});

test("each key shows the states of its tenant, and no others", async () => {
  await enter(ANNA);
  await page.getByText("1 of 1 state of tenant anna").waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await enter(BERT);
  await page.getByText("No states yet").waitFor();
});

test("a key outlives a reload, and another tab only if it was to be remembered", async () => {
  await enter(ANNA);
  await page.getByText("of tenant anna").waitFor();
  await page.reload();
  await page.getByText("of tenant anna").waitFor();
  const other = await context.newPage();
  await other.goto(site.url);
  await other.getByRole("heading", { name: "This server has keys" }).waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await enter(ANNA, true);
  await page.getByText("of tenant anna").waitFor();
  await other.reload();
  await other.getByText("of tenant anna").waitFor();
});

test("what was signed out of is forgotten", async () => {
  await enter(ANNA, true);
  await page.getByText("of tenant anna").waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.reload();
  await page.getByRole("heading", { name: "This server has keys" }).waitFor();
});
