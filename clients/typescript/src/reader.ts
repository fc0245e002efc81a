import { ProtocolError } from "./errors.js";
import type { Integer } from "./messages.js";

const TEXT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Reads MessagePack value by value; each is of the type that is asked for, or an error. */
export class Reader {
  private at = 0;
  private readonly view: DataView;

  constructor(private readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get isAtEnd(): boolean {
    return this.at === this.bytes.length;
  }

  /** Whether nil comes next; it is read if so. */
  nil(): boolean {
    if (this.bytes[this.at] !== 0xc0) return false;
    this.at += 1;
    return true;
  }

  bool(): boolean {
    const head = this.head();
    if (head !== 0xc2 && head !== 0xc3) throw this.unexpected(head, "a boolean");
    return head === 0xc3;
  }

  int(): Integer {
    const head = this.head();
    const value = this.intOf(head);
    if (value === null) throw this.unexpected(head, "an integer");
    return value;
  }

  float(): number {
    const head = this.head();
    if (head === 0xca) return this.view.getFloat32(this.take(4));
    if (head === 0xcb) return this.view.getFloat64(this.take(8));
    const value = this.intOf(head);
    if (value === null) throw this.unexpected(head, "a number");
    return Number(value);
  }

  text(): string {
    const head = this.head();
    let length: number;
    if (head >= 0xa0 && head <= 0xbf) length = head & 0x1f;
    else if (head >= 0xd9 && head <= 0xdb) length = this.length(head - 0xd9);
    else throw this.unexpected(head, "a text");
    const start = this.take(length);
    try {
      return TEXT.decode(this.bytes.subarray(start, start + length));
    } catch {
      throw new ProtocolError("a text is not UTF-8");
    }
  }

  /** A view of the bytes of a binary, which are not copied. */
  binary(): Uint8Array {
    const head = this.head();
    if (head < 0xc4 || head > 0xc6) throw this.unexpected(head, "a binary");
    const length = this.length(head - 0xc4);
    const start = this.take(length);
    return this.bytes.subarray(start, start + length);
  }

  /** The number of elements of an array, which follow. */
  array(): number {
    const head = this.head();
    if (head >= 0x90 && head <= 0x9f) return head & 0x0f;
    if (head === 0xdc) return this.view.getUint16(this.take(2));
    if (head === 0xdd) return this.view.getUint32(this.take(4));
    throw this.unexpected(head, "an array");
  }

  /** The number of pairs of a map, which follow. */
  map(): number {
    const head = this.head();
    if (head >= 0x80 && head <= 0x8f) return head & 0x0f;
    if (head === 0xde) return this.view.getUint16(this.take(2));
    if (head === 0xdf) return this.view.getUint32(this.take(4));
    throw this.unexpected(head, "a map");
  }

  private intOf(head: number): Integer | null {
    if (head <= 0x7f) return head;
    if (head >= 0xe0) return head - 0x100;
    switch (head) {
      case 0xcc:
        return this.view.getUint8(this.take(1));
      case 0xcd:
        return this.view.getUint16(this.take(2));
      case 0xce:
        return this.view.getUint32(this.take(4));
      case 0xcf:
        return narrow(this.view.getBigUint64(this.take(8)));
      case 0xd0:
        return this.view.getInt8(this.take(1));
      case 0xd1:
        return this.view.getInt16(this.take(2));
      case 0xd2:
        return this.view.getInt32(this.take(4));
      case 0xd3:
        return narrow(this.view.getBigInt64(this.take(8)));
      default:
        return null;
    }
  }

  /** A length in 1, 2 or 4 bytes, for a `size` of 0, 1 or 2. */
  private length(size: number): number {
    if (size === 0) return this.view.getUint8(this.take(1));
    if (size === 1) return this.view.getUint16(this.take(2));
    return this.view.getUint32(this.take(4));
  }

  private head(): number {
    return this.view.getUint8(this.take(1));
  }

  /** Go on by so many bytes; where they begin. */
  private take(n: number): number {
    const start = this.at;
    if (n > this.bytes.length - start) throw new ProtocolError("the message ends too early");
    this.at = start + n;
    return start;
  }

  private unexpected(head: number, wanted: string): ProtocolError {
    return new ProtocolError(`0x${head.toString(16)} where ${wanted} is expected`);
  }
}

function narrow(value: bigint): Integer {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}
