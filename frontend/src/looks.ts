/** Colour, shape and dash of curves; one name looks the same in all pictures of a page. */

const COLOURS = 8; // .c0 .. .c7 in plots.css
const DASHES = 4; // .d0 .. .d3 in plots.css
const SHAPES = [
  "m-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0z", // disc
  "m-3.2,-3.2h6.4v6.4h-6.4z", // square
  "m0,-4.4l4.2,7.4h-8.4z", // triangle
  "m0,-4.8l4.4,4.8l-4.4,4.8l-4.4,-4.8z", // diamond
  "m0,4.4l4.2,-7.4h-8.4z", // triangle, on its point
  "m-1.4,-4.4h2.8v3h3v2.8h-3v3h-2.8v-3h-3v-2.8h3z", // plus
  "m-4.4,0l2.2,-3.9h4.4l2.2,3.9l-2.2,3.9h-4.4z", // hexagon
  "m0,-5.6l1.6,4l4,1.6l-4,1.6l-1.6,4l-1.6,-4l-4,-1.6l4,-1.6z", // star
];

/** A look for each name: the one it had `before` on this page, or the first free one. */
export function chooseLooks(names: string[], before: Map<string, number>): number[] {
  const reserved = new Set(names.filter((n) => before.has(n)).map((n) => before.get(n)!));
  const looks: number[] = [];
  for (const name of names) {
    let look = before.get(name) ?? -1;
    if (look < 0 || looks.includes(look)) {
      look = 0;
      while (looks.includes(look) || reserved.has(look)) look++;
    }
    if (!before.has(name)) before.set(name, look);
    looks.push(look);
  }
  return looks;
}

export const colour = (look: number) => `c${look % COLOURS}`;
export const dash = (look: number) => `d${Math.floor(look / COLOURS) % DASHES}`;

/** The SVG path of a mark. The 9th look has the colour of the 1st, but another shape. */
export function drawMark(look: number, x: number, y: number): string {
  return `M${x.toFixed(1)},${y.toFixed(1)}${SHAPES[(look + Math.floor(look / COLOURS)) % SHAPES.length]}`;
}
