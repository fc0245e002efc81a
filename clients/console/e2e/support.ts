import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import {
  createServer as createHttpServer,
  request as ask,
  type ClientRequest,
  type IncomingMessage,
} from "node:http";
import { createServer } from "node:net";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium, type BrowserContext } from "playwright-core";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/** How a window is seen. */
export interface Look {
  readonly width: number;
  readonly height: number;
  readonly scheme: "light" | "dark";
}

export const WIDE: Look = { width: 1280, height: 800, scheme: "light" };
export const NARROW: Look = { width: 390, height: 844, scheme: "light" };

/** A browser of its own; `WKVM_CHROMIUM` names the program. */
export async function browser(look: Look = WIDE): Promise<BrowserContext> {
  const program = await chromium.launch({
    executablePath: process.env["WKVM_CHROMIUM"] ?? "/usr/bin/chromium",
    args: FLAGS,
  });
  const context = await program.newContext({
    viewport: { width: look.width, height: look.height },
    colorScheme: look.scheme,
  });
  context.on("close", () => void program.close());
  return context;
}

/** A server of the bundled model, on a port of its own. It can be stopped and started again there. */
export class Server {
  private process: ChildProcess | null = null;

  private constructor(
    readonly port: number,
    private readonly flags: readonly string[],
  ) {}

  /** Start one; `flags` are those of `wkvm serve`. `WKVM_PYTHON` names the Python to run it with. */
  static async start(...flags: string[]): Promise<Server> {
    const server = new Server(await freePort(), flags);
    await server.start();
    return server;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async start(): Promise<void> {
    const command = ["-m", "wkvm", "serve", "--port", String(this.port), "--binary-port", "none"];
    const child = spawn(process.env["WKVM_PYTHON"] ?? "python", [...command, ...this.flags], {
      cwd: ROOT,
      stdio: ["ignore", "pipe", "inherit"],
    });
    this.process = child;
    await new Promise<void>((resolve, reject) => {
      child.stdout.on("data", (data: Buffer) => {
        if (String(data).includes("ready")) resolve();
      });
      child.once("exit", (code) => reject(new Error(`the server ended with ${code}`)));
    });
  }

  async stop(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    const child = this.process;
    this.process = null;
    if (!child || child.exitCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await ended;
  }
}

/** Where the console of a server is: at the server itself, or, where that serves none, at a preview. */
export async function site(server: Server): Promise<{ url: string; close(): Promise<void> }> {
  const answer = await fetch(`${server.url}/`);
  const text = await answer.text();
  if (answer.ok && text.includes("<script")) return { url: `${server.url}/`, close: async () => {} };
  return await preview(server);
}

const BUILT = fileURLToPath(new URL("../../../wkvm/gateway/console/", import.meta.url));
const TYPES: Readonly<Record<string, string>> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
};

/**
 * Serves the built files as the server will, until it does so itself; for what has no `/` yet. All
 * else goes to the server, and a connection that the server loses is lost here, too.
 */
export async function preview(server: Server): Promise<{ url: string; close(): Promise<void> }> {
  const files = createHttpServer((request, response) => {
    const path = (request.url ?? "/").split("?")[0]!;
    const file = join(BUILT, path === "/" ? "index.html" : path.slice(1));
    if (existsSync(file)) {
      response.setHeader("Content-Type", TYPES[extname(file)] ?? "application/octet-stream");
      response.end(readFileSync(file));
      return;
    }
    const asked = requestOf(server, request);
    asked.on("response", (answer) => {
      response.writeHead(answer.statusCode!, answer.headers);
      answer.pipe(response);
      answer.on("error", () => response.destroy());
    });
    asked.on("error", () => response.destroy());
    response.on("close", () => asked.destroy());
    request.pipe(asked);
  });
  files.on("upgrade", (request, socket) => {
    const asked = requestOf(server, request);
    const refuse = (): unknown => socket.destroy();
    socket.on("error", () => asked.destroy());
    asked.on("error", refuse);
    asked.on("response", refuse);
    asked.on("upgrade", (answer, other) => {
      const lines = Object.entries(answer.headers).map(([name, value]) => `${name}: ${String(value)}`);
      socket.write(["HTTP/1.1 101 Switching Protocols", ...lines, "", ""].join("\r\n"));
      other.on("error", refuse).on("close", refuse).pipe(socket);
      socket.on("close", () => other.destroy()).pipe(other);
    });
    asked.end();
  });
  const port = await freePort();
  await new Promise<void>((resolve) => files.listen(port, "127.0.0.1", resolve));
  const close = async (): Promise<void> => {
    files.close();
    files.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${port}/`, close };
}

function requestOf(server: Server, request: IncomingMessage): ClientRequest {
  const { method, url, headers } = request;
  return ask(new URL(url ?? "/", server.url), { method: method ?? "GET", headers, agent: false });
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}
