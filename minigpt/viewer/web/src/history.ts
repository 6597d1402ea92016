/** Undo: the texts before the one that the page shows. */

export type Version = { text: string, selected: number };

const MAX_UNDO = 200;
/** Milliseconds without a key that end a step of Undo. */
const TYPING = 1000;

export class History {
  past: Version[] = [];
  group = "";
  changed = 0;

  /** Keep the version before a change. Changes of one group, such as typing, are undone together.
   * @param now in milliseconds */
  record(version: Version, group: string, now: number) {
    const isLate = group === "typing" && now - this.changed > TYPING;
    if (!group || group !== this.group || isLate) this.past.push(version);
    if (this.past.length > MAX_UNDO) this.past.shift();
    this.group = group;
    this.changed = now;
  }

  /** End the group: the next change is a step of Undo of its own. */
  endGroup() {
    this.group = "";
  }
}
