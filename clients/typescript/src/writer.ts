import type { Integer } from "./messages.js";

const TEXT = new TextEncoder();

/** Writes MessagePack, with integers and lengths in their shortest form and floats as float 64. */
export class Writer {
  private bytes = new Uint8Array(256);
  private view = new DataView(this.bytes.buffer);
  private size = 0;

  nil(): void {
    this.byte(0xc0);
  }

  bool(value: boolean): void {
    this.byte(value ? 0xc3 : 0xc2);
  }

  float(value: number): void {
    this.byte(0xcb);
    this.put(8, (view, at) => view.setFloat64(at, value));
  }

  int(value: Integer): void {
    if (typeof value === "bigint") {
      if (value < 0n) this.negative(value);
      else this.positive(value);
    } else if (value >= 0 && value < 0x1_0000_0000) this.small(value);
    else this.int(BigInt(value));
  }

  text(value: string): void {
    const bytes = TEXT.encode(value);
    if (bytes.length < 32) this.byte(0xa0 | bytes.length);
    else this.sized(0xd9, bytes.length);
    this.append(bytes);
  }

  binary(bytes: Uint8Array): void {
    this.sized(0xc4, bytes.length);
    this.append(bytes);
  }

  /** An array of so many elements, which are to follow. */
  array(length: number): void {
    this.collection(0x90, 0xdc, length);
  }

  /** A map of so many pairs, which are to follow. */
  map(length: number): void {
    this.collection(0x80, 0xde, length);
  }

  finish(): Uint8Array {
    return this.bytes.slice(0, this.size);
  }

  private small(value: number): void {
    if (value < 0x80) this.byte(value);
    else if (value < 0x100) {
      this.byte(0xcc);
      this.byte(value);
    } else if (value < 0x10000) {
      this.byte(0xcd);
      this.put(2, (view, at) => view.setUint16(at, value));
    } else {
      this.byte(0xce);
      this.put(4, (view, at) => view.setUint32(at, value));
    }
  }

  private positive(value: bigint): void {
    if (value < 0x1_0000_0000n) this.small(Number(value));
    else {
      this.byte(0xcf);
      this.put(8, (view, at) => view.setBigUint64(at, value));
    }
  }

  private negative(value: bigint): void {
    if (value >= -32n) this.byte(Number(value) & 0xff);
    else if (value >= -0x80n) {
      this.byte(0xd0);
      this.put(1, (view, at) => view.setInt8(at, Number(value)));
    } else if (value >= -0x8000n) {
      this.byte(0xd1);
      this.put(2, (view, at) => view.setInt16(at, Number(value)));
    } else if (value >= -0x8000_0000n) {
      this.byte(0xd2);
      this.put(4, (view, at) => view.setInt32(at, Number(value)));
    } else {
      this.byte(0xd3);
      this.put(8, (view, at) => view.setBigInt64(at, value));
    }
  }

  /** A head and a length in 1, 2 or 4 bytes. */
  private sized(head: number, length: number): void {
    if (length < 0x100) {
      this.byte(head);
      this.byte(length);
    } else this.wide(head + 1, length);
  }

  private collection(fix: number, head: number, length: number): void {
    if (length < 16) this.byte(fix | length);
    else this.wide(head, length);
  }

  private wide(head: number, length: number): void {
    if (length < 0x10000) {
      this.byte(head);
      this.put(2, (view, at) => view.setUint16(at, length));
    } else {
      this.byte(head + 1);
      this.put(4, (view, at) => view.setUint32(at, length));
    }
  }

  /** Write a number of so many bytes: the view is another one after room was made. */
  private put(n: number, set: (view: DataView, at: number) => void): void {
    const at = this.room(n);
    set(this.view, at);
  }

  private byte(value: number): void {
    const at = this.room(1);
    this.bytes[at] = value;
  }

  private append(bytes: Uint8Array): void {
    const at = this.room(bytes.length);
    this.bytes.set(bytes, at);
  }

  /** Make room for so many bytes; where they begin. */
  private room(n: number): number {
    const start = this.size;
    if (start + n > this.bytes.length) {
      const larger = new Uint8Array(Math.max(2 * this.bytes.length, start + n));
      larger.set(this.bytes);
      this.bytes = larger;
      this.view = new DataView(larger.buffer);
    }
    this.size = start + n;
    return start;
  }
}
