import { ERROR_CODES, type Error as ErrorMessage, type Failed } from "./messages.js";

/** Base of all errors of this package. */
export class WkvmError extends Error {
  override name = "WkvmError";
}

/** The peer broke the protocol, or a message is not one that may be sent. */
export class ProtocolError extends WkvmError {
  override name = "ProtocolError";
}

/** There is no connection any more, or there never was one. */
export class ConnectionLostError extends WkvmError {
  override name = "ConnectionLostError";
  constructor(
    message: string,
    /** Close code of the WebSocket; see "Over WebSocket" in docs/protocol.md. */
    readonly closeCode: number | null = null,
    /** What the server said before it closed, if it said so. */
    readonly error: ErrorMessage | null = null,
  ) {
    super(message);
  }
}

const NAMES = new Map<number, string>(
  Object.entries(ERROR_CODES).map(([name, code]) => [code, name]),
);

/** The server refused or ended a request. The connection and all other requests go on. */
export class RequestFailedError extends WkvmError {
  override name = "RequestFailedError";
  readonly code: number;
  /** The code's name, such as "STATE_NOT_FOUND"; "UNKNOWN" for a code that came later. */
  readonly codeName: string;
  readonly retryable: boolean;
  /** Which field is wrong; empty if none in particular. */
  readonly field: string;
  /** How long to wait before trying again; 0 if that is not known. */
  readonly retryAfterMs: number;

  constructor(failed: Failed) {
    super(failed.message);
    this.code = Number(failed.code);
    this.codeName = NAMES.get(this.code) ?? "UNKNOWN";
    this.retryable = failed.retryable;
    this.field = failed.field;
    this.retryAfterMs = Number(failed.retry_after_ms);
  }
}

/** The state is at another server now. */
export class StateMovedError extends WkvmError {
  override name = "StateMovedError";
  constructor(
    message: string,
    /** Address of that server. */
    readonly target: string,
    /** What the state is called there: `NAME@VERSION`. */
    readonly state: string,
  ) {
    super(message);
  }
}
