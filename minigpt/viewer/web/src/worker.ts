/** The worker: a session that receives the models first, then requests. */

import { Session } from "./session.js";

let session: Session | undefined;

self.onmessage = ({ data }) => {
  if (session) session.send(data);
  else session = new Session(data, (reply) => self.postMessage(reply));
};
self.postMessage("ready");
