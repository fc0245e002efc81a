import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, posix, sep } from "node:path";
import type { Plugin } from "vite";

/** Writes `licences-DIGEST.txt` beside the built files: what is built in of others, with their licences. */
export function licences(): Plugin {
  return {
    name: "wkvm-licences",
    apply: "build",
    generateBundle(_, bundle) {
      const folders = new Set<string>();
      for (const file of Object.values(bundle)) {
        if (file.type !== "chunk") continue;
        for (const id of file.moduleIds) {
          const found = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id.split(sep).join(posix.sep));
          if (found) folders.add(found[1]!);
        }
      }
      const parts = [...folders].map(licenceOf).sort();
      this.emitFile({ type: "asset", name: "licences.txt", source: parts.join("\n\n") });
    },
  };
}

function licenceOf(folder: string): string {
  const { name, version, license } = JSON.parse(
    readFileSync(join(folder, "package.json"), "utf8"),
  ) as Record<string, string>;
  const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  if (!file || !existsSync(join(folder, file))) throw new Error(`${name} has no licence`);
  return `${name} ${version}: ${license}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
}
