/** What the picture needs to know of one version. */
export interface Made {
  readonly name: string;
  readonly version: number;
  /** What its handle was called when it was made, which its children call it. */
  readonly madeAs: string;
  readonly operation: string;
  /** `NAME@VERSION`, the first being what it continues; empty text for what had no name. */
  readonly parents: readonly string[];
  readonly createdMs: number;
  readonly tokens: number;
}

/** A version in the picture. */
export interface Dot {
  readonly made: Made;
  readonly ref: string;
  /** Steps from the first of its ancestors. */
  readonly column: number;
  /** The row of its handle. */
  readonly row: number;
}

/** From a parent to what was made from it. Those after the first parent are `isSide`. */
export interface Line {
  readonly from: Dot;
  readonly to: Dot;
  readonly isSide: boolean;
}

/** Handles from top to bottom, each with its versions from left to right. */
export interface Picture {
  readonly rows: readonly { readonly name: string; readonly dots: readonly Dot[]; readonly depth: number }[];
  readonly lines: readonly Line[];
  readonly dots: ReadonlyMap<string, Dot>;
  readonly nColumns: number;
}

/**
 * Lay out versions: a handle is a row, a version stands one column behind the last of its parents,
 * and a fork lies below what it was forked from, late ones above early ones, so that no line to a
 * first child crosses a row between. Takes time for each version and each parent.
 */
export function layOut(versions: Iterable<Made>): Picture {
  const byHandle = new Map<string, Made[]>();
  const known = new Map<string, Made>();
  for (const made of versions) {
    const own = byHandle.get(made.name);
    if (own) own.push(made);
    else byHandle.set(made.name, [made]);
  }
  for (const own of byHandle.values()) own.sort((a, b) => a.version - b.version);
  // What is called so now counts before what was called so once.
  for (const own of byHandle.values()) {
    for (const made of own) known.set(`${made.madeAs}@${made.version}`, made);
  }
  for (const own of byHandle.values()) {
    for (const made of own) known.set(`${made.name}@${made.version}`, made);
  }
  const parentsOf = resolver(known);
  const columns = columnsOf(byHandle, parentsOf);
  const order = orderOf(byHandle, parentsOf, columns);
  return drawn(byHandle, parentsOf, columns, order);
}

/** The handles that have to do with one: what it came from, what came of it, and so on. */
export function relatives(picture: Picture, name: string): ReadonlySet<string> {
  const near = new Map<string, Set<string>>();
  const join = (a: string, b: string): void => {
    const found = near.get(a) ?? new Set();
    near.set(a, found.add(b));
  };
  for (const { from, to } of picture.lines) {
    join(from.made.name, to.made.name);
    join(to.made.name, from.made.name);
  }
  const found = new Set([name]);
  for (const one of found) for (const other of near.get(one) ?? []) found.add(other);
  return found;
}

type ParentsOf = (made: Made) => readonly Made[];

/** The parents that are there. */
function resolver(known: ReadonlyMap<string, Made>): ParentsOf {
  return (made) => {
    const found: Made[] = [];
    for (const ref of made.parents) {
      const parent = ref ? known.get(ref) : undefined;
      // A name that was given again may lead to something younger: that is no parent.
      if (parent && parent !== made && isEarlier(parent, made) && !found.includes(parent)) {
        found.push(parent);
      }
    }
    return found;
  };
}

function isEarlier(a: Made, b: Made): boolean {
  if (a.name === b.name) return a.version < b.version;
  return a.createdMs <= b.createdMs;
}

/** Parents are older, so one pass by age gives each version its column. */
function columnsOf(byHandle: Map<string, Made[]>, parentsOf: ParentsOf): Map<Made, number> {
  const all = [...byHandle.values()].flat();
  all.sort((a, b) => a.createdMs - b.createdMs || a.version - b.version);
  const before = new Map<Made, Made>();
  for (const own of byHandle.values()) {
    own.forEach((made, at) => at && before.set(made, own[at - 1]!));
  }
  const columns = new Map<Made, number>();
  // Equal times may put a child before its parent: what is not placed yet is placed first.
  const waiting: Made[] = all.reverse();
  const isWaiting = new Set<Made>();
  while (waiting.length) {
    const made = waiting.at(-1)!;
    if (columns.has(made)) {
      waiting.pop();
      continue;
    }
    const earlier = before.get(made);
    const needed = earlier ? [...parentsOf(made), earlier] : parentsOf(made);
    const missing = needed.filter((one) => !columns.has(one) && !isWaiting.has(one));
    if (missing.length) {
      isWaiting.add(made);
      waiting.push(...missing);
      continue;
    }
    waiting.pop();
    columns.set(made, Math.max(-1, ...needed.map((one) => columns.get(one) ?? -1)) + 1);
  }
  return columns;
}

/** Handles from top to bottom: each below the one that its first version came from. */
function orderOf(
  byHandle: Map<string, Made[]>,
  parentsOf: ParentsOf,
  columns: Map<Made, number>,
): { name: string; depth: number }[] {
  const below = new Map<string, { name: string; column: number }[]>();
  const roots: { name: string; column: number; age: number }[] = [];
  for (const [name, own] of byHandle) {
    const first = own[0]!;
    const parent = parentsOf(first)[0];
    const column = columns.get(first)!;
    if (parent && parent.name !== name) {
      const found = below.get(parent.name) ?? [];
      found.push({ name, column });
      below.set(parent.name, found);
    } else roots.push({ name, column, age: first.createdMs });
  }
  roots.sort((a, b) => b.age - a.age || (a.name < b.name ? -1 : 1));
  const order: { name: string; depth: number }[] = [];
  const seen = new Set<string>();
  const stack = roots.reverse().map(({ name }) => ({ name, depth: 0 }));
  while (stack.length) {
    const next = stack.pop()!;
    if (seen.has(next.name)) continue;
    seen.add(next.name);
    order.push(next);
    const children = below.get(next.name) ?? [];
    children.sort((a, b) => a.column - b.column || (a.name < b.name ? 1 : -1));
    stack.push(...children.map(({ name }) => ({ name, depth: next.depth + 1 })));
  }
  // Two handles may each begin with what was made from the other: they hang from nothing.
  for (const name of byHandle.keys()) if (!seen.has(name)) order.push({ name, depth: 0 });
  return order;
}

function drawn(
  byHandle: Map<string, Made[]>,
  parentsOf: ParentsOf,
  columns: Map<Made, number>,
  order: readonly { name: string; depth: number }[],
): Picture {
  const dots = new Map<string, Dot>();
  const dotOf = new Map<Made, Dot>();
  let nColumns = 0;
  const rows = order.map(({ name, depth }, row) => {
    const own = byHandle.get(name)!.map((made) => {
      const dot: Dot = { made, ref: `${name}@${made.version}`, column: columns.get(made)!, row };
      nColumns = Math.max(nColumns, dot.column + 1);
      dots.set(dot.ref, dot);
      dotOf.set(made, dot);
      return dot;
    });
    return { name, dots: own, depth };
  });
  const lines: Line[] = [];
  for (const to of dots.values()) {
    parentsOf(to.made).forEach((parent, at) => {
      lines.push({ from: dotOf.get(parent)!, to, isSide: at > 0 });
    });
  }
  return { rows, lines, dots, nColumns };
}
