import { defineConfig } from "vitest/config";

/** Tests in Chromium against a real server: `npm run e2e`. */
export default defineConfig({
  test: { include: ["e2e/**/*.test.ts"], testTimeout: 60_000, hookTimeout: 120_000, fileParallelism: false },
});
