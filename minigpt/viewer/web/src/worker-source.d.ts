// build.mjs bundles worker.js to a string and gives it this name.
declare module "worker:source" {
  const source: string;
  export default source;
}
