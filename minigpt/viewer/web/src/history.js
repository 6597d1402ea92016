/** Undo and redo: the texts before and after the one that the page shows. */

/** @typedef {{text: string, selected: number}} Version */

const MAX_UNDO = 200;
/** Milliseconds without a key that end a step of Undo. */
const TYPING = 1000;

export class History {
  constructor() {
    this.past = /** @type {Version[]} */ ([]);
    this.future = /** @type {Version[]} */ ([]);
    this.group = "";
    this.changed = 0;
  }

  /** Keep the version before a change. Changes of one group, such as typing, are undone together.
   * @param {Version} version @param {string} group @param {number} now in milliseconds */
  record(version, group, now) {
    const isLate = group === "typing" && now - this.changed > TYPING;
    if (!group || group !== this.group || isLate) {
      this.past.push(version);
      if (this.past.length > MAX_UNDO) this.past.shift();
    }
    this.future = [];
    this.group = group;
    this.changed = now;
  }

  /** End the group: the next change is a step of Undo of its own. */
  endGroup() {
    this.group = "";
  }

  /** @param {Version} current @returns {Version | undefined} the version before it */
  undo(current) {
    return move(this.past, current, this.future);
  }

  /** @param {Version} current @returns {Version | undefined} the version after it */
  redo(current) {
    return move(this.future, current, this.past);
  }
}

/** Take the newest version of a list, if any, and add the current one to the other list.
 * @param {Version[]} from @param {Version} current @param {Version[]} to */
function move(from, current, to) {
  const version = from.pop();
  if (version) to.push(current);
  return version;
}
