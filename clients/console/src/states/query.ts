import type { StateInfo } from "wkvm-client";
import type { Row } from "../app/feed.ts";

export const TIERS = ["device", "host", "disk", "cold"] as const;
export type Tier = (typeof TIERS)[number];
/** What a table may be sorted by. */
export const ORDERS = ["name", "version", "tier", "tokens", "bytes", "origin", "used"] as const;
export type Order = (typeof ORDERS)[number];
/** What a column is called. */
export const TITLES: Record<Order, string> = {
  name: "Name",
  version: "Version",
  tier: "Tier",
  tokens: "Tokens",
  bytes: "Bytes",
  origin: "Made by",
  used: "Last use",
};

/** Which rows of the table are shown, and in which order. It stands in the address of the page. */
export interface Query {
  /** Words that all must be found in the name, the tags or the origin; `key=value` is a tag. */
  readonly words: string;
  readonly tier: Tier | null;
  readonly order: Order;
  readonly isDescending: boolean;
}

export const WHOLE: Query = { words: "", tier: null, order: "used", isDescending: true };

/** Orders whose first click shows the largest on top. */
const LARGEST_FIRST: ReadonlySet<Order> = new Set(["version", "tokens", "bytes", "used"]);

export function queryOf(search: URLSearchParams): Query {
  const order = (search.get("sort") ?? "").replace(/^-/, "");
  const tier = search.get("tier") ?? "";
  const isKnown = isOneOf(ORDERS, order);
  return {
    words: search.get("q") ?? "",
    tier: isOneOf(TIERS, tier) ? tier : null,
    order: isKnown ? order : WHOLE.order,
    isDescending: isKnown ? search.get("sort")!.startsWith("-") : WHOLE.isDescending,
  };
}

/** What of a query differs from the whole table, for the address. */
export function searchOf(query: Query): Record<string, string> {
  const search: Record<string, string> = {};
  if (query.words) search["q"] = query.words;
  if (query.tier) search["tier"] = query.tier;
  if (query.order !== WHOLE.order || query.isDescending !== WHOLE.isDescending) {
    search["sort"] = `${query.isDescending ? "-" : ""}${query.order}`;
  }
  return search;
}

/** What a click on the head of a column asks for: this order, or the reverse of it. */
export function sortedBy(query: Query, order: Order): Query {
  const isDescending = query.order === order ? !query.isDescending : LARGEST_FIRST.has(order);
  return { ...query, order, isDescending };
}

/** The rows that a query asks for, in its order. Takes time for each row, and for sorting them. */
export function rowsOf(all: Iterable<Row>, query: Query): Row[] {
  const words = query.words.toLowerCase().split(/\s+/).filter(Boolean);
  const found: Row[] = [];
  for (const row of all) {
    if (query.tier && row.info.tier !== query.tier) continue;
    if (words.every((word) => fits(row.info, word))) found.push(row);
  }
  const sign = query.isDescending ? -1 : 1;
  const compare = COMPARE[query.order];
  return found.sort((a, b) => sign * compare(a, b) || compareNames(a, b));
}

/** How many handles there are in each tier, and how many bytes their newest versions have: those that are shared once. */
export function tiersOf(all: Iterable<Row>): Map<Tier, { n: number; bytes: number }> {
  const tiers = new Map(TIERS.map((tier) => [tier, { n: 0, bytes: 0 }]));
  const counted = new Set<string>();
  for (const { info } of all) {
    const one = tiers.get(info.tier as Tier);
    if (!one) continue;
    one.n += 1;
    if (counted.has(info.content_id)) continue;
    counted.add(info.content_id);
    one.bytes += Number(info.n_bytes);
  }
  return tiers;
}

function fits(info: StateInfo, word: string): boolean {
  if (info.name.toLowerCase().includes(word) || info.operation.includes(word)) return true;
  for (const [key, value] of info.tags) {
    if (`${key}=${value}`.toLowerCase().includes(word)) return true;
  }
  return false;
}

/** Names as they are compared: numbers in them by their value. Thousands are sorted at each change, so each is made once. */
const KEYS = new WeakMap<StateInfo, string>();

function keyOf(info: StateInfo): string {
  const known = KEYS.get(info);
  if (known !== undefined) return known;
  const key = info.name.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(20, "0"));
  KEYS.set(info, key);
  return key;
}

const COMPARE: Record<Order, (a: Row, b: Row) => number> = {
  name: compareNames,
  version: (a, b) => Number(a.info.version) - Number(b.info.version),
  tier: (a, b) => TIERS.indexOf(a.info.tier as Tier) - TIERS.indexOf(b.info.tier as Tier),
  tokens: (a, b) => tokensOf(a.info) - tokensOf(b.info),
  bytes: (a, b) => Number(a.info.n_bytes) - Number(b.info.n_bytes),
  origin: (a, b) => (a.info.operation < b.info.operation ? -1 : Number(a.info.operation > b.info.operation)),
  used: (a, b) => a.usedMs - b.usedMs,
};

function compareNames(a: Row, b: Row): number {
  const [one, other] = [keyOf(a.info), keyOf(b.info)];
  return one < other ? -1 : Number(one > other);
}

/** All tokens that belong to a state: absorbed, or pending. */
export function tokensOf(info: Pick<StateInfo, "n_computed" | "n_pending">): number {
  return Number(info.n_computed) + Number(info.n_pending);
}

function isOneOf<T extends string>(list: readonly T[], value: string): value is T {
  return (list as readonly string[]).includes(value);
}
