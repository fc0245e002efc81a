import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { BrowserContext, Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { browser, NARROW, Server, site as siteOf, WIDE, type Look } from "./support.ts";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let server: Server;
let site: Awaited<ReturnType<typeof siteOf>>;

beforeAll(async () => {
  server = await Server.start();
  site = await siteOf(server);
  const post = (path: string, body: object): Promise<Response> =>
    fetch(server.url + path, { method: "POST", body: JSON.stringify(body) });
  await post("/v1/states", { name: "tale", text: "A fox named Omar.", tags: { kind: "story" } });
  const omar = [{ role: "user", content: "Who are Omar and his friends?" }];
  await post("/v1/states", { name: "talk", messages: omar });
  await post("/v1/states/tale/fork", { names: ["one", "two"] });
  await post("/v1/states/one/mutate", { operation: "decay", parameters: { factor: 0.5 } });
});

afterAll(async () => {
  await site?.close();
  await server?.stop();
});

interface Violation {
  readonly id: string;
  readonly nodes: readonly { readonly html: string; readonly failureSummary: string }[];
}

/** What axe finds wrong with the page, as text. */
async function problems(page: Page): Promise<string[]> {
  await page.evaluate(AXE);
  const found = await page.evaluate(async () => {
    const { axe } = globalThis as unknown as { axe: { run(): Promise<{ violations: Violation[] }> } };
    return (await axe.run()).violations;
  });
  return found.flatMap(({ id, nodes }) => nodes.map((one) => `${id}: ${one.html}\n${one.failureSummary}`));
}

const LOOKS: readonly [string, Look][] = [
  ["wide and light", WIDE],
  ["wide and dark", { ...WIDE, scheme: "dark" }],
  ["narrow and light", NARROW],
];
const PLACES: readonly [string, string][] = [
  ["#/states", ""],
  ["#/states/one", "Provenance"],
  ["#/lineage/one", "Provenance"],
  ["#/chat", "New conversation"],
  ["#/chat/nobody", "There is no state nobody"],
  ["#/chat/talk", "Omar and his friends"],
  ["#/chat/one/two", "forked from tale@1"],
];

test.each(LOOKS)("axe finds nothing wrong with the panes, %s", async (_, look) => {
  const context: BrowserContext = await browser(look);
  const page = await context.newPage();
  const found: string[] = [];
  for (const [hash, text] of PLACES) {
    await page.goto(`${site.url}${hash}`);
    if (text) await page.getByText(text).first().waitFor();
    else await page.locator(".table-row").first().waitFor();
    found.push(...(await problems(page)));
  }
  await page.getByRole("button", { name: "Branch from one@1" }).click();
  await page.getByRole("dialog").waitFor();
  found.push(...(await problems(page)));
  await page.goto(`${site.url}#/states/one`);
  for (const key of ["f", "m", "h", "t", "b", "g", "?"]) {
    await page.locator(".inspector").waitFor();
    await page.keyboard.press(key);
    await page.getByRole("dialog").waitFor();
    found.push(...(await problems(page)));
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
  }
  await context.close();
  expect([...new Set(found)]).toEqual([]);
});
