// Lines over the last minutes. What a chart shows is also there as text: a picture alone says nothing to a screen reader.
import { html, useEffect, useLayoutEffect, useRef } from "./core.js";
import { theme } from "./theme.js";

const SHOWN_S = 300;
const LEAST_S = 60; // a chart that begins is not all empty
const GRAPH_HEIGHT = 150;
const LEAST_AXIS = 40, AXIS_GAP = 14, LETTER = 6.2; // pixels, for labels of 11 pixels

const clear = (colour, alpha) => colour.replace(/^rgb\(/, "rgba(").replace(/\)$/, `, ${alpha})`);

function options(box, series, format) {
  const own = getComputedStyle(box);
  const colours = [...box.querySelectorAll(".swatch")].map((one) => getComputedStyle(one).color);
  const axis = { stroke: own.color, font: `11px ${own.fontFamily}`, ticks: { show: false } };
  return {
    width: box.querySelector(".plot").clientWidth,
    height: GRAPH_HEIGHT,
    padding: [8, 26, 0, 0], // a time at the right edge sticks out by its half
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: {
      x: { time: true, range: (_, first, last) => [Math.max(last - SHOWN_S, Math.min(first, last - LEAST_S)), last] },
      y: { range: (_, __, most) => [0, most > 0 ? most * 1.15 : 1] },
    },
    axes: [
      { ...axis, grid: { show: false }, space: 80, size: 24, incrs: [15, 30, 60, 300], values: (_, marks, __, ___, step) => marks.map((at) => new Date(at * 1000).toTimeString().slice(0, step < 60 ? 8 : 5)) },
      { ...axis, grid: { stroke: own.borderTopColor, width: 1 }, size: (_, labels) => Math.max(LEAST_AXIS, ...(labels ?? []).map((label) => AXIS_GAP + label.length * LETTER)), space: 36, values: (_, marks) => marks.map(format) },
    ],
    series: [
      {},
      ...series.map((one, place) => ({
        stroke: colours[place],
        width: 1.5,
        dash: one.dashed ? [4, 4] : undefined,
        fill: one.filled ? clear(colours[place], 0.14) : undefined,
        points: { show: false },
        spanGaps: true,
      })),
    ],
  };
}

// series: [{ name, colour ("a", "b" or "c"), values, filled, dashed }]
export function Chart({ title, note, at, series, format }) {
  const box = useRef(null);
  const plot = useRef(null);
  const colours = theme.use();
  useLayoutEffect(() => {
    plot.current = new window.uPlot(options(box.current, series, format), [[], ...series.map(() => [])], box.current.querySelector(".plot"));
    const sizes = new ResizeObserver(() => plot.current.setSize({ width: box.current.querySelector(".plot").clientWidth, height: GRAPH_HEIGHT }));
    sizes.observe(box.current);
    return () => {
      sizes.disconnect();
      plot.current.destroy();
    };
  }, [colours]);
  useEffect(() => {
    if (at.length) plot.current.setData([[...at], ...series.map((one) => [...one.values])]);
  });
  const now = series.map((one) => `${one.name} ${format(one.values.at(-1) ?? null)}`).join(", ");
  return html`<figure class="chart" ref=${box}>
    <figcaption><b>${title}</b>${note && html`<span class="note">${note}</span>`}
      <span class="legend">${series.map((one) => html`<span key=${one.name}><i class=${`swatch ${one.colour}`} />${one.name} <b>${format(one.values.at(-1) ?? null)}</b></span>`)}</span>
    </figcaption>
    <div class="plot" role="img" aria-label=${`${title}, last five minutes. Now: ${now}.`} />
  </figure>`;
}
