/** Numbers as text: the same digits as in the tables that Python writes. */

export const MISSING = "–";

export function isNumber(value: unknown): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

/** Significant digits without trailing zeros; thousands with commas. */
export function formatNumber(value: number | null | undefined, digits = 4): string {
  if (!isNumber(value)) return MISSING;
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return group(String(value));
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return trimExponent(value.toExponential(digits - 1));
  const text = value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size))));
  return group(text.includes(".") ? text.replace(/\.?0+$/, "") : text);
}

function trimExponent(text: string): string {
  const [mantissa, exponent] = text.split("e");
  return `${mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa}e${Number(exponent)}`;
}

export function group(text: string): string {
  const [whole, rest] = text.split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return rest === undefined ? grouped : `${grouped}.${rest}`;
}

/** A share in percent, as in a confusion matrix. */
export function formatPercent(share: number): string {
  const percent = 100 * share;
  if (percent === 0 || percent >= 99.95) return String(Math.round(percent));
  return percent < 0.1 ? "<0.1" : percent.toFixed(1);
}

export function mean(values: number[]): number | null {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

/** Replace +- by a plus-minus sign with non-breaking spaces. */
export function typeset(text: string): string {
  return text.replaceAll(" +- ", "\u00a0±\u00a0");
}
