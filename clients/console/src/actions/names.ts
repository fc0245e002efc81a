/** Names of handles: see "States" in docs/protocol.md. */
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;

/** What is wrong with a name; empty if nothing is. */
export function problemOfName(name: string): string {
  if (!name) return "";
  if (name.length > 128) return "At most 128 characters.";
  return NAME.test(name) ? "" : "Letters, digits, and . _ - after the first one.";
}

/** Names for so many forks: the name itself, or the name with a number each. */
export function numbered(name: string, n: number): string[] {
  if (n <= 1) return [name];
  const digits = String(n).length;
  return Array.from({ length: n }, (_, at) => `${name}-${String(at + 1).padStart(digits, "0")}`);
}

/** The first of NAME-2, NAME-3 ... that nobody has; a number at its end is counted on. */
export function freeName(name: string, taken: (name: string) => boolean): string {
  const [, stem = name, number = "1"] = /^(.*?)(?:-(\d{1,6}))?$/.exec(name) ?? [];
  for (let n = Math.max(Number(number) + 1, 2); ; n += 1) {
    const candidate = `${stem.slice(0, 120)}-${n}`;
    if (!taken(candidate)) return candidate;
  }
}
