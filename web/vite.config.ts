// Writes one script and one style sheet, which the server puts into one document.
import { defineConfig } from "vite";

export default defineConfig({
  build: {
    outDir: "../src/parley/server/page",
    emptyOutDir: false,
    modulePreload: false,
    cssCodeSplit: false,
    target: "es2023",
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    reportCompressedSize: false,
    rolldownOptions: {
      input: "src/main.tsx",
      output: {
        format: "iife",
        entryFileNames: "page.js",
        assetFileNames: "page.[ext]",
      },
    },
  },
});
