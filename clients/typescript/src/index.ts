/** The wkvm protocol over WebSocket: token ids in and out, and operations on states. */
export { Client, connect } from "./client.js";
export type { ConnectOptions, GenerateOptions, Socket } from "./client.js";
export { GenerationStream } from "./generation.js";
export type { Choice, Output, Reason } from "./generation.js";
export { States } from "./states.js";
export type { LogPart } from "./states.js";
export { applyChanges } from "./watch.js";
export type { WatchOptions, WatchedState } from "./watch.js";
export {
  ConnectionLostError,
  ProtocolError,
  RequestFailedError,
  StateMovedError,
  WkvmError,
} from "./errors.js";
export { ClientConnection } from "./connection.js";
export { decode, encode } from "./codec.js";
export { END_REASONS, ERROR_CODES } from "./messages.js";
export type {
  HelloOk,
  Integer,
  LineageEntry,
  Sampling,
  StateChanges,
  StateInfo,
  StatsChanges,
} from "./messages.js";
