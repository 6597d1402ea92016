import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["dist/", "../page.js"] },
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2022, sourceType: "module" },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "eqeqeq": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      "max-len": ["error", { code: 120, ignoreUrls: true }],
    },
  },
  { files: ["src/**"], languageOptions: { globals: globals.browser } },
  { files: ["*.mjs", "*.js", "test/**"], languageOptions: { globals: globals.node } },
];
