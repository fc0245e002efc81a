import { afterAll, beforeAll, expect, test } from "vitest";
import { browser, Server, site as siteOf } from "./support.ts";

let source: Server;
let target: Server;
let closed: Server;
let site: Awaited<ReturnType<typeof siteOf>>;

beforeAll(async () => {
  source = await Server.start();
  site = await siteOf(source);
  target = await Server.start("--allowed-origins", new URL(site.url).origin);
  closed = await Server.start();
  const body = JSON.stringify({ name: "mover", text: "A fox named Omar." });
  await fetch(`${source.url}/v1/states`, { method: "POST", body });
});

afterAll(async () => {
  await site?.close();
  await Promise.all([source, target, closed].map((one) => one?.stop()));
});

test("a state moves to a server that allows the page, and stays where it is if the other does not", async () => {
  const context = await browser();
  const page = await context.newPage();
  await page.goto(`${site.url}#/states/mover`);
  const dialog = page.getByRole("dialog");
  await page.getByText("Provenance").waitFor();
  await page.keyboard.press("g");
  await dialog.getByLabel("The other server").fill(closed.url);
  await dialog.getByRole("button", { name: "Migrate" }).click();
  await dialog.getByRole("alert").waitFor();
  await dialog.getByLabel("The other server").fill(target.url);
  await dialog.getByLabel("Name there").fill("moved");
  await dialog.getByRole("button", { name: "Migrate" }).click();
  await page.getByText(`mover is moved@1 at ${target.url} now`).waitFor();
  const there = await (await fetch(`${target.url}/v1/states/moved`)).json();
  expect(there).toMatchObject({ name: "moved", operation: "import" });
  await page.getByText("wkvm.moved").waitFor();
  await context.close();
});
