import { defineConfig } from "vite";
import { licence } from "./vite.config";

// The page of a report: one script and one style sheet, which `lab/report/web.py` writes into every page.
export default defineConfig({
  plugins: [licence],
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    outDir: "../src/seqloom/lab/report/static",
    emptyOutDir: true,
    cssCodeSplit: false,
    modulePreload: false,
    rollupOptions: {
      input: "src/report-main.tsx",
      output: { format: "iife", entryFileNames: "report.js", assetFileNames: "report[extname]" },
    },
  },
});
