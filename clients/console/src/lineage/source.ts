import type { Client, StateInfo } from "wkvm-client";
import { tokensOf } from "../states/query.ts";
import type { Made } from "./layout.ts";

/** Of each handle so many versions are drawn, the newest. */
export const N_NEWEST = 100;
/** Of servers that tell no lineage, handles are asked one by one: so many, and so many at a time. */
const N_HANDLES = 500;
const SIDE_BY_SIDE = 16;

/** The versions that a picture is made of, and whether there are more than it has. */
export interface Found {
  readonly versions: readonly Made[];
  readonly isPart: boolean;
}

/** Ask for the newest versions of all handles, or of the given ones. */
export async function askVersions(client: Client, heads: Iterable<StateInfo>): Promise<Found> {
  const all = [...heads];
  const handles = all.slice(0, N_HANDLES);
  const versions: Made[] = [];
  const left = handles.values();
  const work = async (): Promise<void> => {
    for (const head of left) {
      if (Number(head.n_versions) === 1) versions.push(madeOf(head));
      else versions.push(...(await versionsOf(client, head.name)));
    }
  };
  await Promise.all(Array.from({ length: SIDE_BY_SIDE }, work));
  const isPart = handles.length < all.length || handles.some((one) => Number(one.n_versions) > N_NEWEST);
  return { versions, isPart };
}

async function versionsOf(client: Client, name: string): Promise<Made[]> {
  const found: Made[] = [];
  for await (const one of client.states.list({ versions_of: name, limit: N_NEWEST })) {
    if (found.push(madeOf(one)) === N_NEWEST) break;
  }
  return found;
}

function madeOf(info: StateInfo): Made {
  return {
    name: info.name,
    version: Number(info.version),
    madeAs: info.name,
    operation: info.operation,
    parents: info.parents,
    createdMs: Number(info.created_ms),
    tokens: tokensOf(info),
  };
}
