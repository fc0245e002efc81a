import { connect, RequestFailedError, type Client, type StateInfo } from "wkvm-client";

/** Where a state is to go. */
export interface Target {
  /** The address of the other server's HTTP, such as "http://10.0.0.2:8000". */
  readonly address: string;
  readonly key: string;
  /** What it is to be called there. */
  readonly name: string;
}

/**
 * Move a state, and the stream that runs on it, to another server: see "Migration" in
 * docs/states.md. The bytes go through this page, which holds them whole for a while.
 *
 * @returns the state as it is there.
 * @throws what went wrong. Until the other side has it, the source goes on as if nothing had been.
 */
export async function migrate(source: Client, state: string, to: Target): Promise<StateInfo> {
  const url = webSocketOf(to.address);
  const target = await connect(url, to.key ? { apiKey: to.key } : {});
  try {
    const begun = await source.ask({
      type: "MigrateBegin", request_id: source.newRequestId(), state,
    });
    if (begun.type !== "StateVersions") throw new Error("the server named no version");
    let moved: StateInfo;
    try {
      const ref = `${begun.states[0]!.name}@${begun.states[0]!.version}`;
      moved = await target.states.import(to.name, await source.states.export(ref));
    } catch (error) {
      await end(source, state, null);
      throw error;
    }
    await end(source, state, { ...to, version: moved.version });
    return moved;
  } finally {
    target.close();
  }
}

/** The address of the protocol at a server's HTTP address. */
export function webSocketOf(address: string): string {
  const url = new URL(/^[a-z]+:\/\//i.test(address) ? address : `http://${address}`);
  const isSafe = url.protocol === "https:" || url.protocol === "wss:";
  return `${isSafe ? "wss" : "ws"}://${url.host}${url.pathname.replace(/\/$/, "")}/v1/ws`;
}

async function end(
  source: Client,
  state: string,
  to: (Target & { readonly version: StateInfo["version"] }) | null,
): Promise<void> {
  const moved = to
    ? { target: webSocketOf(to.address), target_name: to.name, target_version: to.version }
    : {};
  try {
    await source.ask({
      type: "MigrateEnd", request_id: source.newRequestId(), state,
      committed: to !== null, ...moved,
    });
  } catch (error) {
    // Whoever gives up need not know whether it was given up already.
    if (to || !(error instanceof RequestFailedError)) throw error;
  }
}
