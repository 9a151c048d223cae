import { describe, expect, it } from "vitest";
import { describeGrid, normaliseRows, paintLevels } from "../src/grid";
import { chooseLooks, colour, dash, drawMark } from "../src/looks";
import { formatNumber, formatPercent } from "../src/numbers";
import type { PageBlock } from "../src/page";
import { drawCurve, hasHiddenPoints, makeAxes, tabulateChart, type Box, type Chart } from "../src/plot";
import { groupBlocks } from "../src/report";
import { makeScale, makeNameScale, roundNumbers } from "../src/scale";
import { describeMean } from "../src/seeds";
import { arrangeRows, listValues, makeColumns, nextOrder } from "../src/table";

const BOX: Box = { width: 400, height: 300, left: 50, x: (s) => 50 + 340 * s, y: (s) => 260 - 240 * s };

function makeChart(parts: Partial<Chart>): Chart {
  return { title: "t", x_label: "x", y_label: "y", curves: [], log_x: false, log_y: false, x_names: [], split: null, ...parts };
}

describe("numbers", () => {
  it("keeps significant digits and drops zeros at the end", () => {
    expect([0.5, 1234.5678, 1e-8, 128000, 2.5e7, 0].map((v) => formatNumber(v))).toEqual(["0.5", "1,235", "1e-8", "128,000", "25,000,000", "0"]);
    expect(formatNumber(null)).toBe("–");
    expect(formatNumber(-0.000123456)).toBe("-1.235e-4");
  });
  it("writes percents without hiding small ones", () => {
    expect([0, 0.0001, 0.1234, 0.9996, 1].map(formatPercent)).toEqual(["0", "<0.1", "12.3", "100", "100"]);
  });
});

describe("axes", () => {
  it("begin at 0 if the values are near it, and have round ticks", () => {
    const axis = makeScale([0.1, 0.9]);
    expect(axis.low).toBe(0);
    expect(axis.ticks.map((t) => t.text)).toEqual(["0", "0.2", "0.4", "0.6", "0.8"]);
    expect(makeScale([0.80, 0.88]).low).toBeGreaterThan(0.7);
    expect(roundNumbers(0, 10, 4)).toEqual([0, 2.5, 5, 7.5, 10]);
    expect(roundNumbers(0, 10, 4, true)).toEqual([0, 5, 10]);
    expect(makeScale([1, 2, 3]).ticks.map((t) => t.text)).toEqual(["0", "1", "2", "3"]);
  });
  it("have room for one value, for none and for huge ones", () => {
    for (const values of [[7], [], [-1e308, 1e308], [null, NaN, Infinity]]) {
      const axis = makeScale(values);
      expect(axis.high).toBeGreaterThan(axis.low);
      expect(axis.ticks.every((t) => t.at >= 0 && t.at <= 1)).toBe(true);
    }
  });
  it("that are logarithmic show powers, or the values", () => {
    expect(makeScale([1e-10, 1], true).ticks[0].text).toBe("10⁻¹⁰");
    expect(makeScale([16, 1024], true, [16, 64, 1024]).ticks.map((t) => t.text)).toEqual(["16", "64", "1,024"]);
  });
  it("that are logarithmic have zeros below every positive value", () => {
    const axis = makeScale([0, 1e-5, 1], true);
    expect(axis.ticks[0].text).toBe("0");
    expect(axis.at(0)).toBe(0);
    expect(axis.at(1e-5)).toBeGreaterThan(0);
    expect(axis.at(1) - axis.at(1e-2)).toBeCloseTo(axis.at(1e-2) - axis.at(1e-4));
  });
  it("of names label as many as asked", () => {
    expect(makeNameScale(["a", "b", "c", "d", "e"], 2).ticks.map((t) => t.text)).toEqual(["a", "d"]);
  });
});

