import type { Client, LineageEntry, StateInfo } from "wkvm-client";
import { tokensOf } from "../states/query.ts";
import type { Made } from "./layout.ts";

/** Of each handle so many versions are drawn, the newest. */
export const N_NEWEST = 100;
/** So many versions are drawn at all: what the layout takes for them is not felt. */
export const N_VERSIONS = 50_000;
/** Of servers that tell no lineage, handles are asked one by one: so many, and so many at a time. */
const N_HANDLES = 500;
const SIDE_BY_SIDE = 16;

/** The versions that a picture is made of, and whether there are more than it has. */
export interface Found {
  readonly versions: readonly Made[];
  readonly isPart: boolean;
}

/** Ask for the newest versions of all handles, whose heads are given. */
export async function askVersions(client: Client, heads: readonly StateInfo[]): Promise<Found> {
  const isPart = heads.some((one) => Number(one.n_versions) > N_NEWEST);
  if (!client.canWatch) return await askOneByOne(client, heads, isPart);
  const versions: Made[] = [];
  for await (const entry of client.states.lineage({ newest: N_NEWEST })) {
    versions.push(madeOf(entry, entry.made_as));
    if (versions.length === N_VERSIONS) return { versions, isPart: true };
  }
  return { versions, isPart };
}

async function askOneByOne(client: Client, heads: readonly StateInfo[], isPart: boolean): Promise<Found> {
  const versions: Made[] = [];
  const left = heads.slice(0, N_HANDLES).values();
  const work = async (): Promise<void> => {
    for (const head of left) {
      if (Number(head.n_versions) === 1) versions.push(madeOf(head, head.name));
      else versions.push(...(await versionsOf(client, head.name)));
    }
  };
  await Promise.all(Array.from({ length: SIDE_BY_SIDE }, work));
  return { versions, isPart: isPart || heads.length > N_HANDLES };
}

async function versionsOf(client: Client, name: string): Promise<Made[]> {
  const found: Made[] = [];
  for await (const one of client.states.list({ versions_of: name, limit: N_NEWEST })) {
    if (found.push(madeOf(one, name)) === N_NEWEST) break;
  }
  return found;
}

function madeOf(info: LineageEntry | StateInfo, madeAs: string): Made {
  return {
    name: info.name,
    version: Number(info.version),
    madeAs,
    operation: info.operation,
    parents: info.parents,
    createdMs: Number(info.created_ms),
    tokens: tokensOf(info),
  };
}
