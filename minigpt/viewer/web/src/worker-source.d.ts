// build.mjs bundles worker.ts to a string and gives it this name.
declare module "worker:source" {
  const source: string;
  export default source;
}
