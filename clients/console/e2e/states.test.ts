import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { BrowserContext, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { browser, NARROW, Server, site as siteOf, WIDE } from "./support.ts";

let folder: string;
let server: Server;
let site: Awaited<ReturnType<typeof siteOf>>;
let context: BrowserContext;
let page: Page;
let errors: string[];

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "wkvm-states-"));
  server = await Server.start("--state-dir", join(folder, "states"));
  site = await siteOf(server);
  context = await browser(WIDE);
});

afterAll(async () => {
  await context?.close();
  await site?.close();
  await server?.stop();
  rmSync(folder, { recursive: true, force: true });
});

beforeEach(async () => {
  errors = [];
  page = await context.newPage();
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => {
    if (message.text().includes("Content Security Policy")) errors.push(message.text());
  });
  await page.goto(site.url);
});

afterEach(async () => {
  await page.close();
  expect(errors).toEqual([]);
});

const row = (name: string) => page.locator(".table-row", { has: page.getByText(name, { exact: true }) });
const dialog = () => page.getByRole("dialog");
const told = (text: string) => page.locator(".told-one", { hasText: text }).waitFor();

/** Go to a state, by its address. */
async function open(reference: string): Promise<void> {
  await page.evaluate((hash) => (location.hash = hash), `#/states/${reference}`);
  await page.getByRole("complementary", { name: `State ${reference}` }).getByText("Provenance").waitFor();
}

async function act(title: string): Promise<void> {
  await page.getByRole("group", { name: "Actions" }).getByRole("button", { name: title, exact: true }).click();
}

async function submit(verb: string): Promise<void> {
  await dialog().getByRole("button", { name: verb, exact: true }).click();
  await dialog().waitFor({ state: "detached" });
}

test("without states the page says how to make one, and a text becomes one", async () => {
  await page.getByText("No states yet").waitFor();
  await page.getByRole("button", { name: "New state" }).first().click();
  await dialog().getByLabel("Name").fill("tale");
  await dialog().getByLabel("Text").fill("Once upon a time there was a fox named Omar.");
  await submit("Create");
  await row("tale").waitFor();
  await page.getByText("Once upon a time there was a fox named Omar.").waitFor();
});

test("forks appear in the table, with the names that were offered", async () => {
  await open("tale");
  await act("Fork");
  expect(await dialog().getByLabel("Name").inputValue()).toBe("tale-2");
  await dialog().getByLabel("Name").fill("branch");
  await dialog().getByLabel("How many").fill("12");
  await submit("Fork");
  await row("branch-01").waitFor();
  await row("branch-12").waitFor();
});

test("a name that is none is refused before it is sent", async () => {
  await open("tale");
  await page.keyboard.press("f");
  await dialog().getByLabel("Name").fill("no name");
  await dialog().getByText("Letters, digits").waitFor();
  expect(await dialog().getByRole("button", { name: "Fork" }).isDisabled()).toBe(true);
  await page.keyboard.press("Escape");
  await dialog().waitFor({ state: "detached" });
});

test("what the server refuses is said in the dialog, and nothing is lost of it", async () => {
  await open("tale");
  await act("Fork");
  await dialog().getByLabel("Name").fill("branch-01");
  await dialog().getByRole("button", { name: "Fork" }).click();
  await dialog().getByRole("alert").waitFor();
  expect(await dialog().getByLabel("Name").inputValue()).toBe("branch-01");
});

test("the table is filtered and sorted by keys and by clicks, and the address keeps both", async () => {
  await page.locator(".table-row").first().waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("branch-1");
  await page.getByText("3 of 13 states").waitFor();
  await page.getByRole("columnheader", { name: "Name" }).getByRole("button").click();
  const names = () => page.locator(".table-row .col-name").allInnerTexts();
  await expect.poll(names).toEqual(["branch-10", "branch-11", "branch-12"]);
  await page.reload();
  await expect.poll(names).toEqual(["branch-10", "branch-11", "branch-12"]);
});

test("rows are walked, opened and marked without a mouse", async () => {
  await page.evaluate(() => (location.hash = "#/states?q=branch&sort=name"));
  await row("branch-01").waitFor();
  await page.getByRole("grid").focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  await page.getByRole("complementary", { name: "State branch-02" }).waitFor();
  await page.keyboard.press("Space");
  await page.keyboard.press("End");
  await page.keyboard.press("Space");
  await page.getByText("2 marked").waitFor();
  await page.keyboard.press("Escape");
  await page.getByText("2 marked").waitFor({ state: "detached" });
});

test("several states are hibernated together, and one comes back", async () => {
  await page.evaluate(() => (location.hash = "#/states?q=branch&sort=name"));
  await page.getByLabel("Mark branch-01").click();
  await page.getByLabel("Mark branch-02").click();
  await page.keyboard.press("h");
  await submit("Hibernate");
  await row("branch-01").getByText("disk").waitFor();
  await row("branch-02").getByText("disk").waitFor();
  await page.getByRole("button", { name: "Unmark" }).click();
  await open("branch-01");
  await page.keyboard.press("r");
  await row("branch-01").getByText("host").waitFor();
});

test("a mutation makes a version, whose provenance says with what", async () => {
  await open("branch-01");
  await act("Mutate");
  await dialog().getByLabel("Factor").fill("0.25");
  await submit("Mutate");
  const panel = page.getByRole("complementary", { name: "State branch-01" });
  await panel.getByRole("heading", { name: "branch-01@2" }).waitFor();
  await panel.locator(".provenance").getByText("0.25").waitFor();
});

