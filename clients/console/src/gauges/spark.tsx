const WIDTH = 96;
const HEIGHT = 22;

/** A line of the last figures, on a scale from zero to the largest of them. It is decoration: the figure is beside it. */
export function Spark({ values, n }: { values: readonly number[]; n: number }) {
  const top = Math.max(...values, 0) || 1;
  const step = WIDTH / Math.max(1, n - 1);
  const start = WIDTH - (values.length - 1) * step;
  const points = values.map(
    (value, at) => `${(start + at * step).toFixed(1)},${(HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(1)}`,
  );
  return (
    <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      {points.length > 1 && <polyline points={points.join(" ")} />}
    </svg>
  );
}