describe("curves", () => {
  const odd: [string, Partial<Chart>][] = [
    ["one point with an interval", { curves: [{ name: "a", x: [3], y: [0.2], low: [0.1], high: [0.3] }] }],
    ["one point, logarithmic", { curves: [{ name: "a", x: [3], y: [0.2] }], log_x: true, log_y: true }],
    ["no point", { curves: [{ name: "a", x: [], y: [] }], log_y: true }],
    ["zeros, logarithmic", { curves: [{ name: "a", x: [0, 10, 100], y: [0, 1e-300, -1] }], log_x: true, log_y: true }],
    ["huge", { curves: [{ name: "a", x: [-1e308, 1e308], y: [1e308, -1e308] }] }],
    ["tiny, logarithmic", { curves: [{ name: "a", x: [1, 2], y: [5e-324, 1e308] }], log_y: true }],
    ["missing values", { curves: [{ name: "a", x: [0, 1, 2, null], y: [1, null, 3, 4], low: [null, 1, 2, 3], high: [2, 2, 4, null] }] }],
  ];
  it.each(odd)("stay inside their picture: %s", (_, parts) => {
    const chart = makeChart(parts);
    const [x, y] = makeAxes(chart);
    const { line, marks, hollow, bands, whiskers } = drawCurve(chart.curves[0], 0, x, y, BOX);
    const places = [...[line, marks, hollow, ...bands, ...whiskers].join(" ").matchAll(/[ML](-?[\d.]+),(-?[\d.]+)/g)];
    for (const [, px, py] of places) {
      expect(Number(px)).toBeGreaterThanOrEqual(BOX.x(0));
      expect(Number(px)).toBeLessThanOrEqual(BOX.x(1));
      expect(Number(py)).toBeGreaterThanOrEqual(BOX.y(1));
      expect(Number(py)).toBeLessThanOrEqual(BOX.y(0));
    }
    expect(line + marks + hollow).not.toMatch(/NaN|Infinity/);
    expect(Boolean(marks + hollow)).toBe(chart.curves[0].x.length > 0);
  });
  it("show a zero on a logarithmic axis as a hollow mark that no line reaches", () => {
    const chart = makeChart({ curves: [{ name: "a", x: [1, 2, 3, 4], y: [1, 0.1, 0, 0.01] }], log_y: true });
    const [x, y] = makeAxes(chart);
    const drawn = drawCurve(chart.curves[0], 0, x, y, BOX);
    expect(drawn.line.match(/L/g)).toHaveLength(1); // from the first to the second; the fourth stands alone
    expect(drawn.hollow.match(/M/g)).toHaveLength(1);
    expect(drawn.marks.match(/M/g)).toHaveLength(3);
    expect(hasHiddenPoints(chart)).toBe(true);
  });
  it("have a band along them, and a bar at a lonely point", () => {
    const chart = makeChart({ curves: [{ name: "a", x: [0, 1, 2, 3], y: [1, 2, 3, 4], low: [0, 1, null, 3], high: [2, 3, 4, 5], inner_low: [0.5, 1.5, 2.5, 3.5], inner_high: [1.5, 2.5, 3.5, 4.5] }] });
    const [x, y] = makeAxes(chart);
    const drawn = drawCurve(chart.curves[0], 0, x, y, BOX);
    expect([drawn.bands.length, drawn.whiskers.length]).toEqual([2, 1]);
  });
  it("are listed with intervals and names of steps", () => {
    const chart = makeChart({ curves: [{ name: "a", x: [0, 1], y: [1, 2], low: [0, 1], high: [2, 3] }], x_names: ["Mon", "Tue"] });
    expect(tabulateChart(chart)).toEqual({ header: ["x", "a", "a, low", "a, high"], rows: [["Mon", 1, 0, 2], ["Tue", 2, 1, 3]] });
  });
});