test("two states are compared layer by layer", async () => {
  await open("branch-01");
  await act("Compare");
  await dialog().getByLabel("With").fill("tale");
  await dialog().getByRole("button", { name: "Compare" }).click();
  await dialog().getByText("Not the same.").waitFor();
  expect(await dialog().locator(".compare-layers > li").count()).toBeGreaterThan(3);
  await dialog().getByRole("button", { name: "Close" }).click();
});

test("an older version is gone back to", async () => {
  await open("branch-01@1");
  await act("Roll back");
  await submit("Roll back");
  await told("branch-01 went back: branch-01@3");
});

test("a state is renamed, and its page with it", async () => {
  await open("branch-03");
  await act("Rename");
  await dialog().getByLabel("New name").fill("renamed");
  await submit("Rename");
  await row("renamed").waitFor();
  await row("branch-03").waitFor({ state: "detached" });
  await page.getByRole("complementary", { name: "State renamed" }).waitFor();
});

test("tags are shown, and found", async () => {
  await open("renamed");
  await act("Tags");
  await dialog().getByLabel("Tags").fill("kind=story\nlanguage=en");
  await submit("Keep");
  await page.keyboard.press("/");
  await page.keyboard.type("language=en");
  await page.getByText("1 of 13 states").waitFor();
});

test("a state leaves as a file, and comes back as the same", async () => {
  await open("renamed");
  await act("Export");
  const [download] = await Promise.all([page.waitForEvent("download"), submit("Export")]);
  const path = join(folder, "renamed.safetensors");
  await download.saveAs(path);
  await page.keyboard.press("i");
  await dialog().getByLabel("File").setInputFiles(path);
  await dialog().getByLabel("Name").fill("back");
  await submit("Import");
  await page.getByRole("heading", { name: "back@1" }).waitFor();
  await act("Compare");
  await dialog().getByLabel("With").fill("renamed");
  await dialog().getByRole("button", { name: "Compare" }).click();
  await dialog().getByText("The same in every bit.").waitFor();
  await dialog().getByRole("button", { name: "Close" }).click();
  await dialog().waitFor({ state: "detached" });
});

test("a file that is no state is refused, in words", async () => {
  const path = join(folder, "broken.safetensors");
  writeFileSync(path, readFileSync(join(folder, "renamed.safetensors")).subarray(0, 1000));
  await page.keyboard.press("i");
  await dialog().getByLabel("File").setInputFiles(path);
  await dialog().getByRole("button", { name: "Import" }).click();
  await dialog().getByRole("alert").waitFor();
  await dialog().getByRole("button", { name: "Cancel" }).click();
});

test("a state is deleted after a question", async () => {
  await open("back");
  await page.keyboard.press("Delete");
  await submit("Delete");
  await row("back").waitFor({ state: "detached" });
  expect(await page.getByRole("complementary").count()).toBe(0);
});

test("the lineage has a line for each fork, and leads to what is related", async () => {
  await page.evaluate(() => (location.hash = "#/lineage/tale"));
  await page.getByRole("link", { name: /^version 1 of tale: create/ }).waitFor();
  expect(await page.locator(".graph-line.line-fork").count()).toBe(12);
  expect(await page.locator(".graph-line.line-mutation").count()).toBe(1);
  await page.getByRole("link", { name: /^version 2 of branch-01: decay/ }).click();
  await page.getByRole("heading", { name: "branch-01@2" }).waitFor();
  await page.getByRole("group", { name: "Versions, by handle" }).focus();
  await page.keyboard.press("ArrowLeft");
  await page.getByRole("heading", { name: "branch-01@1" }).waitFor();
});

test("a server that goes away is said so, and all is there again when it is back", async () => {
  await row("tale").waitFor();
  await server.stop("SIGKILL");
  await page.getByText("the console goes on by itself").waitFor();
  expect(await row("tale").count()).toBe(1);
  await row("tale").click();
  await page.keyboard.press("f");
  await dialog().getByRole("button", { name: "Fork" }).click();
  await dialog().getByRole("alert").getByText("no connection").waitFor();
  await dialog().getByRole("button", { name: "Cancel" }).click();
  await server.start();
  await page.getByText("the console goes on by itself").waitFor({ state: "detached" });
  await open("tale");
  await act("Fork");
  await dialog().getByLabel("Name").fill("after");
  await submit("Fork");
  await row("after").waitFor();
});

test("all controls have names, in every pane", async () => {
  for (const hash of ["#/states/tale", "#/lineage/tale", "#/chat"]) {
    await page.evaluate((to) => (location.hash = to), hash);
    await page.locator("main > *").first().waitFor();
    const nameless = await page.evaluate(() =>
      [...document.querySelectorAll("button, a, input, select, textarea, [role=grid]")]
        .filter((one) => !(one.getAttribute("aria-label") || one.textContent?.trim() || (one as HTMLInputElement).labels?.length || one.closest("[aria-hidden=true]") || one.getAttribute("aria-hidden")))
        .map((one) => one.outerHTML),
    );
    expect(nameless).toEqual([]);
  }
});

test("at 390 pixels nothing is wider than the page, and a state covers it", async () => {
  await page.setViewportSize(NARROW);
  await row("tale").waitFor();
  for (const hash of ["#/states", "#/states/tale", "#/lineage", "#/chat"]) {
    await page.evaluate((to) => (location.hash = to), hash);
    await page.locator("main > *").first().waitFor();
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    expect(wide).toBeLessThanOrEqual(NARROW.width);
  }
  await open("tale");
  const box = await page.getByRole("complementary").boundingBox();
  expect(box?.width).toBe(NARROW.width);
});
