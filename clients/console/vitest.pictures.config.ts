import { defineConfig } from "vitest/config";

/** Takes the pictures of docs/img: `npm run pictures`. */
export default defineConfig({
  test: { include: ["e2e/**/*.pictures.ts"], testTimeout: 300_000, hookTimeout: 120_000, fileParallelism: false },
});
