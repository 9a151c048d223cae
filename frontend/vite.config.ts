import { defineConfig } from "vite";

// The build is part of the Python package: three files with fixed names, which `seqloom explore` serves and
// `seqloom explore --save` writes into one page.
export default defineConfig({
  base: "./",
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
