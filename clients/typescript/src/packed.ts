const IS_LITTLE = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

/** Unsigned 32-bit integers as they travel: little-endian, end to end. */
export function idsToBytes(ids: Uint32Array): Uint8Array {
  return swapped(new Uint8Array(ids.buffer, ids.byteOffset, ids.byteLength));
}

export function floatsToBytes(values: Float32Array): Uint8Array {
  return swapped(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
}

/** The integers of packed bytes, whose length is a multiple of 4. They are copied. */
export function idsOfBytes(bytes: Uint8Array): Uint32Array {
  return new Uint32Array(aligned(bytes));
}

export function floatsOfBytes(bytes: Uint8Array): Float32Array {
  return new Float32Array(aligned(bytes));
}

function aligned(bytes: Uint8Array): ArrayBuffer {
  return swapped(bytes).slice().buffer as ArrayBuffer;
}

function swapped(bytes: Uint8Array): Uint8Array {
  if (IS_LITTLE) return bytes;
  const turned = bytes.slice();
  for (let at = 0; at < turned.length; at += 4) turned.subarray(at, at + 4).reverse();
  return turned;
}
