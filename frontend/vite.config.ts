import { readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

// Preact is part of the build, and its licence asks to be part of every copy.
const text = readFileSync("node_modules/preact/LICENSE", "utf8");
export const licence: Plugin = {
  name: "licence",
  generateBundle(_, bundle) {
    for (const chunk of Object.values(bundle)) {
      if (chunk.type === "chunk") chunk.code = `/* Includes Preact:\n${text}*/\n${chunk.code}`;
    }
  },
};

// The build is part of the Python package: three files with fixed names, which `seqloom explore` serves and
// `seqloom explore --save` writes into one page.
export default defineConfig({
  base: "./",
  plugins: [licence],
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    outDir: "../src/seqloom/lab/explore/static",
    emptyOutDir: true,
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      output: { entryFileNames: "app.js", assetFileNames: "app[extname]", inlineDynamicImports: true },
    },
  },
});
