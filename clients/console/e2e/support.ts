import { spawn, type ChildProcess } from "node:child_process";
import { connect, createServer, type Server as NetServer, type Socket } from "node:net";
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

/** Where the console of a server is. */
export async function site(server: Server): Promise<{ url: string; close(): Promise<void> }> {
  return { url: `${server.url}/`, close: async () => {} };
}

/** The network between a page and a server, which a test can cut. */
export class Wire {
  private readonly open = new Set<Socket>();

  private constructor(
    private readonly server: Server,
    private readonly listener: NetServer,
    readonly url: string,
  ) {
    listener.on("connection", (near) => this.pass(near));
  }

  static async to(server: Server): Promise<Wire> {
    const listener = createServer();
    const port = await freePort();
    await new Promise<void>((resolve) => listener.listen(port, "127.0.0.1", resolve));
    return new Wire(server, listener, `http://127.0.0.1:${port}/`);
  }

  /** Break all connections. New ones are passed on as before. */
  cut(): void {
    for (const socket of this.open) socket.destroy();
  }

  close(): void {
    this.listener.close();
    this.cut();
  }

  private pass(near: Socket): void {
    const far = connect(this.server.port, "127.0.0.1");
    for (const [one, other] of [
      [near, far],
      [far, near],
    ] as const) {
      this.open.add(one);
      one.pipe(other);
      one.on("error", () => {});
      one.on("close", () => {
        this.open.delete(one);
        other.destroy();
      });
    }
  }
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
