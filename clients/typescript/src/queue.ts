/** Values that come when they come, for one reader. */
export class Queue<T> implements AsyncIterableIterator<T> {
  private readonly values: T[] = [];
  private waiting: { resolve(result: IteratorResult<T>): void; reject(why: Error): void } | null =
    null;
  private end: { readonly error: Error | null } | null = null;

  /** @param onReturn called when the reader stops before the end. */
  constructor(private readonly onReturn: () => void = () => {}) {}

  push(value: T): void {
    if (this.end) return;
    if (!this.waiting) this.values.push(value);
    else {
      this.waiting.resolve({ value, done: false });
      this.waiting = null;
    }
  }

  /** Nothing more comes: the reader gets what is there, and then the error, if there is one. */
  close(error: Error | null = null): void {
    if (this.end) return;
    this.end = { error };
    if (this.waiting && error) this.waiting.reject(error);
    else this.waiting?.resolve({ value: undefined, done: true });
    this.waiting = null;
  }

  next(): Promise<IteratorResult<T>> {
    const value = this.values.shift();
    if (value !== undefined) return Promise.resolve({ value, done: false });
    if (this.end?.error) return Promise.reject(this.end.error);
    if (this.end) return Promise.resolve({ value: undefined, done: true });
    if (this.waiting) return Promise.reject(new Error("there is one reader already"));
    return new Promise((resolve, reject) => {
      this.waiting = { resolve, reject };
    });
  }

  return(): Promise<IteratorResult<T>> {
    if (!this.end) {
      this.close();
      this.onReturn();
    }
    return Promise.resolve({ value: undefined, done: true });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
