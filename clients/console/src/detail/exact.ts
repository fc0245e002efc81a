/** JSON, with integers that a number would round, such as seeds, as texts. */
export function parseExactly(text: string): unknown {
  const exact = text.replace(/"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g, (found) =>
    found.startsWith('"') ? found : `"${found}"`,
  );
  return JSON.parse(exact);
}
