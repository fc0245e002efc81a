import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join, posix } from "node:path";

/** What the built console is made of, beside `clients/`: folders and files. */
export const SOURCES = [
  "console/index.html",
  "console/package-lock.json",
  "console/public",
  "console/src",
  "console/tsconfig.json",
  "console/vite.config.ts",
  "typescript/src",
] as const;

/**
 * One digest over all sources: SHA-256 of a line `DIGEST  PATH` for each file, sorted by path, as
 * sha256sum writes it. Tests beside the sources do not count. A test of the Python suite computes
 * the same, so that a build that is older than its sources is found without Node.
 */
export function digestOfSources(clients: string): string {
  const paths = SOURCES.flatMap((path) => filesOf(clients, path)).sort();
  const lines = paths.map((path) => `${sha256(readFileSync(join(clients, path)))}  ${path}\n`);
  return sha256(lines.join(""));
}

export function sha256(data: string | Uint8Array): string {
  return createHash("sha256").update(data).digest("hex");
}

function filesOf(folder: string, path: string): string[] {
  if (/\.test\.tsx?$/.test(path)) return [];
  if (/\.[a-z]+$/.test(posix.basename(path))) return [path];
  return readdirSync(join(folder, path)).flatMap((name) =>
    filesOf(folder, posix.join(path, name)),
  );
}
