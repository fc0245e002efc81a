/** Which other states went another way from a conversation, and where they left it. */

import { refOf } from "../app/words.ts";

/** What of a version's lineage matters here; see StateLineage in docs/protocol.md. */
export interface Kin {
  readonly name: string;
  readonly version: number;
  /** The name of its handle when it was made. */
  readonly madeAs: string;
  readonly parents: readonly string[];
}

/** A way that leaves a conversation. */
export interface Branch {
  /** Where it has come to: a state's newest version, or one that nothing goes on from. */
  readonly ref: string;
  /** The last version that both have. */
  readonly from: string;
  /** Whether it is the newest version of its name. */
  readonly isHead: boolean;
}

/**
 * The ways that leave a conversation.
 *
 * @param line the versions of the conversation, as they are called now.
 * @param lineage of all versions.
 * @returns by where they leave it, the newest of a name first.
 */
export function branchesOf(line: readonly string[], lineage: readonly Kin[]): Branch[] {
  const now = new Map<string, Kin>();
  const heads = new Map<string, Kin>();
  for (const one of lineage) {
    now.set(`${one.madeAs}@${one.version}`, one);
    const head = heads.get(one.name);
    if (!head || one.version > head.version) heads.set(one.name, one);
  }
  const onLine = new Set(line);
  const hasChild = new Set<string>();
  for (const one of lineage) {
    const parent = now.get(one.parents[0] ?? "");
    if (parent) hasChild.add(refOf(parent));
  }
  const branches: Branch[] = [];
  for (const one of lineage) {
    const ref = refOf(one);
    const isHead = heads.get(one.name) === one;
    if (onLine.has(ref) || (hasChild.has(ref) && !isHead)) continue;
    const from = leaves(one, onLine, now);
    if (from) branches.push({ ref, from, isHead });
  }
  const place = new Map(line.map((ref, at) => [ref, at]));
  return branches.sort((one, other) => place.get(one.from)! - place.get(other.from)!);
}

/** The version of the line that a version comes from, if it does. */
function leaves(
  version: Kin,
  line: ReadonlySet<string>,
  now: ReadonlyMap<string, Kin>,
): string | null {
  const seen = new Set<Kin>();
  for (let at: Kin | undefined = version; at && !seen.has(at); ) {
    seen.add(at);
    const parent: Kin | undefined = now.get(at.parents[0] ?? "");
    if (parent && line.has(refOf(parent))) return refOf(parent);
    at = parent;
  }
  return null;
}
