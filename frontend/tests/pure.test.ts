import { describe, expect, it } from "vitest";
import { clampWindow, csvField, format, formatOutput, Matrix, orderUnits, pack, spread, ticks, toCsv, unpack } from "../src/arrays";
import { split } from "../src/model";
import { readView, START, writeView } from "../src/view";

describe("arrays", () => {
  it("restores the ends of a packed array exactly", () => {
    const m = unpack(new Uint16Array([0, 65535, 32768, 0]).buffer, { shape: [2, 2], low: -1, high: 3 });
    expect([m.get(0, 0), m.get(0, 1)]).toEqual([-1, 3]);
    expect(m.get(1, 0)).toBeCloseTo(1, 4);
  });
  it("reads a constant array", () => {
    expect(new Matrix(new Uint16Array([0, 0]), [1, 2], 0.5, 0.5).get(0, 1)).toBe(0.5);
  });
  it("orders units by number, effect and group", () => {
    expect(orderUnits("number", 3, [2, 0, 1], [])).toEqual([0, 1, 2]);
    expect(orderUnits("effect", 3, [2, 0, 1], [])).toEqual([2, 0, 1]);
    expect(orderUnits("group", 4, [3, 2, 1, 0], [1, 0, 1, 0])).toEqual([3, 1, 2, 0]);
    expect(orderUnits("effect", 4, [2, 0, 1], [])).toEqual([0, 1, 2, 3]);
  });
  it("chooses round ticks", () => {
    expect(ticks(0, 1)).toEqual([0, 0.5, 1]);
    expect(ticks(2, 2)).toEqual([2]);
  });
  it("keeps a window inside the sequence", () => {
    expect(clampWindow(90, 20, 100)).toEqual([80, 100]);
    expect(clampWindow(-5, 200, 100)).toEqual([0, 100]);
  });
  it("spreads windows over steps", () => {
    expect(spread([[0, 2], [2, 3]], [0.5, null], 3)).toEqual([0.5, 0.5, 0]);
  });
  it("does not write a tiny probability as a power of ten", () => {
    expect([formatOutput(1e-9, false), formatOutput(0.25, false), formatOutput(1e-9, true)]).toEqual(["<0.001", "0.250", "1.0e-9"]);
  });
  it("packs numbers as the server does", () => {
    const m = pack([-1, 3, 1, 0], [2, 2]);
    expect([m.get(0, 0), m.get(0, 1), m.low, m.high]).toEqual([-1, 3, -1, 3]);
    expect(m.get(1, 1)).toBeCloseTo(0, 4);
  });
  it("splits texts as the coder of words does", () => {
    expect(split("The plot's thin — naïve 漢字 <br/> x_1!", "words", true)).toEqual(["the", "plot's", "thin", "—", "naïve", "漢", "字", "<br/>", "x_1", "!"]);
    expect(split("aé👍", "characters", false)).toEqual(["a", "é", "👍"]);
  });
  it("formats numbers of any size", () => {
    expect([format(0.12345), format(-1234.5), format(null), format(1e-7)]).toEqual(["0.123", "−1234.5", "–", "1.0e-7"]);
  });
});

describe("csv", () => {
  it("quotes fields and defuses formulas", () => {
    expect(csvField('a"b,c')).toBe('"a""b,c"');
    expect(csvField("=1+1")).toBe("'=1+1");
    expect(csvField(-1)).toBe("-1");
    expect(toCsv(["a"], [[1], [null]])).toBe("a\r\n1\r\n\r\n");
  });
});

describe("view", () => {
  it("survives a link", () => {
    const view = { ...START, run: "a/b", input: "not <b> 😀", clamps: [{ layer: "l0", letter: "z", value: 1, units: [3], steps: null }] };
    expect(readView(writeView(view))).toEqual(view);
  });
  it("drops what does not belong in it", () => {
    expect(readView("#%7Bnonsense")).toEqual(START);
    expect(readView("#" + encodeURIComponent('{"run": 3, "cursor": 1.5, "clamps": [{}], "x": 1}'))).toEqual(START);
  });
});