describe("looks", () => {
  it("differ for thirty names, and a name keeps its look", () => {
    const names = Array.from({ length: 30 }, (_, i) => `c${i}`);
    const before = new Map<string, number>();
    const looks = chooseLooks(names, before);
    expect(new Set(looks.map((l) => `${colour(l)} ${dash(l)} ${drawMark(l, 0, 0)}`)).size).toBe(30);
    expect(chooseLooks([...names].reverse(), before)).toEqual([...looks].reverse());
    expect(chooseLooks(["new", "c1", "c1"], before)).toEqual([0, 1, 2]);
  });
});

describe("a confusion matrix", () => {
  it("is normalised by row, and an empty row stays 0", () => {
    expect(normaliseRows([[3, 1], [0, 0], [null, 2]])).toEqual([[0.75, 0.25], [0, 0], [null, 1]]);
  });
  it("as shades alone has one path for each level", () => {
    const paths = paintLevels({ title: "", rows: ["a", "b"], columns: ["0", "1"], values: [[0, 1], [1, null]], by_row: false }, 10, 5);
    expect(paths.map((p) => [p.share, p.d])).toEqual([[0, "M0,0h10v5h-10z"], [1, "M10,0h10v5h-10zM0,5h10v5h-10z"]]);
  });
  it("is described by its diagonal", () => {
    const grid = { title: "Confusions", rows: ["a", "b"], columns: ["a", "b"], values: [[3, 1], [1, 1]], by_row: true };
    expect(describeGrid(grid)).toBe("Confusions. Right: a 75.0 %, b 50.0 %.");
  });
});

describe("seeds", () => {
  it("say their mean, its interval and how many are missing", () => {
    expect(describeMean({ name: "a", values: [1, 2, null], interval: [0.5, 2.5] })).toBe("mean 1.5 [0.5, 2.5] of 2 (1 missing)");
    expect(describeMean({ name: "a", values: [null], interval: null })).toBe("mean – of 0 (1 missing)");
  });
});

describe("a table", () => {
  const columns = [
    { name: "model", texts: ["gru", "LSTM", "bag of words"], keys: null },
    { name: "ms", texts: ["2.0", "10.0", "-"], keys: [2, 10, null], values: [2, 10, null] },
  ];
  it("sorts numbers with missing ones last, and texts by their letters", () => {
    expect(arrangeRows(columns, { column: 1, sign: -1 }, "")).toEqual([1, 0, 2]);
    expect(arrangeRows(columns, { column: 1, sign: 1 }, "")).toEqual([0, 1, 2]);
    expect(arrangeRows(columns, { column: 0, sign: 1 }, "")).toEqual([2, 0, 1]);
  });
  it("goes back to the first order after both directions", () => {
    const first = nextOrder(null, 1, true);
    const second = nextOrder(first, 1, true);
    expect([first?.sign, second?.sign, nextOrder(second, 1, true)]).toEqual([-1, 1, null]);
    expect(nextOrder(first, 0, false)).toEqual({ column: 0, sign: 1 });
  });
  it("finds rows that contain all words", () => {
    expect(arrangeRows(columns, null, "WORDS bag")).toEqual([2]);
    expect(arrangeRows(columns, null, "no such")).toEqual([]);
  });
  it("saves every digit", () => {
    expect(listValues(columns)).toEqual({ header: ["model", "ms"], rows: [["gru", 2], ["LSTM", 10], ["bag of words", null]] });
    expect(makeColumns(["x", "y"], [["Mon", 0.123456], ["Tue", null]])[1]).toMatchObject({ texts: ["0.1235", "–"], keys: [0.123456, null] });
  });
});

describe("a page", () => {
  it("puts narrow blocks side by side and wide ones alone", () => {
    const words = (id: string): PageBlock => ({ kind: "words", id, title: id, note: "", paragraphs: [] });
    const wide = (id: string): PageBlock => ({ kind: "gallery", id, title: id, note: "", pictures: [] });
    const ids = groupBlocks([words("a"), words("b"), wide("c"), wide("d"), words("e")]).map((g) => g.map((b) => b.id));
    expect(ids).toEqual([["a", "b"], ["c"], ["d"], ["e"]]);
  });
});
