import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative, sep } from "node:path";
import type { Plugin } from "vite";
import { digestOfSources, sha256 } from "./sources.ts";

/** Writes `manifest.json` beside the built files: the digest of the sources, and of each file. */
export function manifest(clients: string, target: string): Plugin {
  return {
    name: "wkvm-manifest",
    apply: "build",
    closeBundle() {
      const files = readdirSync(target, { recursive: true, withFileTypes: true })
        .filter((one) => one.isFile())
        .map((one) => join(one.parentPath, one.name))
        .filter((path) => !path.endsWith("manifest.json"))
        .map((path) => [relative(target, path).split(sep).join("/"), sha256(readFileSync(path))])
        .sort(([a], [b]) => (a! < b! ? -1 : 1));
      const written = { sources: digestOfSources(clients), files: Object.fromEntries(files) };
      writeFileSync(join(target, "manifest.json"), `${JSON.stringify(written, null, 2)}\n`);
    },
  };
}
