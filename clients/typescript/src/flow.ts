/** Bytes of a state on their way, in one direction of one lane: how many may and will come. */
export class Flow {
  isOver = false;

  /**
   * @param left how many bytes there are; null until that is said.
   * @param credit how many of them may be sent before more is granted; null for no limit.
   */
  constructor(
    private left: number | null,
    private credit: number | null,
  ) {}

  get hasBegun(): boolean {
    return this.left !== null;
  }

  /** How many bytes have not been sent. */
  get missing(): number {
    return this.left ?? 0;
  }

  /** How many bytes may be sent now. */
  get room(): number {
    return this.credit === null ? this.missing : Math.min(this.missing, this.credit);
  }

  /** It is said how many bytes there are. What is wrong comes back in words, here as below. */
  begin(nBytes: number): string | null {
    if (this.left !== null) return "bytes are on their way already";
    this.left = nBytes;
    return null;
  }

  /** More may be sent; with `atMostAll` not more than there is. */
  grant(nBytes: number, atMostAll: boolean): string | null {
    if (this.credit === null) return null;
    if (atMostAll && this.credit + nBytes > this.missing) return "more is granted than there is";
    this.credit += nBytes;
    return null;
  }

  take(nBytes: number): string | null {
    if (this.left === null || this.isOver) return "no bytes are expected now";
    if (nBytes > this.left) return `${nBytes} bytes where ${this.left} are left`;
    if (this.credit !== null) {
      if (nBytes > this.credit) return `${nBytes} bytes where ${this.credit} were granted`;
      this.credit -= nBytes;
    }
    this.left -= nBytes;
    return null;
  }

  /** It is said that all were sent. */
  end(): string | null {
    if (this.left === null || this.isOver) return "no bytes are expected now";
    this.isOver = true;
    return null;
  }
}
