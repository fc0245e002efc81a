import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";
import { licences } from "./build/licences.ts";
import { manifest } from "./build/manifest.ts";

const clients = fileURLToPath(new URL("..", import.meta.url));
const target = fileURLToPath(new URL("../../wkvm/gateway/console", import.meta.url));
/** The server that `npm run dev` passes requests on to. */
const server = process.env["WKVM_URL"] ?? "http://127.0.0.1:8000";

export default defineConfig({
  // Relative, so that the console works below any path of a proxy.
  base: "./",
  resolve: {
    alias: { "wkvm-client": fileURLToPath(new URL("../typescript/src/index.ts", import.meta.url)) },
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: target,
    emptyOutDir: true,
    target: ["chrome123", "firefox121", "safari17.5"],
    // The page's policy allows nothing inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  plugins: [licences(), manifest(clients, target)],
  server: {
    proxy: Object.fromEntries(
      ["/v1", "/health", "/ready", "/tokenize", "/detokenize", "/tokenizer_info"].map((path) => [
        path,
        { target: server, ws: true },
      ]),
    ),
  },
  test: { include: ["src/**/*.test.ts", "src/**/*.test.tsx"] },
} as Parameters<typeof defineConfig>[0]);
